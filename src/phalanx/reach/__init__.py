"""What a person does with the nodes of a cluster: files, ports, commands."""
