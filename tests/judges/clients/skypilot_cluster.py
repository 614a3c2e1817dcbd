"""Runs in SkyPilot's environment: its AWS provisioner brings up a cluster of two, opens a port, stops and resumes it,
and terminates it.

Prints one JSON line for each step; a step that fails prints its error, and the others follow. Without SkyPilot's set-up
of nodes, which downloads.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from sky.provision import common
from sky.provision.aws import config as aws_config
from sky.provision.aws import instance
from sky.utils import status_lib

REGION, CLUSTER, IMAGE, KEY = "us-east-1", "judged", sys.argv[1], sys.argv[2]


def step(name: str, call: Callable[[], Any]) -> Any:
    """Do a step; print what it came to."""
    try:
        result = call()
    except Exception as error:
        print(json.dumps({"step": name, "error": f"{type(error).__name__}: {error}"}), flush=True)
        return None
    print(json.dumps({"step": name, "result": str(result)[:300]}), flush=True)
    return result


provider = {
    "region": REGION,
    "availability_zone": "us-east-1a",
    "use_internal_ips": False,
    "security_group": {"GroupName": "judged-group"},
}
node = {"InstanceType": "m5.large", "ImageId": IMAGE, "KeyName": KEY}
asked = common.ProvisionConfig(
    provider_config=provider,
    authentication_config={"ssh_user": "ubuntu"},
    docker_config={},
    node_config=node,
    count=2,
    tags={},
    resume_stopped_nodes=True,
    ports_to_open_on_launch=None,
)
made = step("bootstrap_instances", lambda: aws_config.bootstrap_instances(REGION, CLUSTER, asked))
given = made.provider_config if made else provider
step("run_instances", lambda: instance.run_instances(REGION, CLUSTER, CLUSTER, made))
step("wait_instances", lambda: instance.wait_instances(REGION, CLUSTER, status_lib.ClusterStatus.UP))
step("query_instances", lambda: sorted(map(str, instance.query_instances(CLUSTER, CLUSTER, given).values())))
step("get_cluster_info", lambda: len(instance.get_cluster_info(REGION, CLUSTER, given).instances))
step("open_ports", lambda: instance.open_ports(CLUSTER, ["8080", "9000-9002"], given))
addresses = step("addresses", lambda: sorted(instance.get_cluster_info(REGION, CLUSTER, given).ip_tuples()))
step("stop_instances", lambda: instance.stop_instances(CLUSTER, given))
step("wait_stopped", lambda: instance.wait_instances(REGION, CLUSTER, status_lib.ClusterStatus.STOPPED))
step("query_stopped", lambda: sorted(map(str, instance.query_instances(CLUSTER, CLUSTER, given).values())))
step("resume", lambda: len(instance.run_instances(REGION, CLUSTER, CLUSTER, made).resumed_instance_ids))
step("wait_resumed", lambda: instance.wait_instances(REGION, CLUSTER, status_lib.ClusterStatus.UP))
info = step("info", lambda: instance.get_cluster_info(REGION, CLUSTER, given))
step("same_private_addresses", lambda: sorted(one for one, _ in info.ip_tuples()) == [one for one, _ in addresses])
step("terminate_instances", lambda: instance.terminate_instances(CLUSTER, given))
step("cleanup_ports", lambda: instance.cleanup_ports(CLUSTER, ["8080"], given))
