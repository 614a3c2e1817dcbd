"""Collect what AWS and the nodes recorded about a cluster, and store it before a failed `up` deletes its stack."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx import state_files
from phalanx.aws import change_sets, log_groups, stacks, tables, vpcs
from phalanx.aws.inventory import drift, foreign
from phalanx.aws.model import ScalingActivity, StackEvent, StackState
from phalanx.cluster import cluster_record as store
from phalanx.cluster.stack import Lacking, read_lacking, read_roster
from phalanx.cluster.why import Evidence, losses
from phalanx.errors import PhalanxError
from phalanx.plan.vpc_endpoints import NEEDED
from phalanx.template.network import endpoint_titles

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_FILE = "evidence.json"
# What a stack that was rolled back still says of its groups, whose names do not depend on it.
_GROUPS = ("head", "workers")
_RECENT_S = 3600.0
# What begins an operation of a stack. A rollback begins none: its cause is that of the operation which it takes back.
_BEGINS = re.compile(r"(CREATE|UPDATE|IMPORT|DELETE)_IN_PROGRESS")
# What only a private cluster in its own VPC has, what only a public one has, and what comes after all endpoints.
_PRIVATE, _PUBLIC, _LAST = "EndpointSecurityGroup", "HeadSecurityGroup", "HeadGroup"


def collect(cloud: Aws, state: StackState, verdict: str = "", with_logs: bool = True) -> Evidence:
    """Return all evidence about a stack that still exists. Raises CloudError."""
    resources = stacks.resources(cloud, state.stack_id)
    made = {one.logical_id: one.physical_id for one in resources}
    of_head, of_workers = (_activities(cloud, state, role) for role in _GROUPS)
    table, running = made.get("RosterTable", ""), cloud.machines.running(state.name)
    roster = read_roster(cloud, table) if table else None
    names = {one.instance_id: f"{'the head ' * one.head}{one.name}" for one in roster.members} if roster else {}
    did = tuple(sorted([*of_head, *of_workers], key=lambda one: one.began_s, reverse=True))
    progress = tables.item(cloud, table, "progress") if table and roster is None else None
    head = (progress or {}).get("head", "")
    lacking = read_lacking(cloud, table) if roster else Lacking()
    events = stacks.events(cloud, state.stack_id, None)
    if not verdict and any(one.is_unexplained for one in events) and not state.ready:
        verdict = "\n".join(map(str, change_sets.of_creation(cloud, state.stack_id)))
    return Evidence(
        status=state.status,
        verdict=verdict or (running.ended if running else ""),
        events=_failures(events, state),
        activities=did,
        lost=losses(did, names, time.time() - _RECENT_S) if state.ready else (),
        unlaunched="HeadGroup" in made and not of_head,
        full=lacking.room,
        hung=lacking.shared,
        missing=tuple(one.reason for one in roster.missing) if roster else (),
        drift=tuple(drift.find(cloud, resources)) if state.creating or state.ready else (),
        progress={"step": progress.get(head, "")} if progress else None,
        logs=log_groups.read(cloud, made["LogGroup"]) if with_logs and "LogGroup" in made else {},
        without_endpoint=_without_endpoint(cloud, state, made),
        stopped=running is not None and running.stopped and not running.ended and state.ready,
    )


def _activities(cloud: Aws, state: StackState, role: str) -> list[ScalingActivity]:
    """Return what a group of the stack did.

    Earlier clusters of this name had groups of the same name in Auto Scaling. One of EMR's may be older than its stack.
    """
    did = cloud.machines.activities(f"{state.name}-{role}")
    return [one for one in did if one.source != ScalingActivity.source or one.began_s >= state.created_s]


def _failures(events: Sequence[StackEvent], state: StackState) -> tuple[StackEvent, ...]:
    """Return what failed in the stack's last operation.

    While a stack is being deleted and nothing of that has failed, the operation before shows why.
    """
    operations: list[list[StackEvent]] = [[]]
    for event in events:
        if event.physical_id == state.stack_id and _BEGINS.fullmatch(event.status):
            operations.append([])
        if event.failed:
            operations[-1].append(event)
    is_going = state.status == "DELETE_IN_PROGRESS" and not operations[-1]
    return tuple(operations[-2:][0] if is_going else operations[-1])


def _without_endpoint(cloud: Aws, state: StackState, made: Mapping[str, str]) -> tuple[str, ...]:
    """Return the services that nodes of a private cluster call and that have no endpoint.

    Of a stack that was rolled back, only the names of its resources are left.
    """
    is_theirs = "Vpc" in state.parameters and _PUBLIC not in made
    if not (is_theirs or _PRIVATE in made) or _LAST not in made:
        return ()
    there = [service for service, title in endpoint_titles(NEEDED).items() if title in made]
    if is_theirs:
        return _without_any(cloud, state, [] if state.ready else there)
    present = foreign.services(cloud, made["Vpc"]) if state.ready else there
    return tuple(service for service in NEEDED if service not in present or service not in there)


def _without_any(cloud: Aws, state: StackState, gone: Sequence[str]) -> tuple[str, ...]:
    """Return those that neither the user's VPC has nor, before it was rolled back, the stack had made."""
    given = state.parameters
    subnets = tuple(given[name] for name in ("HeadSubnet", "PrivateSubnet") if name in given)
    present = vpcs.services(cloud, given["Vpc"], subnets) if subnets else None
    return () if present is None else tuple(one for one in NEEDED if one not in (*present, *gone))


def keep(cluster: store.Cluster, evidence: Evidence) -> None:
    """Store the evidence of a failed creation beside its boot logs."""
    state_files.write_private(cluster.directory / store.BOOT_LOGS / _FILE, evidence.to_json())


def failed_creations() -> list[str]:
    """Return the names of clusters of whose failed creation there is evidence."""
    found = (state_files.state_directory() / "clusters").glob(f"*/{store.BOOT_LOGS}/{_FILE}")
    return sorted(path.parents[1].name for path in found)


def kept(name: str) -> Evidence | None:
    """Return the evidence of the last failed creation of that name; None without any."""
    path = state_files.cluster_directory(name) / store.BOOT_LOGS / _FILE
    try:
        return Evidence.from_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PhalanxError(
            f"{path} is damaged: {error}", "Delete it, and run `phalanx up` again.", code="damaged-record"
        ) from error
