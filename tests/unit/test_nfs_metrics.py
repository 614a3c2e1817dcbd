"""The metrics of NFS: what the kernel counts, and what is sent."""

from __future__ import annotations

import pytest

from phalanx.node.nfs_metrics import Counts, change, counts

LOCAL = "device /dev/root mounted on / with fstype ext4\n"
EFS = """device 127.0.0.1:/ mounted on /efs with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=1048576
\tage:\t11
\tbytes:\t10 20 0 0 4096 8192 1 2\x20
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 4 4 0 1000 4096 1 12 20 0
\t       WRITE: 2 2 0 8192 300 0 30 50 0
"""
FOUND = Counts(4096, 8192, 4, 20, 2, 50)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOCAL + EFS, FOUND),
        (EFS + EFS.replace("/efs", "/other").replace("4096", "7"), FOUND),
        (EFS.replace("/efs", "/efs2"), None),
        (LOCAL, None),
        (EFS.partition("bytes:")[0], None),
        ("", None),
    ],
)
def test_the_counts_are_those_of_the_shared_directory(text, found):
    assert counts(text, "/efs") == found


def test_what_is_sent_are_differences_and_mean_times():
    later = FOUND._replace(read_bytes=5096, reads=9, read_ms=30)
    assert change(FOUND, later) == {
        "NfsReadBytes": (1000, "Bytes"),
        "NfsWriteBytes": (0, "Bytes"),
        "NfsReadTime": (2.0, "Milliseconds"),
        "NfsWriteTime": (0.0, "Milliseconds"),
    }


def test_a_new_mount_counts_from_nothing():
    assert {value for value, _ in change(FOUND, Counts(0, 0, 0, 0, 0, 0)).values()} == {0}
