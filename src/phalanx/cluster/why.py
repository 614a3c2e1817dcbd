"""Name one cause for a cluster that failed or is stuck, from all that AWS and the nodes recorded. Pure.

A failed `up` deletes its stack, so that it stores the evidence beside the boot logs before that.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from phalanx.aws.model import ScalingActivity, StackEvent
from phalanx.cluster import causes
from phalanx.cluster.causes import Cause
from phalanx.cluster.stack import describe_cause
from phalanx.plan import quotas
from phalanx.plan.quotas import Quota

_ADDRESS = re.compile(r"[0-9.]+")
# Why Auto Scaling ended a machine that nobody wanted to end (docs/aws-behaviour.md 3.16).
_LOSSES = {
    r"EC2 health check": "its machine was stopped, terminated or impaired",
    r"user health-check": "it gave no sign of life",
    r"(?i)spot|rebalance|interruption": "AWS took its Spot instance back",
}
_LOST_ID = re.compile(r"(?:Terminating EC2 instance: )?(i-\w+)(?:: (.*))?")
_WAITED = re.compile(r"WaitCondition timed out", re.IGNORECASE)


@dataclass(frozen=True)
class Evidence:
    """What is known about a cluster: its stack's status and events, its groups' activities, newest first, and logs.

    `verdict` is what `up` concluded; `missing` are the roster's reasons; `progress` is the head's step and when it was
    reported; `logs` are by stream, a node's under its address; `stopped`: the groups are at 0; `drift` is what people
    removed by hand. `without_endpoint` are the services that a private cluster's nodes call and don't reach.
    `closed`: why jobs can't write at the top of the shared directory, of a cluster that has nothing else; `stalled`:
    a job that stands still, and where its ranks are, of a cluster that does not even have that.
    `unlaunched`: the head's group did nothing at all. `lost` are sentences about nodes that were lost in the last hour.
    `full` are the names of nodes whose own disks are full, `hung` of those whose shared directory does not answer.
    """

    status: str = ""
    verdict: str = ""
    events: tuple[StackEvent, ...] = ()
    activities: tuple[ScalingActivity, ...] = ()
    missing: tuple[str, ...] = ()
    progress: Mapping[str, str] | None = None
    logs: Mapping[str, str] | None = None
    stopped: bool = False
    drift: tuple[str, ...] = ()
    without_endpoint: tuple[str, ...] = ()
    unlaunched: bool = False
    lost: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    closed: str = ""
    stalled: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Read what `to_json` wrote. Raises ValueError, TypeError or KeyError."""
        given = json.loads(text)
        events = tuple(StackEvent(**event) for event in given.pop("events"))
        activities = tuple(ScalingActivity(**activity) for activity in given.pop("activities"))
        names = ("missing", "drift", "without_endpoint", "lost", "full", "hung")
        lists = {name: tuple(given[name]) for name in names}
        return cls(**{**given, **lists, "events": events, "activities": activities})


@dataclass(frozen=True)
class Finding:
    """A statement that says what went wrong, and where it was found."""

    source: str
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """The cause, None if nothing is wrong, and the findings that led to it, the decisive one first."""

    cause: Cause | None
    findings: tuple[Finding, ...]


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the cause that the strongest finding names; the others only support it."""
    found = list(_findings(evidence))
    if not found:
        return Diagnosis(None, ())
    named = [(causes.name(one.text), one) for one in found]
    # The first that is known and not only a symptom: a head that never spoke has a reason elsewhere, if there is one.
    known = [pair for pair in named if pair[0] not in (causes.UNKNOWN, causes.MUTE, causes.ENDED)]
    cause, decisive = next(iter(known or [pair for pair in named if pair[0] is not causes.UNKNOWN] or named))
    return Diagnosis(cause, (decisive, *(one for one in found if one is not decisive)))


def with_quota(diagnosis: Diagnosis, asked: Iterable[Quota], region: str) -> Diagnosis:
    """Add how the quota stands that the cause names, after the decisive finding; of several, the scarcest."""
    named = diagnosis.cause.quota if diagnosis.cause else ""
    found = [one for one in asked if named and one.limit is not None and re.search(named, one.name)]
    if not found:
        return diagnosis
    scarcest = min(found, key=lambda one: one.free - one.needed)
    decisive, *others = diagnosis.findings
    added = Finding("Service Quotas", quotas.state(scarcest, region))
    return replace(diagnosis, findings=(decisive, added, *others))


def _findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield what speaks of a failure, the most direct first."""
    if evidence.stopped:
        yield from _stops(evidence.activities)
        return
    yield from (Finding("what the stack made", lost) for lost in evidence.drift)
    if evidence.without_endpoint:
        services = ", ".join(evidence.without_endpoint)
        yield Finding(
            "network", f"the VPC has no endpoint for {services}, which nodes call, and no way to the internet"
        )
    if evidence.verdict:
        yield Finding("up", evidence.verdict)
    yield from (Finding("stack", describe_cause(event)) for event in _failures(evidence))
    if evidence.full:
        yield Finding("nodes", f"the node's own disk is full: {', '.join(evidence.full)}")
    if evidence.hung:
        yield Finding("nodes", f"the shared directory does not answer on {', '.join(evidence.hung)}")
    yield from (Finding("roster", reason) for reason in dict.fromkeys(evidence.missing))
    yield from (Finding("Auto Scaling", text) for text in evidence.lost)
    if evidence.closed:
        yield Finding("head", evidence.closed)
    if evidence.stalled:
        yield Finding("head", evidence.stalled)
    if _is_ready(evidence) and not evidence.missing:
        return
    yield from _refusals(evidence.activities)
    if evidence.unlaunched and _waited_in_vain(evidence):
        yield Finding("Auto Scaling", "launched no machine for the head, and gave no reason")
    yield from _from_logs(evidence.logs or {})
    if evidence.progress and not _is_ready(evidence) and evidence.progress.get("step"):
        yield Finding("head", f"its last step was '{evidence.progress['step']}'")


def _failures(evidence: Evidence) -> Sequence[StackEvent]:
    """Return what failed first in the stack's last operation, and what stopped its rollback.

    Of a good operation, only parts that it no longer needed can have failed.
    """
    if evidence.status.startswith(("CREATE_COMPLETE", "UPDATE_COMPLETE")):
        return ()
    failed = [event for event in evidence.events if event.is_cause or event.status == "DELETE_FAILED"]
    return failed if evidence.status.endswith("ROLLBACK_FAILED") else failed[:1]


def _stops(activities: Sequence[ScalingActivity]) -> Iterator[Finding]:
    """Yield why the groups are at 0: the newest activity that ended an instance names it."""
    ends = (one.cause for one in activities if one.description.startswith("Terminating"))
    yield Finding("Auto Scaling", next(ends, "both groups are at 0, and no activity says why"))


def _refusals(activities: Sequence[ScalingActivity]) -> Iterator[Finding]:
    """Yield each reason of failed launches once; failures before a launch that worked no longer matter."""
    since = next((n for n, one in enumerate(activities) if _has_launched(one)), len(activities))
    failed = [one for one in activities[:since] if one.status in ("Failed", "Cancelled")]
    sources = {one.message or one.description: one.source for one in failed}
    yield from (Finding(source, text) for text, source in sources.items())


def losses(activities: Sequence[ScalingActivity], names: Mapping[str, str], since_s: float) -> tuple[str, ...]:
    """Return a sentence about each node that was lost since then, the newest first.

    `names` are those of the present nodes, by instance: a replacement has its predecessor's.
    """
    ended = [
        (one, found, why) for one in activities if (found := _LOST_ID.match(one.description)) and (why := _loss(one))
    ]
    launches = [one for one in reversed(activities) if _has_launched(one) and "needing to be replaced" in one.cause]
    sentences = []
    for one, found, why in reversed(ended):
        later = next((launch for launch in launches if launch.began_s >= one.began_s), None)
        if later:
            launches.remove(later)
        new = later.description.rpartition(" ")[2] if later else ""
        if (one.ended_s or one.began_s) >= since_s:
            named = f"{names[new]} ({found[1]})" if new in names else found[1]
            at = time.strftime("%H:%M UTC", time.gmtime(one.began_s))
            sentences.append(f"{named} was lost at {at}: {why}{f'; {new} has its place' if new in names else ''}")
    return tuple(reversed(sentences))


def _loss(activity: ScalingActivity) -> str:
    """Return why a machine was lost; "" if somebody wanted it to end."""
    if activity.source != ScalingActivity.source:
        return activity.message.partition(": ")[2]
    if not activity.description.startswith("Terminating"):
        return ""
    return next((why for pattern, why in _LOSSES.items() if re.search(pattern, activity.cause)), "")


def _has_launched(activity: ScalingActivity) -> bool:
    return activity.status == "Successful" and activity.description.startswith("Launching")


def _from_logs(logs: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the failures in boot logs, and in the function's log, whose stream has no address for a name."""
    for stream, text in sorted(logs.items()):
        lines = text.splitlines()
        if _ADDRESS.fullmatch(stream):
            found = [line for line in lines if "failed" in line or "trying again" in line][-1:]
            yield from (Finding(f"boot log of {stream}", line) for line in found)
        else:
            found = [line for line in lines if re.search(r"\[ERROR\]|Task timed out|could not be launched", line)][-1:]
            yield from (Finding("function", line) for line in found)


def _is_ready(evidence: Evidence) -> bool:
    return evidence.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")


def _waited_in_vain(evidence: Evidence) -> bool:
    return any(_WAITED.search(event.reason) for event in evidence.events)
