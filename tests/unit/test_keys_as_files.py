"""Keys of objects as files: whatever a bucket contains, nothing is written outside of the directory."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.objects.keys_as_files import NamesError, is_marker, require_files


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["../x"], r"'\.\./x' has a part that is empty, '\.' or '\.\.'"),
        (["a//b"], "'a//b' has a part that is empty"),
        (["/etc/passwd"], "'/etc/passwd' is absolute"),
        (["a\nb"], r"'a\\nb' has control characters"),
        (["a\u202eb"], "has control characters"),
        (["a" * 256], "has a part of more than 255 bytes"),
        (["a/b/"], "'a/b/' has content, and ends with '/' as a directory does"),
        ([""], "'' has content"),
        (["é" * 128], "has a part of more than 255 bytes"),
        (["a", "a/b"], "'a' would be a file and a directory"),
        (["/1", "/2", "/3", "/4", "/5"], "'/3' is absolute; and 2 more"),
    ],
)
def test_a_key_that_can_t_be_a_file_is_refused_with_the_reason(keys, reason):
    with pytest.raises(NamesError, match=reason):
        require_files(keys)


def test_what_s3s_console_makes_for_a_directory_is_no_file():
    assert is_marker("") and is_marker("a/") and not is_marker("a/b")


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab./\x00\n"), min_size=1, max_size=8), max_size=6))
def test_every_accepted_key_is_a_file_of_its_own_below_the_directory(keys):
    try:
        require_files(keys)
    except NamesError:
        return
    paths = [f"/top/{key}" for key in keys]
    for path in paths:
        assert os.path.normpath(path) == path and path.startswith("/top/")
        assert not any(other.startswith(f"{path}/") for other in paths)
