"""Permissions of the local cloud: issue role credentials, and authorize every request."""
