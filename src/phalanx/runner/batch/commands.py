"""Runs a batch scheduler's commands on the head. Their output is not trusted: it is bounded in time and size."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import reason
from phalanx.runner.batch.scheduling import MOST_BYTES, still_holds
from phalanx.runner.files import state as states
from phalanx.runner.process import RefusedError
from phalanx.runner.reaper import kill_group

if TYPE_CHECKING:
    from typing import Callable, List, Sequence, Tuple

    from phalanx.runner.batch.scheduling import Call, Scheduler

# Well below FENCE_S: connected starters get no beats meanwhile.
_ANSWER_WITHIN_S = 15.0
_NOT_FOUND = 127


def caller(scheduler: str, directory: str) -> Call:
    """Return a function that runs the scheduler's commands in a login shell, whose profile may set their PATH."""

    def call(argv: Sequence[str], text: str) -> str:
        shell = ["/bin/sh", "-lc", 'exec "$@"', "sh", *argv]
        try:
            code, out, error = _answer(shell, text, directory)
        except TimeoutError:
            raise RefusedError(
                f"{scheduler} does not answer: `{argv[0]}` took {_ANSWER_WITHIN_S:g} s", code="scheduler"
            ) from None
        except OverflowError:
            raise RefusedError(
                f"{scheduler}'s answer has more than {MOST_BYTES >> 20} MiB: `{argv[0]}` was ended", code="scheduler"
            ) from None
        if code:
            raise RefusedError(_failure(scheduler, argv[0], code, error or out), code="scheduler")
        return out

    return call


def _answer(argv: Sequence[str], text: str, directory: str) -> Tuple[int, str, str]:
    """Run a command in a session of its own; return its exit code and outputs. Raises TimeoutError, OverflowError."""
    with tempfile.TemporaryFile() as given:
        given.write(text.encode())
        given.seek(0)
        process = subprocess.Popen(
            argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=directory, start_new_session=True
        )
    with process:
        try:
            out, error = _outputs(process)
            return process.wait(_ANSWER_WITHIN_S), out, error
        except (TimeoutError, OverflowError, subprocess.TimeoutExpired) as failure:
            kill_group(process.pid)
            raise failure if isinstance(failure, OverflowError) else TimeoutError from None


def _outputs(process: subprocess.Popen[bytes]) -> List[str]:
    """Return what a process writes to its two outputs until they are closed. Raises TimeoutError, OverflowError."""
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    outputs = [pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe]
    found = {output: bytearray() for output in outputs}
    with selectors.DefaultSelector() as waiting:
        for output in outputs:
            waiting.register(output, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    waiting.unregister(key.fd)
                if len(found[key.fd]) > MOST_BYTES:
                    raise OverflowError
    return [content.decode(errors="replace") for content in found.values()]


def _failure(scheduler: str, command: str, code: int, said: str) -> str:
    if code == _NOT_FOUND:
        return (
            f"{command} is not on the head (PATH {os.environ.get('PATH', '')})\n"
            f"--via {scheduler} needs a {scheduler} that the cluster has already; without --via phalanx starts the job."
        )
    return f"{scheduler} refused: {' '.join(reason(said).split())}"


def release(directory: str, find: Callable[[str], Scheduler]) -> int:
    """Give back the allocation of a job whose runner died; return an exit status."""
    held = states.read(directory).allocation
    if held is None:
        return 0
    scheduler = find(held.scheduler)
    try:
        scheduler.cancel(held.id, caller(scheduler.NAME, directory))
    except RefusedError as error:
        print(still_holds(scheduler.NAME, held.id, error), file=sys.stderr)
        return 1
    return 0
