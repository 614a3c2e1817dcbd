"""The agent's program: `boot` prepares a node and starts the agent, `serve` is its unit, `check` tests loading."""

from __future__ import annotations

import gc
import json
import os
import sys

from phalanx.node import disk, files, loader, wire
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import ON_AWS, Patience, Settings
from phalanx.node.sigv4 import Request


def main(arguments: list[str]) -> int:
    """Run a command of the agent; return 0, or 1 when the boot failed.

    What keeps the agent from being complete may pass even after it was reported: a new head is replaced by nobody.
    """
    # What a boot allocates is kept: to look for garbage in it would take 4 ms.
    gc.set_threshold(50_000)
    os.umask(0o022)
    root = os.environ.get("PHALANX_ROOT", "")
    with open(f"{root}/opt/phalanx/config.json", encoding="utf-8") as file:
        config = json.load(file)
    patience = _patience(config)
    metadata = Metadata(patience)
    while True:
        try:
            return _run(arguments, Settings.of(config), metadata, root)
        except Exception as error:
            if arguments == ["serve"] and isinstance(error, OSError):
                print(f"phalanx: {error}; systemd tries again", flush=True)
                return 1
            try:
                _report(config, metadata, patience, error)
            except (OSError, AwsError) as problem:
                print(f"phalanx: the failure could not be reported: {problem}", flush=True)
            if not isinstance(error, AwsError):
                return 1


def _patience(config: dict[str, str]) -> Patience:
    """Return the times in the settings; those for AWS if they are wrong, which `Settings.of` then refuses."""
    try:
        return Patience.of(config.get("patience", ""))
    except (TypeError, ValueError):
        return ON_AWS


def _run(arguments: list[str], settings: Settings, metadata: Metadata, root: str) -> int:
    by_unit = arguments == ["serve"]
    if by_unit and not disk.belongs_to(metadata.identity().instance_id, root):
        print("phalanx: this state is of the instance of which the image was made; user data replaces it")
        return 0
    if arguments == ["boot"]:
        disk.begin(root)
    loader.complete(settings, metadata)
    from phalanx.node import boot, daemon  # stage 2, which has just been loaded

    if arguments == ["check"]:
        print("phalanx: the agent is complete")
        return 0
    disk.bind(metadata.identity().instance_id, root)
    ended = files.read(root + disk.BOOTED)
    done = ended.startswith("ready") or (not ended and boot.boot(settings, metadata, root, by_unit))
    if by_unit and done:
        daemon.serve(settings, metadata, root)
    return 0 if done or ended else 1


def _report(config: dict[str, str], metadata: Metadata, patience: Patience, error: Exception) -> None:
    """Report why there is no agent: a head to CloudFormation, a worker to its head."""
    import traceback  # here, because few fail

    text = str(error)
    if not isinstance(error, (OSError, AwsError)):
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    reason = text[-2000:]
    print(f"phalanx: boot step 'agent' failed: {reason}", flush=True)
    if config["wait_handle"]:
        content = {"Status": "FAILURE", "UniqueId": "phalanx", "Data": ""}
        content["Reason"] = f"boot step 'agent' failed: {reason}"
        request = Request("PUT", config["wait_handle"], {}, json.dumps(content).encode())
        what = "the signal to CloudFormation"
        wire.insist(lambda: wire.fetch(request, 10), patience.signal_s, patience.pause_s, what)
    else:
        known = metadata.identity()
        report = {"kind": "failed", "instance_id": known.instance_id, "step": "agent", "exit": 1, "output": reason}
        report["command"] = type(error).__name__
        body = {"QueueUrl": config["queue_url"], "MessageBody": json.dumps(report)}
        region = config["stack_id"].split(":")[3]
        aws = Aws(region, config["domain"], metadata.credentials, patience)
        aws.json("sqs", "AmazonSQS.SendMessage", body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
