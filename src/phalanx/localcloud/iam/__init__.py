"""Permissions of the local cloud: issue role credentials, and authorize every request."""

from phalanx.localcloud.iam.middleware import PATCHED, install, rights_of, wrap

__all__ = ["PATCHED", "install", "rights_of", "wrap"]
