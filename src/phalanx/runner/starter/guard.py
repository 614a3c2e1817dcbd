"""The starter's parent: when the starter is killed, this inherits its processes (even without a mark) and ends them."""

from __future__ import annotations

import os
import signal
import sys
import time

from phalanx.runner.reaper import Sweep
from phalanx.runner.starter import inside
from phalanx.runner.starter.scratch import Scratch
from phalanx.runner.starter.starter import Starter
from phalanx.runner.system import MARK, NO_ROOM, PR_SET_PDEATHSIG, adopt_orphans, prctl, reap

_FAILED = 1
_ABANDONED = 3
_GRACE_S = 1.0
_SWEEP_EVERY_S = 0.02


def main(job_id: str, work: str, is_head: bool, is_inside: bool = False) -> None:
    """Serve one job on this node over stdin and stdout; on the head, settle the job when its runner died."""
    os.environ.pop(MARK, None)
    if is_inside:
        inside.keep_from_ranks()
    adopt_orphans()
    scratch = Scratch(job_id)
    pid = os.fork()
    if pid == 0:
        _become_starter(job_id, work)
    received = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda got, _: (received.append(got), os.kill(pid, got)))
    if is_inside:
        inside.end_with_the_waiting_one()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, _ABANDONED):
        scratch.look(last=True)
        _end_orphans(job_id)
        scratch.remove()
    # A machine that shuts down sends SIGTERM to all processes, and must not restart the job meanwhile.
    if code != 0 and is_head and not received:
        from phalanx.runner.head.settle import settle_in_background  # here, because only a lost head needs it

        settle_in_background(os.path.dirname(work))


def _become_starter(job_id: str, work: str) -> None:
    status = _FAILED
    try:
        # When this process ends, the starter ends everything, as it does when the head is gone.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        starter = Starter(job_id, work)
        starter.run()
        status = _ABANDONED if starter.abandoned else 0
    except Exception as error:
        _complain(error)
    finally:
        os._exit(status)


def _complain(error: Exception) -> None:
    """Print why the starter ended, for the runner: a full disk in words, and a bug of ours with its traceback."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        print(f"it has no room for a job: {error.strerror}: {error.filename}", file=sys.stderr)
        return
    sys.excepthook(type(error), error, error.__traceback__)


def _end_orphans(job_id: str) -> None:
    """End what the starter left. Stdout stays open meanwhile, so the runner notices the starter's end afterwards."""
    sweep = Sweep(job_id, os.getpid(), _GRACE_S)
    while sweep.step() is None:
        reap()
        time.sleep(_SWEEP_EVERY_S)
