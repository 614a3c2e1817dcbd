"""Which modules a command line imports. What it may take is measured by `benchmarks.help`, on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
from phalanx.cli import execute
status = execute({arguments!r})
print("\\n" + json.dumps([status, sorted(sys.modules)]))
"""
HEAVY = ("boto3", "botocore", "troposphere", "rich", "moto")


def loaded(arguments, tmp_path, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(arguments=arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PHALANX_STATE_DIR": str(tmp_path / "state"), "PATH": "/usr/bin:/bin", **variables},
        timeout=120,
    )
    status, modules = json.loads(done.stdout.splitlines()[-1])
    return status, modules, done.stderr


def heavy(modules):
    return [name for name in HEAVY if name in modules]


def test_help_imports_no_command_and_nothing_heavy(tmp_path):
    status, modules, _ = loaded(["--help"], tmp_path)
    assert status == 0
    assert [name for name in modules if name.startswith("phalanx")] == [
        "phalanx",
        "phalanx.cli",
        "phalanx.cli.group",
        "phalanx.counts",
        "phalanx.errors",
        "phalanx.version",
        "phalanx.waits",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["run", "--", "true"], ["logs"], ["jobs"], ["stop"], ["ssh"]),
        *(["get", "x"], ["put", "ssh"], ["forward", "47113"], ["tensorboard"], ["notebook"], ["ssh-config"]),
        ["launch", "-n", "1", "true"],
    ],
    ids=lambda a: a[0],
)
def test_what_talks_to_a_cluster_over_ssh_loads_nothing_heavy(arguments, tmp_path):
    record = tmp_path / "state/clusters/demo/cluster.json"
    record.parent.mkdir(parents=True)
    record.write_text(
        json.dumps({"format": 1, "name": "demo", "cloud": "aws", "region": "r", "head_address": "a", "shared": "/efs"})
    )
    (tmp_path / "phalanx.yaml").write_text("name: demo # the one\nnodes: 4\n")
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'Permission denied' >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    status, modules, stderr = loaded(arguments, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    # The file that ssh-config prints is missing; all others meet an ssh that may not log in.
    expected = 2 if arguments[0] == "ssh-config" else 6
    assert (status, heavy(modules)) == (expected, []), stderr


def test_importing_phalanx_costs_nothing():
    code = "import sys, phalanx; print([m for m in sys.modules if m.startswith('phalanx.')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "['phalanx.version']\n"
    )
