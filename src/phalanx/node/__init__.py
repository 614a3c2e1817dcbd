"""The agent that runs on every node. It uses only the standard library, and Python 3.9 or later."""
