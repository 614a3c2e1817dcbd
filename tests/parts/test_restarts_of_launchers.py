"""Every launcher's job restarts after a failure, unless that is useless, on fake nodes.

Open MPI is real; the other engines are shell scripts that start ranks as the engine does. tests/cluster has real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_jobs import run
from fake_nodes import FakeCluster

from phalanx.jobs.job import JobState
from phalanx.launchers import LAUNCHERS

# How each engine starts what follows its flags.
STARTER = """#!/bin/sh
until [ "$1" = {last_flag} ]; do shift; done
shift
RANK=$((${{FAKE_NODE##*r}} - 1)) exec "$@"
"""
RAY = "#!/bin/sh\ntrap 'exit 0' TERM\nsleep 60 & wait\n"
RAYLET = """class Node:
    state = 0

class GcsClient:
    def __init__(self, address): pass
    def get_all_node_info(self, timeout): return {1: Node, 2: Node}
"""
# All roles of a parameter server run the same command. The scheduler listens, and workers connect until they end.
SCHEDULER = (
    "import os, socket, time; s = socket.create_server(('', int(os.environ['DMLC_PS_ROOT_PORT']))); time.sleep(60)"
)
WORKER = """import os, socket, sys, time
for _ in range(300):
    try:
        s = socket.create_connection(("127.0.0.1", int(os.environ["DMLC_PS_ROOT_PORT"])))
        sys.exit(os.system("sh rank.sh") >> 8)
    except ConnectionRefusedError:
        time.sleep(0.1)
"""
PARAMETER_SERVER = """case $DMLC_ROLE in
server) exec sleep 60;;
scheduler) exec python3 -IS scheduler.py;;
worker) exec python3 -IS worker.py;;
esac
"""


@pytest.fixture
def equipped(two_nodes: FakeCluster) -> FakeCluster:
    """Two nodes with every engine."""
    scripts = {
        "torchrun": STARTER.format(last_flag="--no-python"),
        "deepspeed": STARTER.format(last_flag="--no_python"),
        "ray": RAY,
    }
    for name, text in scripts.items():
        (path := two_nodes.root / "bin" / name).write_text(text)
        path.chmod(0o755)
    (package := two_nodes.root / "python" / "ray").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_raylet.py").write_text(RAYLET)
    return two_nodes


def attempts(equipped: FakeCluster, code: Path, launcher: str, script: str):
    """Run a job; return the ranks' output without their names, and the job's last state."""
    texts = {"rank.sh": "echo try $PHALANX_RESTART\n" + script, "scheduler.py": SCHEDULER, "worker.py": WORKER}
    for name, text in {**texts, "dmlc.sh": PARAMETER_SERVER}.items():
        (code / name).write_text(text)
    command = "dmlc.sh" if launcher == "dmlc" else "rank.sh"
    ray = {"PYTHONPATH": f"{equipped.root}/python"} if launcher == "ray" else {}
    lines, status = run(equipped, code, "sh", command, launcher=launcher, per_node=1, restarts=3, env=ray)
    return [line.partition(": ")[2] for line in lines], status


# Spark's driver and workers wait for the master at its address, which a fake node does not have.
@pytest.mark.parametrize("launcher", sorted({*LAUNCHERS} - {"spark"}))
def test_a_rank_that_failed_starts_again_with_every_launcher(equipped, code, launcher):
    lines, status = attempts(equipped, code, launcher, "[ $PHALANX_RESTART = 1 ] || exit 4\n")
    assert (status.state, status.attempt, status.message) == (JobState.SUCCEEDED, 1, "")
    assert lines.count("try 1") == status.processes
    assert status.verified


@pytest.mark.parametrize("launcher", ["mpi", "deepspeed", "dmlc", "ray"])
def test_what_fails_the_same_way_at_once_is_tried_once_more_by_any_kind_of_engine(equipped, code, launcher):
    """Ranks of one engine, or of one on each node; ranks with services, with and without a keeper."""
    _, status = attempts(equipped, code, launcher, "exit 3\n")
    assert (status.state, status.exit_code, status.attempt) == (JobState.FAILED, 3, 1)
    assert status.message.endswith("(the same failure twice within 5 s of its start, so it is not restarted (1 of 3))")
    assert status.verified
