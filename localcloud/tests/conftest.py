"""The plug-ins of all tests of the local cloud."""

pytest_plugins = ["beside_others", "untouched", "open_files", "node_lab", "a_cloud"]
