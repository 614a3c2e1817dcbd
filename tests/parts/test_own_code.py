"""The packages of phalanx that run as code of a job: each has all that it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from phalanx.jobs.own_code import write_package


@pytest.mark.parametrize(
    ("package", "entry", "others"),
    [
        ("objects", "staging", ["node.sigv4"]),
        ("datasets", "fetch", []),
        ("netcheck", "__main__", []),
    ],
)
def test_a_package_runs_without_phalanx(package, entry, others, tmp_path):
    write_package(package, tmp_path, *others)
    code = f"import sys; sys.path[:0] = ['.']; import phalanx.{package}.{entry}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, check=True)
