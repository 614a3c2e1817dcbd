"""Access to a cluster's nodes: files, ports and commands."""
