"""Grid Engine: qsub reserves slots of a parallel environment, and `qrsh -inherit` runs a starter on each host."""

from __future__ import annotations

import os
import pwd
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, AllocationStatus, Request
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.runner.batch.scheduling import Call

NAME = "sge"
SUMMARY = "Grid Engine's qsub and qrsh"
# With this variable (and three others), Open MPI would start its daemons by qrsh.
HIDDEN = ("PE_HOSTFILE",)
SHOWN = ()
NODE_INDEX = ""
# The resource maps of Univa and its successors set the first ("gpu0 gpu1"), sites' own prologs the last.
GPUS = ("SGE_HGR_gpu", "SGE_HGR_GPU", "SGE_HGR_gpus", "CUDA_VISIBLE_DEVICES")

_SPREADS = ("$round_robin", "$fill_up")


def arguments(request: Request, environment: str | None) -> list[str]:
    """Build qsub's command line. `-w e` refuses at once what no host could ever run, instead of queueing it."""
    fixed = ["qsub", "-terse", "-N", request.name, "-j", "y", "-o", request.log, "-wd", request.directory]
    fixed += ["-S", "/bin/sh", "-r", "n", "-w", "e", "-V"]
    shape = ["-pe", environment, str(request.processes)] if environment else []
    shape += ["-l", f"h_rt={request.limit_s}"] if request.limit_s else []
    return [*fixed, *shape, *request.options]


def script(request: Request) -> str:
    """Write the script for the first host: it runs a starter there, and one as a task on each other host."""
    attend = request.attend('"$JOB_ID"', '"$(wc -l <"$hosts")"', '"$count"')
    # A host with slots from several queues is listed several times.
    sums = "awk '{ n[$1] += $2 } END { for (host in n) print host, n[host] }' \"$PE_HOSTFILE\""
    # -V passes this host's variables on, but its granted GPUs are not the other hosts'. -noshell: a login shell would
    # split the words again.
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
    """Submit the request; return Grid Engine's number for it."""
    environment = None if "-pe" in request.options else choose(request, environments(call))
    return call(arguments(request, environment), script(request)).strip().rpartition(" ")[2]


def environments(call: Call) -> dict[str, dict[str, str]]:
    """Return the parallel environments by name, each with its settings."""
    names = call(["qconf", "-spl"], "").split()
    return {name: settings(call(["qconf", "-sp", name], "")) for name in names}


def settings(text: str) -> dict[str, str]:
    """Parse lines of a name and a value."""
    pairs = (line.split(None, 1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def choose(request: Request, found: Mapping[str, Mapping[str, str]]) -> str:
    """Choose the environment whose rule places the job as requested. Raises RefusedError when there is none."""
    rules = {name: one.get("allocation_rule", "") for name, one in found.items() if one.get("control_slaves") == "TRUE"}
    wanted = _SPREADS if request.anywhere else (str(request.per_node), *_SPREADS)
    for rule in wanted:
        if rule in rules.values():
            return next(name for name in rules if rules[name] == rule)
    listed = ", ".join(f"{name} ({one.get('allocation_rule')})" for name, one in found.items()) or "none"
    raise RefusedError(
        f"sge has no parallel environment with control_slaves TRUE and allocation_rule {' or '.join(wanted)}; "
        f"it has: {listed}\nName one: --via-option '-pe NAME {request.processes}'.",
        code="scheduler",
    )


def status(allocation: str, call: Call) -> AllocationStatus:
    """Return the state in qstat's list; a job that is no longer listed has ended, and qacct may know how."""
    user = pwd.getpwuid(os.getuid()).pw_name
    found = read_status(call(["qstat", "-u", user, "-xml"], ""), allocation)
    if found.phase != ENDED:
        return found
    try:
        return account(call(["qacct", "-j", allocation], ""))
    except RefusedError:
        return AllocationStatus(ENDED, "it was deleted, or exceeded its time limit", killed=True)


def read_status(text: str, allocation: str) -> AllocationStatus:
    """Parse qstat's XML: "qw" waits, "r" runs, "dr" is being deleted, "E" can't be started."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise RefusedError(f"qstat did not print XML ({error}): '{text[:80].strip()}'", code="scheduler") from None
    for job in root.iter("job_list"):
        if job.findtext("JB_job_number") == allocation:
            return _listed(job.findtext("state") or "", allocation)
    return AllocationStatus(ENDED)


def _listed(state: str, allocation: str) -> AllocationStatus:
    if "E" in state:
        return AllocationStatus(
            QUEUED, f"{state}: `qstat -j {allocation}` says why; `qmod -cj {allocation}` tries again"
        )
    if "q" in state:
        return AllocationStatus(QUEUED, state)
    return AllocationStatus(HELD, "being deleted" if "d" in state else "running")


def account(text: str) -> AllocationStatus:
    """Parse qacct's record: "failed" is 0 for a job that ended by itself."""
    fields = settings(text)
    failed = fields.get("failed", "0")
    code, _, reason = (part.strip() for part in failed.partition(":"))
    if code == "0":
        return AllocationStatus(ENDED, "its script ended")
    # Grid Engine reports this for jobs that qdel ended, too.
    cause = "deleted, or killed at a limit" if reason == "assumedly after job" else reason
    return AllocationStatus(ENDED, f"{cause} (failed {code})", killed=True)


def cancel(allocation: str, call: Call) -> None:
    """Delete the job, queued or running."""
    call(["qdel", allocation], "")
