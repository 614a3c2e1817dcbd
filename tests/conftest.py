"""The plug-ins of all tests of phalanx."""

pytest_plugins = ["beside_others", "untouched", "open_files", "fake_jobs", "prompts", "terminals"]
