"""The verbs of runner.pyz. Each imports only what it needs: a keeper or starter is up in 30 ms."""

from __future__ import annotations

import json
import sys
from typing import List


def main(arguments: List[str]) -> int:
    """Run one verb; returns an exit status."""
    verb, *rest = arguments
    return _VERBS[verb](rest)


def _submit(words: List[str]) -> int:
    from phalanx.node.runner.submit import submit

    return submit(words[0], detach="--detach" in words)


def _follow(words: List[str]) -> int:
    """DIRECTORY POSITION|end [--no-wait] [--process LABEL]"""
    from phalanx.node.runner.follow import follow

    process = words[words.index("--process") + 1] if "--process" in words else None
    at_end = words[1] == "end"
    return follow(words[0], 0 if at_end else int(words[1]), "--no-wait" not in words, process, at_end)


def _stop(words: List[str]) -> int:
    from phalanx.node.runner.stop import stop

    return stop(words[0], float(words[1]))


def _list(words: List[str]) -> int:
    from phalanx.node.runner.listing import list_jobs

    return list_jobs(words[0])


def _starter(words: List[str]) -> int:
    from phalanx.node.runner.starter import main as serve

    serve(words[0], words[1])
    return 0


def _rank(words: List[str]) -> int:
    from phalanx.node.runner.keeper import keep

    keep(words[0], words[1:])


def _agent(words: List[str]) -> int:
    from phalanx.node.runner.agent import ask

    ask(words)


def _reap(words: List[str]) -> int:
    from phalanx.node.runner.reaper import sweep

    print(json.dumps(sweep(words[0])))
    return 0


_VERBS = {
    "submit": _submit,
    "follow": _follow,
    "stop": _stop,
    "list": _list,
    "starter": _starter,
    "rank": _rank,
    "agent": _agent,
    "reap": _reap,
}


def entry() -> None:
    """Called by the zipapp's __main__."""
    sys.exit(main(sys.argv[1:]))
