"""Programs of ours on the head beside any job: the runner's zipapp, put on the shared directory once per version."""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING

from phalanx.bundle import runner_zip

if TYPE_CHECKING:
    from phalanx.job import ClusterAccess

TOOLS = ".phalanx/tools"


def command(cluster: ClusterAccess, verb: str, *words: str) -> str:
    """A shell command for the head that runs a verb of the zipapp, which is sent first where it is not there yet."""
    content = runner_zip()
    path = f"{cluster.shared}/{TOOLS}/phalanx-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    remote = cluster.remote()
    place = shlex.quote(path)
    if remote.run(f"test -e {place}", timeout_s=30.0, check=False).status != 0:
        beside = f"{place}.$$"
        put = f"umask 077; mkdir -p $(dirname {place}) && cat > {beside} && mv {beside} {place}"
        remote.run(put, input=content, timeout_s=120.0)
    return "exec " + shlex.join(["python3", "-IS", path, verb, *words])
