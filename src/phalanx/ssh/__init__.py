"""OpenSSH, from this machine, and what comes back over it."""
