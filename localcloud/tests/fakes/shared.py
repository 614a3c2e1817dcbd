"""The clusters and nodes that tests of many modules share."""

from contextlib import ExitStack

SHARED: dict[str, ExitStack] = {}
"""The functions that end them, by fixture."""
