"""The verbs of runner.pyz. Each imports only what it needs, so that a starter is ready in 30 ms."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, NoReturn

    from phalanx.runner.batch.scheduling import Scheduler
    from phalanx.runner.process import Launcher


def entry(load: Callable[[str], Launcher], scheduler: Callable[[str], Scheduler]) -> NoReturn:
    """Run the verb on the command line. The zipapp's __main__ passes the launchers and the schedulers in."""
    verb, *words = sys.argv[1:]
    if verb == "submit":
        os.write(1, b'{"here": true}\n')
        from phalanx.runner.plugins import Plugins
        from phalanx.runner.verbs.submit import submit

        sys.exit(submit(words[0], Plugins(load, scheduler), "--detach" in words))
    if verb == "resume":
        from phalanx.runner.head.begin import resume
        from phalanx.runner.plugins import Plugins

        sys.exit(resume(words[0], Plugins(load, scheduler)))
    if verb == "attend":
        from phalanx.runner.starter.attend import attend

        sys.exit(attend(scheduler(words[0]), words[1], words[2], int(words[3]), words[4]))
    if verb == "release":
        from phalanx.runner.batch.scheduling import release

        sys.exit(release(words[0], scheduler))
    sys.exit(_VERBS[verb](words))


def _follow(words: List[str]) -> int:
    """DIRECTORY STACK POSITION|end|last|attempt=N [--no-wait] [--process LABEL] [--lines N]"""
    from phalanx.runner.verbs.follow import follow

    process = words[words.index("--process") + 1] if "--process" in words else None
    lines = int(words[words.index("--lines") + 1]) if "--lines" in words else None
    return follow(words[0], words[1], words[2], "--no-wait" not in words, process, lines)


def _stop(words: List[str]) -> int:
    from phalanx.runner.verbs.stop import stop

    return stop(words[0], words[1], float(words[2]))


def _list(words: List[str]) -> int:
    from phalanx.runner.verbs.listing import list_jobs

    return list_jobs(words[0], words[1])


def _starter(words: List[str]) -> int:
    from phalanx.runner.starter.guard import main as serve

    serve(words[0], words[1], "--head" in words)
    return 0


def _settle(words: List[str]) -> int:
    from phalanx.runner.head.settle import settle_patiently

    settle_patiently(words[0])
    return 0


def _environment(words: List[str]) -> int:
    from phalanx.runner.environments.environment import bring

    return bring(words[0])


def _environments(words: List[str]) -> int:
    from phalanx.runner.environments.inventory import list_environments

    return list_environments(words[0], "--prune" in words)


def _reap(words: List[str]) -> int:
    """JOB INSTANCE: only on this instance, not on a replacement that has its name."""
    import json

    from phalanx.runner.head.membership import successor_of
    from phalanx.runner.reaper import sweep
    from phalanx.runner.system import boot_id

    successor = successor_of(words[1])
    if successor:
        print(f"{words[1]} is gone, and its name is {successor}'s now", file=sys.stderr)
        return 1
    print(json.dumps({**sweep(words[0]), "boot_id": boot_id()}))
    return 0


def _give(words: List[str]) -> int:
    from phalanx.runner.verbs.porter import give

    return give(words[0], words[1])


def _take(words: List[str]) -> int:
    from phalanx.runner.verbs.porter import take

    return take(words[0], words[1], words[2])


def _service(words: List[str]) -> int:
    from phalanx.runner.verbs.service import serve

    return serve(words[0], words[1], words[2], words[3:])


def _usher(words: List[str]) -> int:
    from phalanx.runner.starter.attend import usher

    return usher(words[0], words[1])


_VERBS = {
    "usher": _usher,
    "follow": _follow,
    "stop": _stop,
    "list": _list,
    "starter": _starter,
    "settle": _settle,
    "environment": _environment,
    "environments": _environments,
    "reap": _reap,
    "give": _give,
    "take": _take,
    "service": _service,
}
