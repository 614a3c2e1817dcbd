"""`boot` prepares a node and leaves the agent running; `serve` is that agent; `check` only sees that all is there."""

from __future__ import annotations

import json
import os
import sys

from phalanx.node import loader, wire
from phalanx.node.aws import AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings
from phalanx.node.sigv4 import Request


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when the boot failed."""
    os.umask(0o022)
    root = os.environ.get("PHALANX_ROOT", "")
    settings = Settings.load(f"{root}/opt/phalanx/config.json")
    metadata = Metadata()
    try:
        loader.complete(settings, metadata)
    except (OSError, AwsError) as error:
        return _give_up(settings, f"boot step 'agent' failed: {error}")
    from phalanx.node import boot, daemon  # stage 2, only now there

    if arguments == ["check"]:
        print("phalanx: the agent is complete")
        return 0
    if arguments == ["serve"]:
        daemon.serve(settings, metadata, root)
    return 0 if boot.boot(settings, metadata, root) else 1


def _give_up(settings: Settings, reason: str) -> int:
    """A head without an agent can still tell CloudFormation why."""
    print(f"phalanx: {reason}", flush=True)
    if settings.wait_handle:
        content = {"Status": "FAILURE", "UniqueId": "phalanx", "Data": "", "Reason": reason[:3900]}
        request = Request("PUT", settings.wait_handle, {}, json.dumps(content).encode())
        wire.insist(lambda: wire.fetch(request, 10), 60, "the signal to CloudFormation")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
