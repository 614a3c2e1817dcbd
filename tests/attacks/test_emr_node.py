"""A job on a cluster of EMR is a guest, even if it may write to the bucket from which nodes start the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_clouds import api
from terminals import Terminal

pytestmark = pytest.mark.cluster

SPEC = """\
name: emrguests
cloud: local-emr
nodes: 2
min: 2
type: m5.xlarge
slots: 1
keep: no
emr: {logs: s3://emr-guests/here, applications: [Hadoop]}
data: {everything: s3://emr-guests rw}
"""


@pytest.fixture(scope="module")
def emr(cluster: Terminal) -> Iterator[Terminal]:
    terminal = cluster.beside("emrguests", SPEC)
    api(terminal, "s3").create_bucket(Bucket="emr-guests")
    terminal.phalanx("up")
    yield terminal
    terminal.phalanx("down", "--yes", "--keep", "no")


def test_a_job_on_a_node_of_emr_gets_nothing_of_emr_s_nor_the_agent_of_other_nodes(emr):
    (found,) = api(emr, "emr").list_clusters(ClusterStates=["WAITING", "RUNNING"])["Clusters"]
    (agent,) = [
        one["Key"] for one in api(emr, "s3").list_objects_v2(Bucket="emr-guests", Prefix="here/phalanx/")["Contents"]
    ]
    (emr.directory / "take_emr.py").write_text((Path(__file__).parent / "take_emr.py").read_text())
    arguments = (f"s3://emr-guests/{agent}", found["Id"])
    job = emr.phalanx("run", "-n", "2", "-N", "1", "--launcher", "exec", "--", "python3", "take_emr.py", *arguments)
    taken = [json.loads(line[line.index("{") :]) for line in job.stdout.splitlines() if "{" in line]
    assert len(taken) == 2
    for node in taken:
        assert {name: got for name, got in node.items() if got} == {}


def test_a_job_still_writes_beside_the_agent_what_data_allows(emr):
    line = "import boto3; boto3.client('s3').put_object(Bucket='emr-guests', Key='here/mine', Body=b'x')"
    emr.phalanx("run", "-n", "1", "--launcher", "exec", "--", "python3", "-c", line)
    assert api(emr, "s3").get_object(Bucket="emr-guests", Key="here/mine")["Body"].read() == b"x"
