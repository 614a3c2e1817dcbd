"""Permissions of the local cloud: issue role credentials, and authorize every request."""

from phalanx.localcloud.iam.middleware import PATCHED, install, wrap

__all__ = ["PATCHED", "install", "wrap"]
