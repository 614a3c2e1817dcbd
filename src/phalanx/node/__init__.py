"""What runs on a node: standard library alone, Python 3.9 and later."""
