"""Runs in Ray's environment: its AWS node provider brings up a head and a worker, finds them, and terminates them.

Prints one JSON line for each step; a step that fails prints its error, and the others follow.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config

IMAGE, KEY = sys.argv[1], sys.argv[2]


def step(name: str, call: Callable[[], Any]) -> Any:
    """Do a step; print what it came to."""
    try:
        result = call()
    except (Exception, SystemExit) as error:
        print(json.dumps({"step": name, "error": f"{type(error).__name__}: {error}"}), flush=True)
        return None
    print(json.dumps({"step": name, "result": str(result)[:300]}), flush=True)
    return result


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something, for a minute."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return found


node = {"InstanceType": "m5.large", "ImageId": IMAGE, "KeyName": Path(KEY).stem}
types = {kind: {"node_config": {**node}, "resources": {"CPU": 2}, "min_workers": 0} for kind in ("head", "worker")}
asked = {
    "cluster_name": "judged",
    "max_workers": 2,
    "provider": {"type": "aws", "region": "us-east-1", "availability_zone": "us-east-1a", "cache_stopped_nodes": True},
    "auth": {"ssh_user": "ubuntu", "ssh_private_key": KEY},
    "available_node_types": types,
    "head_node_type": "head",
}
config = step("bootstrap_config", lambda: bootstrap_aws(prepare_config(asked)))
assert config
provider = AWSNodeProvider(config["provider"], "judged")


def create(kind: str) -> int:
    """Launch a node; return how many were launched."""
    tags = dict.fromkeys(("ray-node-type", "ray-user-node-type", "ray-node-name", "ray-launch-config"), kind)
    launched = config["available_node_types"][kind]["node_config"]
    return len(provider.create_node(launched, {**tags, "ray-node-status": "uninitialized"}, 1))


step("create_node head", lambda: create("head"))
step("create_node worker", lambda: create("worker"))
step("non_terminated_nodes", lambda: len(until(lambda: len(found := provider.non_terminated_nodes({})) == 2 and found)))
nodes = provider.non_terminated_nodes({})
step("is_running", lambda: until(lambda: sum(map(provider.is_running, provider.non_terminated_nodes({}))) == 2))
step("internal_ip", lambda: sorted(map(provider.internal_ip, nodes)))
step("set_node_tags", lambda: provider.set_node_tags(nodes[0], {"ray-node-status": "up-to-date"}))
step("terminate_nodes", lambda: provider.terminate_nodes(nodes))
step("gone", lambda: until(lambda: not provider.non_terminated_nodes({})))
# With cached nodes, Ray stops them, and starts them again for the next cluster of the same kind.
step("create_node again", lambda: until(lambda: create("worker")))
step("is_running again", lambda: until(lambda: sum(map(provider.is_running, provider.non_terminated_nodes({}))) == 1))
step("reused", lambda: provider.non_terminated_nodes({})[0] in nodes)
provider.cache_stopped_nodes = False
for one in nodes:
    provider.ec2.Instance(one).terminate()
