"""The image's administrator has sudo; a job must not get root by what makes it possible."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = "/usr/local/sbin/setpriv-for-sudo"


@pytest.mark.parametrize(
    "attempt",
    [
        "sudo -n id -u",
        "sudo -nu ubuntu sudo -n id -u",
        f"{PROGRAM} --reuid 0 id -u",
        f"/lib64/ld-linux-x86-64.so.2 {PROGRAM} --reuid 0 id -u",
        f"cp --preserve=all {PROGRAM} /tmp/mine && /tmp/mine --reuid 0 id -u",
        f"unshare -r sh -c '{PROGRAM} --reuid 0 cat /etc/shadow'",
    ],
)
def test_a_job_does_not_become_root_by_the_administrators_sudo(cluster, attempt):
    said = cluster.on("worker2", f"{attempt} 2>&1", check=False).splitlines()
    assert "0" not in said and not any(line.startswith("root:") for line in said), said
