"""The verbs of runner.pyz: what the command line asks of the head."""
