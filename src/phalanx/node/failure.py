"""Report a failed step: a head to CloudFormation, a worker to the head. A replacement head makes way for another."""

from __future__ import annotations

import os
import time
from typing import Optional

from phalanx.node import outcome
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError
from phalanx.node.command import TAIL_BYTES, CommandError
from phalanx.node.settings import Settings

# Of the node's timeout: heads whose boot fails at once must not follow each other without a pause.
_PAUSE_SHARE = 0.1


def report(settings: Settings, agent: Optional[Agent], step: str, error: Exception) -> None:
    """Log what failed, send the boot log, then report. `agent` is None if even its identity could not be read."""
    failed = error if isinstance(error, CommandError) else _unexpected(error)
    content = {"step": step, "command": failed.command, "exit": failed.status, "output": failed.output}
    where = agent.identity.instance_id if agent else os.uname().nodename
    text = outcome.boot_failure({"instance_id": where, **content})
    (agent.log.say if agent else print)(text)
    if agent:
        # The log first, because the report may end this machine.
        agent.log.close()
    try:
        if settings.head:
            outcome.signal(settings.wait_handle, "FAILURE", text, settings.patience)
        elif agent:
            agent.report("failed", **content)
    except (OSError, AwsError) as problem:
        print(f"phalanx: the failure could not be reported: {problem}", flush=True)


def make_way(agent: Agent) -> None:
    """End this machine if it was to be the head of a ready cluster, so that its group launches another.

    No stack waits for it any more, and workers replace only a head whose machine does not answer.
    """
    settings, me = agent.settings, agent.identity.instance_id
    try:
        if settings.head and agent.table.get("generation").get("ready"):
            pause_s = _PAUSE_SHARE * settings.node_timeout_s
            print(f"phalanx: this head can't serve: another replaces it in {pause_s:.0f} s", flush=True)
            time.sleep(pause_s)
            agent.fleet.terminate(me, replaced=True)
    except AwsError as problem:
        print(f"phalanx: {me} could not be ended: {problem}", flush=True)


def _unexpected(error: Exception) -> CommandError:
    """Describe an error of the cloud by its message, and a bug of ours with its traceback."""
    text = str(error)
    if not isinstance(error, (OSError, AwsError)):
        import traceback  # here, because only a bug is shown with it

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return CommandError(type(error).__name__, 1, text[-TAIL_BYTES:])
