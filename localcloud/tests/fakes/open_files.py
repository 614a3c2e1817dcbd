"""A pytest plug-in: a process with more open files than select() can watch."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

# select() takes file descriptors below FD_SETSIZE, which is 1,024.
_FILES = 1_100


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Hold so many files open that new ones get numbers above 1,024."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * _FILES, limits[1]), limits[1]))
    first = os.open(os.devnull, os.O_RDONLY)
    files = [first, *(os.dup(first) for _ in range(_FILES))]
    try:
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
