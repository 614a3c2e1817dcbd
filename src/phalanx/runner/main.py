"""The verbs of runner.pyz. Each imports only its own modules, as each command of the command line does."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, NoReturn

    from phalanx.runner.batch.scheduling import Scheduler
    from phalanx.runner.process import Launcher


def entry(load: Callable[[str], Launcher], scheduler: Callable[[str], Scheduler]) -> NoReturn:
    """Run the verb on the command line, and refuse what a newer phalanx made.

    The zipapp's __main__ passes the launchers and the schedulers in.
    """
    # What a verb imports is kept: to look for garbage in it would take 2 to 5 ms.
    gc.set_threshold(50_000)
    try:
        sys.exit(_run(load, scheduler))
    except ValueError as error:
        from phalanx.node.validate import Newer
        from phalanx.runner.names import REFUSED_STATUS, refusal

        if not isinstance(error, Newer):
            raise
        print(refusal("newer-format", error), file=sys.stderr)
        sys.exit(REFUSED_STATUS)


def _run(load: Callable[[str], Launcher], scheduler: Callable[[str], Scheduler]) -> int:
    verb, *arguments = sys.argv[1:]
    if verb == "submit":
        os.write(1, b'{"here": true}\n')
        from phalanx.runner.plugins import Plugins
        from phalanx.runner.verbs.submit import submit

        return submit(arguments[0], Plugins(load, scheduler), "--detach" in arguments)
    if verb == "resume":
        from phalanx.runner.head.begin import resume
        from phalanx.runner.plugins import Plugins

        return resume(arguments[0], Plugins(load, scheduler))
    if verb == "attend":
        from phalanx.runner.starter.attend import attend

        return attend(scheduler(arguments[0]), arguments[1], arguments[2], int(arguments[3]), arguments[4])
    if verb == "release":
        from phalanx.runner.batch.commands import release

        return release(arguments[0], scheduler)
    return _VERBS[verb](arguments)


def _follow(arguments: List[str]) -> int:
    """DIRECTORY STACK POSITION|end|last|attempt=N [--no-wait] [--process LABEL] [--lines N]"""
    from phalanx.runner.verbs.follow import follow

    process = arguments[arguments.index("--process") + 1] if "--process" in arguments else None
    lines = int(arguments[arguments.index("--lines") + 1]) if "--lines" in arguments else None
    return follow(arguments[0], arguments[1], arguments[2], "--no-wait" not in arguments, process, lines)


def _stop(arguments: List[str]) -> int:
    from phalanx.runner.verbs.stop import stop

    return stop(arguments[0], arguments[1], float(arguments[2]))


def _label(arguments: List[str]) -> int:
    """DIRECTORY STACK CHANGE"""
    from phalanx.runner.verbs.label import label

    return label(*arguments)


def _halt(arguments: List[str]) -> int:
    from phalanx.runner.verbs.stop import halt

    return halt(arguments[0], float(arguments[1]))


def _stacks(arguments: List[str]) -> int:
    """JOB TOOLS SECONDS"""
    from phalanx.runner.verbs.inquiry import stacks

    return stacks(arguments[0], arguments[1], float(arguments[2]))


def _load(arguments: List[str]) -> int:
    """[JOB]"""
    from phalanx.runner.verbs.inquiry import load

    return load("".join(arguments))


def _list(arguments: List[str]) -> int:
    """ROOT STACK [ARRAY]"""
    from phalanx.runner.verbs.listing import list_jobs

    return list_jobs(*arguments)


def _prune(arguments: List[str]) -> int:
    """ROOT BEFORE TAGS [--remove]"""
    import json

    from phalanx.runner.verbs.prune import prune

    return prune(arguments[0], float(arguments[1]), json.loads(arguments[2]), "--remove" in arguments[3:])


def _measure(arguments: List[str]) -> int:
    from phalanx.runner.verbs.prune import measure

    return measure(arguments[0], float(arguments[1]))


def _removed(arguments: List[str]) -> int:
    from phalanx.runner.verbs.prune import removed

    return removed(arguments[0], arguments[1])


def _starter(arguments: List[str]) -> int:
    """JOB WORK [--head] [--inside]"""
    from phalanx.runner.starter import inside

    is_inside = inside.OPTION in arguments
    if is_inside or not inside.is_served(*arguments):
        from phalanx.runner.starter.guard import main as serve

        serve(arguments[0], arguments[1], "--head" in arguments, is_inside)
    return 0


def _settle(arguments: List[str]) -> int:
    from phalanx.runner.head.settle import settle_patiently

    settle_patiently(arguments[0])
    return 0


def _environment(arguments: List[str]) -> int:
    from phalanx.runner.environments.environment import bring

    return bring(arguments[0])


def _copier(arguments: List[str]) -> int:
    from phalanx.runner.verbs.copier import copy

    return copy(arguments[0])


def _environments(arguments: List[str]) -> int:
    from phalanx.runner.environments.inventory import list_environments

    return list_environments(arguments[0], "--prune" in arguments)


def _reap(arguments: List[str]) -> int:
    """JOB INSTANCE: only on this instance, not on a replacement that has its name."""
    import json

    from phalanx.runner.head.membership import successor_of
    from phalanx.runner.reaper import sweep
    from phalanx.runner.starter.scratch import Scratch
    from phalanx.runner.system import boot_id

    successor = successor_of(arguments[1])
    if successor:
        print(f"{arguments[1]} is gone, and its name is {successor}'s now", file=sys.stderr)
        return 1
    report = sweep(arguments[0])
    if not report["left"]:
        # The starter's guard removes it, unless a batch system has killed both.
        Scratch(arguments[0]).remove()
    print(json.dumps({**report, "boot_id": boot_id()}))
    return 0


def _give(arguments: List[str]) -> int:
    from phalanx.runner.verbs.porter import give

    return give(arguments[0], arguments[1])


def _take(arguments: List[str]) -> int:
    from phalanx.runner.verbs.porter import take

    return take(arguments[0], arguments[1])


def _place(arguments: List[str]) -> int:
    from phalanx.runner.verbs.porter import find_place

    return find_place(arguments[0], arguments[1], arguments[2])


def _service(arguments: List[str]) -> int:
    from phalanx.runner.verbs.service import serve

    return serve(arguments[0], arguments[1], arguments[2], arguments[3:])


def _relay(arguments: List[str]) -> int:
    from phalanx.runner.starter.attend import relay

    return relay(arguments[0], arguments[1])


_VERBS = {
    "relay": _relay,
    "follow": _follow,
    "stop": _stop,
    "halt": _halt,
    "label": _label,
    "stacks": _stacks,
    "load": _load,
    "list": _list,
    "prune": _prune,
    "measure": _measure,
    "removed": _removed,
    "starter": _starter,
    "settle": _settle,
    "environment": _environment,
    "environments": _environments,
    "copier": _copier,
    "reap": _reap,
    "give": _give,
    "place": _place,
    "take": _take,
    "service": _service,
}
