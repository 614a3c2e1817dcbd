"""Run commands on nodes over OpenSSH, and check what comes back."""
