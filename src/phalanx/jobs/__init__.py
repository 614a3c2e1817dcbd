"""What a user does with nodes from this machine: jobs, files, ports and commands."""
