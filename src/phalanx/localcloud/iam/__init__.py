"""Permissions of the local cloud: role credentials are handed out here, and every request they sign is judged."""

from phalanx.localcloud.iam.middleware import PATCHED, install, wrap

__all__ = ["PATCHED", "install", "wrap"]
