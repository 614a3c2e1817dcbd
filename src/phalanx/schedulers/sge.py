"""Grid Engine: qsub holds slots of a parallel environment, `qrsh -inherit` starts a starter on each host."""

from __future__ import annotations

import os
import pwd
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, Request, Standing
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.runner.batch.scheduling import Call

NAME = "sge"
SUMMARY = "Grid Engine's qsub and qrsh"
# With it (and three others) Open MPI would start its daemons by qrsh.
HIDDEN = ("PE_HOSTFILE",)
SHOWN = ()
NODE_INDEX = ""
# The first is what Univa's and its heirs' resource maps set ("gpu0 gpu1"); the last, what sites' own prologs do.
GPUS = ("SGE_HGR_gpu", "SGE_HGR_GPU", "SGE_HGR_gpus", "CUDA_VISIBLE_DEVICES")

_SPREADS = ("$round_robin", "$fill_up")


def arguments(request: Request, environment: str | None) -> list[str]:
    """qsub's command line. `-w e`: refuse now what no host could ever take, instead of queueing it for ever."""
    fixed = ["qsub", "-terse", "-N", request.name, "-j", "y", "-o", request.log, "-wd", request.directory]
    fixed += ["-S", "/bin/sh", "-r", "n", "-w", "e", "-V"]
    shape = ["-pe", environment, str(request.processes)] if environment else []
    return [*fixed, *shape, *request.options]


def script(request: Request) -> str:
    """What runs on the first host: a starter there, and one as a task of the job on each other host."""
    attend = request.attend('"$JOB_ID"', '"$(wc -l <"$hosts")"', '"$count"')
    # A host that several queues gave slots of stands there several times.
    sums = "awk '{ n[$1] += $2 } END { for (host in n) print host, n[host] }' \"$PE_HOSTFILE\""
    # -V takes this host's variables along; what is granted of its GPUs is no other host's. A login shell (-noshell:
    # none) would take the words apart again.
    without = "".join(f" -u {name}" for name in GPUS)
    return f"""#!/bin/sh
hosts=$TMPDIR/hosts
{sums} >"$hosts"
while read -r host count; do
    if [ "$host" = "$HOSTNAME" ]; then
        {attend} </dev/null &
    else
        env{without} qrsh -inherit -noshell -nostdin -V "$host" {attend} </dev/null &
    fi
done <"$hosts"
wait
"""


def submit(request: Request, call: Call) -> str:
    """Hand it in; returns Grid Engine's number for it."""
    environment = None if "-pe" in request.options else choose(request, environments(call))
    return call(arguments(request, environment), script(request)).split()[-1]


def environments(call: Call) -> dict[str, dict[str, str]]:
    """The parallel environments that there are, by name: each with its settings."""
    names = call(["qconf", "-spl"], "").split()
    return {name: settings(call(["qconf", "-sp", name], "")) for name in names}


def settings(text: str) -> dict[str, str]:
    """NAME and value a line."""
    pairs = (line.split(None, 1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def choose(request: Request, found: Mapping[str, Mapping[str, str]]) -> str:
    """The environment whose rule places the job as it is meant. Raises RefusedError when there is none."""
    rules = {name: one.get("allocation_rule", "") for name, one in found.items() if one.get("control_slaves") == "TRUE"}
    wanted = _SPREADS if request.anywhere else (str(request.per_node), *_SPREADS)
    for rule in wanted:
        if rule in rules.values():
            return next(name for name in rules if rules[name] == rule)
    there = ", ".join(f"{name} ({one.get('allocation_rule')})" for name, one in found.items()) or "none"
    raise RefusedError(
        f"sge has no parallel environment with control_slaves TRUE and allocation_rule {' or '.join(wanted)}; "
        f"there are: {there}\nName one: --via-option '-pe NAME {request.processes}'."
    )


def look(allocation: str, call: Call) -> Standing:
    """As qstat lists it; what qstat lists no longer has ended, and the accounts may know how."""
    user = pwd.getpwuid(os.getuid()).pw_name
    found = standing(call(["qstat", "-u", user, "-xml"], ""), allocation)
    if found.phase != ENDED:
        return found
    try:
        return account(call(["qacct", "-j", allocation], ""))
    except RefusedError:
        return Standing(ENDED, "it was deleted, or its time was over", killed=True)


def standing(text: str, allocation: str) -> Standing:
    """From qstat's XML: "qw" waits, "r" runs, "dr" is being deleted, "E" can't be started."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise RefusedError(f"qstat answered no XML ({error}): '{text[:80].strip()}'") from None
    for job in root.iter("job_list"):
        if job.findtext("JB_job_number") == allocation:
            return _listed(job.findtext("state") or "", allocation)
    return Standing(ENDED)


def _listed(state: str, allocation: str) -> Standing:
    if "E" in state:
        return Standing(QUEUED, f"{state}: `qstat -j {allocation}` says why; `qmod -cj {allocation}` tries again")
    if "q" in state:
        return Standing(QUEUED, state)
    return Standing(HELD, "being deleted" if "d" in state else "running")


def account(text: str) -> Standing:
    """From qacct's record: "failed" is 0 for a job that ended by itself."""
    fields = settings(text)
    failed = fields.get("failed", "0")
    code, _, words = (part.strip() for part in failed.partition(":"))
    if code == "0":
        return Standing(ENDED, "its script ended")
    # What qdel ends is told so, too.
    text = "deleted, or killed at a limit" if words == "assumedly after job" else words
    return Standing(ENDED, f"{text} (failed {code})", killed=True)


def cancel(allocation: str, call: Call) -> None:
    """End it, queued or running."""
    call(["qdel", allocation], "")
