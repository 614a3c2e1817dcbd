"""`make smoke-aws` on the local cloud: whatever ends it, it deletes everything, and reports what it did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from benchmarks.measure import ROOT
from local_clouds import api
from terminals import SPEC, a_terminal, assert_nothing_is_left, read_until

pytestmark = pytest.mark.cluster


def test_ctrl_c_ends_it_with_everything_deleted_and_a_report(tmp_path):
    with a_terminal(SPEC) as terminal:
        smoke = start_smoke(terminal, tmp_path)
        shown = read_until(smoke, "2 nodes come up")
        processes = terminal.local_cloud_processes()
        wait_for_a_boot_log(terminal)
        smoke.send_signal(signal.SIGINT)
        shown += read_until(smoke, "$ phalanx down")
        # A second Ctrl-C must not stop the deletion.
        smoke.send_signal(signal.SIGINT)
        shown += smoke.communicate(timeout=600)[0]
        assert smoke.returncode == 1, shown
        assert "interrupted; deleting everything" in shown
        assert "still deleting" in shown
        assert_nothing_is_left(terminal, processes)
    (directory,) = (path for path in tmp_path.iterdir() if path.is_dir())
    steps = {step["name"]: step["problem"] for step in json.loads((directory / "report.json").read_text())["steps"]}
    assert steps["2 nodes come up"] == ""
    assert list(steps.values()).count("interrupted") == 1
    assert (steps["everything is deleted"], steps["nothing is left"]) == ("", "")
    assert list((directory / "boot-logs").glob("10.0.*.log"))
    calls = Counter(json.loads(line)["call"] for line in (directory / "api.jsonl").read_text().splitlines())
    assert (calls["cloudformation:CreateStack"], calls["cloudformation:DeleteStack"]) == (1, 1)
    assert calls["ec2:DescribeVolumes"]
    assert (directory.with_name(f"{directory.name}.tar.gz")).stat().st_size > 1000
    written = "".join(path.read_text() for path in directory.rglob("*.*"))
    assert not [secret for secret in ("123456789012", "AAAAC3", "AKIA") if secret in written]


def wait_for_a_boot_log(terminal):
    """Wait until a node has sent its boot log: nodes send it in batches, and `up` does not wait for it."""
    logs, end = api(terminal, "logs"), time.monotonic() + 120
    while not any(logs.describe_log_streams(logGroupName=group)["logStreams"] for group in groups(logs)):
        assert time.monotonic() < end, "no node has sent its boot log"
        time.sleep(0.05)


def groups(logs):
    return [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]]


def start_smoke(terminal, output):
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.smoke", "--endpoint", "local", "--yes", "--output", str(output)],
        cwd=ROOT,
        env={**os.environ, "PHALANX_STATE_DIR": str(terminal.state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
