"""Turns a Plan into a CloudFormation document: compact JSON, the same for the CLI and for the console."""

from __future__ import annotations

from phalanx.template.document import request, synthesize, uploads
from phalanx.template.request_limits import LIMIT_BYTES, is_large
from phalanx.template.userdata import agent_version

__all__ = ["LIMIT_BYTES", "agent_version", "is_large", "request", "synthesize", "uploads"]
