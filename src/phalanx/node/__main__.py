"""The agent's program: `boot` prepares a node and starts the agent, `serve` is the agent, `check` tests loading."""

from __future__ import annotations

import json
import os
import sys

from phalanx.node import loader, wire
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings
from phalanx.node.sigv4 import Request


def main(arguments: list[str]) -> int:
    """Run a command of the agent; return 0, or 1 when the boot failed."""
    os.umask(0o022)
    root = os.environ.get("PHALANX_ROOT", "")
    with open(f"{root}/opt/phalanx/config.json", encoding="utf-8") as file:
        config = json.load(file)
    metadata = Metadata()
    try:
        return _run(arguments, Settings.of(config), metadata, root)
    except Exception as error:
        return _give_up(config, metadata, error)


def _run(arguments: list[str], settings: Settings, metadata: Metadata, root: str) -> int:
    loader.complete(settings, metadata)
    from phalanx.node import boot, daemon  # stage 2, which has just been loaded

    if arguments == ["check"]:
        print("phalanx: the agent is complete")
        return 0
    if arguments == ["serve"]:
        daemon.serve(settings, metadata, root)
    return 0 if boot.boot(settings, metadata, root) else 1


def _give_up(config: dict[str, str], metadata: Metadata, error: Exception) -> int:
    """Report why there is no agent: a head to CloudFormation, a worker to its head."""
    import traceback

    text = str(error)
    if not isinstance(error, (OSError, AwsError)):
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    reason = text[-2000:]
    print(f"phalanx: boot step 'agent' failed: {reason}", flush=True)
    if config["wait_handle"]:
        content = {"Status": "FAILURE", "UniqueId": "phalanx", "Data": ""}
        content["Reason"] = f"boot step 'agent' failed: {reason}"
        request = Request("PUT", config["wait_handle"], {}, json.dumps(content).encode())
        wire.insist(lambda: wire.fetch(request, 10), 60, "the signal to CloudFormation")
    else:
        known = metadata.identity()
        report = {"kind": "failed", "instance_id": known.instance_id, "step": "agent", "exit": 1, "output": reason}
        report["command"] = type(error).__name__
        body = {"QueueUrl": config["queue_url"], "MessageBody": json.dumps(report)}
        region = config["stack_id"].split(":")[3]
        Aws(region, config["domain"], metadata.credentials).json("sqs", "AmazonSQS.SendMessage", body)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
