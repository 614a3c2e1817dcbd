"""Turns a Plan into a CloudFormation document: compact JSON, the same for the CLI and for the console."""

from __future__ import annotations

from phalanx.template.document import LIMIT_BYTES, request, synthesize

__all__ = ["LIMIT_BYTES", "request", "synthesize"]
