"""Nodes: Linux namespaces that behave like EC2 instances, and the handle that boots, kills and reaches them."""
