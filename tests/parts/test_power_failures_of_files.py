"""Files of this machine and of nodes after a power failure: each is the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from power_cuts import World, recorded, worlds
from rosters import ROSTER
from small_image import apply, small_image

from phalanx import state_files
from phalanx.cluster import evidence, keys, ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.why import Evidence
from phalanx.node import account, boot, disk, files, loader, release, trust
from phalanx.node.command import CommandError

CLUSTER = Cluster("demo", "aws", "us-east-1", stack_id="arn:stack/demo", head_address="203.0.113.7")
OURS = (
    "# phalanx: begin, rewritten with every generation of the roster\n10.0.0.5 deeplearning-worker1\n# phalanx: end\n"
)


@dataclass(frozen=True)
class Written:
    """Steps that write files, whose paths are below the root; what `lasts` is there once its step has returned."""

    paths: tuple[str, ...]
    steps: tuple[Callable[[Path], object], ...]
    lasts: bool = True


HERE = "state/clusters/demo"


def install(root: Path) -> None:
    """Include the cluster in the user's own configuration, as `phalanx ssh-config` does."""
    state_files.write_private(root / HERE / "ssh_config", "Host *\n    User phalanx\n")
    ssh_config.include_hosts(CLUSTER)


def fail_boot_script(root: Path) -> None:
    """Run a boot script that fails, of which is left that it began."""
    script, node = root / "script", root / "node"
    script.write_text("false\n")
    (node / "proc/self").mkdir(parents=True)
    settings = SimpleNamespace(region="r", shared="/efs", job_user="phalanx", node_timeout_s=60, head=False)
    agent: Any = SimpleNamespace(settings=settings, root=str(node), log=SimpleNamespace(say=print))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(CommandError):
        patched.setattr(loader, "SCRIPT", str(script))
        boot._run_script(agent)


CASES = {
    "a cluster's record": Written(
        (f"{HERE}/cluster.json",),
        (lambda _: Cluster("demo", "aws", "us-east-1").save(), lambda _: CLUSTER.save()),
    ),
    "this machine's key": Written((f"{HERE}/id_ecdsa", f"{HERE}/id_ecdsa.pub"), (lambda _: keys.make("demo"),)),
    "what ssh trusts": Written(
        (f"{HERE}/known_hosts",),
        tuple(lambda _, key=key: ssh_config.write_authority(CLUSTER, key) for key in ("old", "new")),
    ),
    "evidence": Written(
        (f"{HERE}/boot-logs/evidence.json",), (lambda _: evidence.keep(CLUSTER, Evidence(verdict="it failed")),)
    ),
    "the user's ssh_config": Written(
        (".ssh/config",),
        (install,),
        lasts=False,
    ),
    "a node's key": Written(
        ("node/etc/key", "node/etc/key.pub"), (lambda root: trust.make_key(f"{root}/node/etc/key", "i-1"),)
    ),
    "that a node's boot script began": Written(("node/opt/phalanx/boot-script",), (fail_boot_script,)),
    "a node's mounts": Written(
        ("node/etc/fstab",),
        tuple(
            lambda root, disk=disk: files.add_to_block("/etc/fstab", f"LABEL={disk}", f"/{disk}", root=f"{root}/node")
            for disk in "ab"
        ),
        lasts=False,
    ),
    "a node's accounts": Written(
        ("node/etc/passwd", "node/etc/group", "node/etc/shadow"),
        (lambda root: account.make_user("phalanx", f"{root}/node"),),
        lasts=False,
    ),
    "who may use cron": Written(
        ("node/etc/cron.deny",), (lambda root: account.deny_timers("phalanx", f"{root}/node"),), lasts=False
    ),
    "what an image's node has left": Written(
        ("node/etc/hosts",), (lambda root: disk.begin(f"{root}/node"),), lasts=False
    ),
    "what a node's contract has in common with others": Written(
        (*(f"image/etc/{name}" for name in ("hosts", "environment", "ssh/ssh_known_hosts", "ssh/ssh_config")),),
        (
            lambda root: apply(root / "image"),
            lambda root: apply(root / "image", ROSTER._replace(nodes=ROSTER.nodes[1:])),
        ),
        lasts=False,
    ),
    "a released node's accounts": Written(
        ("node/etc/passwd",), (lambda root: release.replace(f"{root}/node/etc/passwd", "root:x:0:0\n"),), lasts=False
    ),
}
# What a node has from its image, and the user's machine from the user.
PRESENT = {
    "node/etc/passwd": "root:x:0:0\nadm:x:3:4\n",
    "node/etc/group": "root:x:0:\n",
    "node/etc/shadow": "root:*:1::::::\n",
    "node/etc/fstab": "LABEL=root / ext4\n",
    "node/etc/hosts": f"127.0.0.1 localhost\n{OURS}",
    "node/etc/cron.deny": "guest\n",
    ".ssh/config": "Host mine\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    # No test may depend on whether root runs it.
    monkeypatch.setattr(os, "chown", lambda *_: None)
    (tmp_path / "node/opt/phalanx").mkdir(parents=True)
    for name, text in PRESENT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    small_image(tmp_path / "image")
    return tmp_path


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_after_a_power_failure_a_file_is_the_old_or_the_new_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, case: Written
):
    assert damage(root, monkeypatch, case) == []


def test_a_loss_is_found(root: Path, monkeypatch: pytest.MonkeyPatch):
    path = root / "node/etc/hosts"
    unsynced = Written(("node/etc/hosts",), (lambda _: files.write(str(path), "127.0.0.1 localhost\n"),), lasts=False)
    assert damage(root, monkeypatch, unsynced)


def damage(root: Path, monkeypatch: pytest.MonkeyPatch, case: Written) -> list[str]:
    """List the wrong files after every prefix of the calls, on every disk that it may leave."""
    paths = [str(root / path) for path in case.paths]
    with recorded(root, lambda synced: monkeypatch.setattr(os, "fsync", synced)) as record:
        for path in filter(os.path.exists, paths):
            record.has(Path(path))
        begins, states = len(record.calls), [contents(paths)]
        ends = []
        for step in case.steps:
            step(root)
            ends.append(len(record.calls))
            states.append(contents(paths))
    found, directories = [], {call[1] for call in record.calls if call[0] == "name" and call[2] is None}
    for end in range(begins, len(record.calls) + 1):
        done = sum(one <= end for one in ends)
        allowed = states[done if case.lasts else 0 : done + 2]
        for world in worlds(record.calls[:end]):
            found += [f"after {end} of {record.calls}: {why}" for why in wrong(world, paths, directories, allowed)]
    return found


def contents(paths: Sequence[str]) -> list[bytes | None]:
    return [Path(path).read_bytes() if Path(path).exists() else None for path in paths]


def wrong(
    world: World, paths: Sequence[str], directories: set[str], allowed: Sequence[list[bytes | None]]
) -> list[str]:
    each = zip(paths, zip(*allowed, strict=True), strict=True)
    return [f"{path} is {found!r}" for path, texts in each if (found := seen(world, path, directories)) not in texts]


def seen(world: World, path: str, directories: set[str]) -> bytes | None:
    """Return what is read at this path: nothing without each of the directories that were made."""
    above = {str(one) for one in Path(path).parents} & directories
    return world.get(path) if above <= world.keys() else None
