"""Memory of the idle local cloud with four nodes: target 25 MiB per node above moto alone, proportional set size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import REPEATS, Figure, pss_mib, show

NODES = 4
PER_NODE_MIB = 25
SETTLE_S = 2.0
# Serves on a free port until its input closes.
MOTO_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
CALLS = {
    "ec2": "describe_instances",
    "autoscaling": "describe_auto_scaling_groups",
    "efs": "describe_file_systems",
    "iam": "list_roles",
    "dynamodb": "list_tables",
    "sns": "list_topics",
    "sqs": "list_queues",
    "logs": "describe_log_groups",
    "lambda": "list_functions",
    "cloudformation": "describe_stacks",
    "ssm": "describe_parameters",
    "sts": "get_caller_identity",
}


def call_services(port: int) -> None:
    """Call each service from a separate process, so that boto3's memory is not counted as moto's."""
    program = f"""
import boto3
for service, call in {json.dumps(CALLS)}.items():
    client = boto3.client(service, region_name="us-east-1", endpoint_url="http://127.0.0.1:{port}",
                          aws_access_key_id="x", aws_secret_access_key="x")
    getattr(client, call)()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def moto_alone_mib() -> float:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", MOTO_SERVER], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin and server.stdout
        call_services(int(server.stdout.readline()))
        time.sleep(SETTLE_S)
        measured = pss_mib({server.pid})
        server.stdin.close()
    return measured


def local_cloud_mib() -> tuple[float, ...]:
    with bench_cluster() as cluster:
        cluster.up()
        time.sleep(SETTLE_S)
        measured = tuple(pss_mib(cluster.local_cloud_pids()) for _ in range(REPEATS))
        cluster.down()
    return measured


def figures() -> Iterator[Figure]:
    alone = moto_alone_mib()
    yield Figure("local cloud, idle, 4 nodes, PSS", local_cloud_mib(), unit="MiB", target=alone + NODES * PER_NODE_MIB)
    yield Figure("  for comparison: moto alone, after one call to each service", (alone,), unit="MiB")


if __name__ == "__main__":
    show(list(figures()))
