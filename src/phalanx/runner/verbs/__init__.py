"""The verbs of runner.pyz: the commands that phalanx runs on the head."""
