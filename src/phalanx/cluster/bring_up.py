"""Bring a cluster up, whatever was there before: made, followed, found ready, or buried with the reason told."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.clouds.protocol import Cloud, SshRoute, StackState
from phalanx.cluster import cluster_record as store
from phalanx.cluster import ssh_hosts
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.delivery import bucket_for, described
from phalanx.cluster.stack import (
    Creation,
    Deletion,
    Progress,
    Stack,
    deploy,
    file_systems_of,
    read_authority,
    read_roster,
    require_ours,
)
from phalanx.errors import CloudError, ClusterError, PhalanxError, StackFailed
from phalanx.node.roster import Roster
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import warnings
from phalanx.spec.spec import ClusterSpec
from phalanx.ssh.remote import NotListening, Remote
from phalanx.template import synthesize

# Of the log streams in the group those of the nodes; the function's have other names.
_ADDRESS = re.compile(r"[0-9.]+")
_INSTANCE = re.compile("i-[0-9a-f]+")
TAIL_LINES = 20
MOST_TAILS = 3
# What a cluster that stands may be given another of.
_CHANGE_NOTHING = ("keep", "bucket")
_LETS_IN_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_NOTHING_TO_LOSE = frozenset({"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"})


@dataclass(frozen=True)
class Note:
    """Something that the user should know, in a sentence."""

    text: str


Step = Progress | Note


@dataclass(frozen=True)
class Up:
    """A cluster that is ready. `already`: it was before; nothing was made."""

    cluster: Cluster
    roster: Roster
    already: bool


class BringUp:
    """Make the cluster, follow its creation, or find it ready. Iterate `steps()`, then read `result`."""

    def __init__(self, cloud: Cloud, spec: ClusterSpec) -> None:
        self.cloud, self.spec = cloud, spec
        self.result: Up | None = None
        self.stack: Stack | None = None

    def steps(self) -> Iterator[Step]:
        """Progress as it comes. Raises StackFailed when all of it had to be deleted again, CloudError when refused."""
        yield from self._bring_up()
        yield from self._log_in()

    def _bring_up(self) -> Iterator[Step]:
        yield from self._clear_the_name()
        found = self.cloud.describe_stack(self.spec.name)
        if found is None:
            yield from self._create()
            return
        self._require_same(found)
        if self.spec.bucket:
            self.cloud.clear_bucket(self.spec.bucket, found.name)
        if found.ready:
            self._finish(found, already=True)
        else:
            yield Note(f"stack {found.name} is being created already; following it")
            yield from self._follow(Stack(self.cloud, found.name, found.stack_id))

    def _clear_the_name(self) -> Iterator[Step]:
        """Leave under the name either nothing or a stack of ours that is ready or on its way up."""
        found = self.cloud.describe_stack(self.spec.name)
        if found is None:
            return
        require_ours(found)
        if found.ready or found.creating:
            return
        stack = Stack(self.cloud, found.name, found.stack_id)
        yield from self._let_it_rest(found, stack)
        yield Note(f"an earlier attempt left stack {found.name} as {found.status}; removing its remains first")
        yield from Deletion(stack).steps()

    def _let_it_rest(self, found: StackState, stack: Stack) -> Iterator[Step]:
        if found.status == "ROLLBACK_IN_PROGRESS":
            yield Note(f"an earlier attempt to create {found.name} is being rolled back; waiting for it")
            yield from Creation(stack).steps()
        elif found.status not in _NOTHING_TO_LOSE and not found.status.startswith("DELETE"):
            raise CloudError(
                f"stack {found.name} is {found.status}; `up` can't go on from there",
                "Wait until it is at rest, or remove it with `phalanx down`.",
            )

    def _create(self) -> Iterator[Step]:
        key = store.make_key(self.spec.name)
        # Written before the stack is asked for: whenever `up` is killed, the next one finds the key to go on with.
        cluster = self._record().save()
        try:
            plan = make_plan(self.spec, self.cloud.facts(self.spec, key))
            if plan.facts.kept_file_system:
                yield Note(f"{self.spec.shared} goes on with what `down` kept: {plan.facts.kept_file_system}")
            yield from (Note(f"warning: {warning}") for warning in warnings(plan))
            template = synthesize(plan)
            if bucket := bucket_for(plan, template):
                yield Note(f"the template: {described(template, bucket)}")
            stack = self._deploy(plan, template)
        except PhalanxError:
            cluster.forget()
            raise
        yield from self._follow(stack)

    def _log_in(self) -> Iterator[Step]:
        """Have the connection that `run` and `ssh` will use; a head out of ssh's reach is told before the first job."""
        assert self.result is not None
        try:
            yield from _until_let_in(self.result.cluster.remote())
        except ClusterError as error:
            yield Note(f"warning: {error.message}. {error.hint}")

    def _deploy(self, plan: Plan, template: str) -> Stack:
        """Of two `up` at once one creates the stack; the other is refused, and follows it."""
        try:
            return deploy(self.cloud, plan, template)
        except CloudError:
            found = self.cloud.describe_stack(self.spec.name)
            if found is None or not found.creating or not found.ours:
                raise
            self._require_same(found)
            return Stack(self.cloud, found.name, found.stack_id)

    def _follow(self, stack: Stack) -> Iterator[Step]:
        self.stack = stack
        cluster = self._record(stack.stack_id).save()
        creation = Creation(stack)
        yield from creation.steps()
        if creation.state is None or not creation.ready:
            yield from self._bury(cluster, creation)
        else:
            self._finish(creation.state, already=False)

    def _bury(self, cluster: Cluster, creation: Creation) -> Iterator[Step]:
        """Save the evidence, free the name, tell the reason."""
        logs, failure = creation.boot_logs(), creation.failure()
        saved = save_boot_logs(cluster, logs)
        reason = "\n".join([f"cluster {self.spec.name} did not come up:", failure, *boot_log_tails(logs, failure)])
        try:
            # Nobody has seen what it made, nor could use it.
            yield from Deletion(creation.stack, file_systems_of(creation.stack)).steps()
        except CloudError as error:
            raise StackFailed(f"{reason}\n\nWhat it had made is not all gone: {error.message}", error.hint) from error
        cluster.forget(keep_logs=True)
        hint = "Everything was rolled back and its stack deleted: nothing is left, the name is free."
        raise StackFailed(reason, f"{hint}\nBoot logs: {saved}" if saved else hint)

    def _require_same(self, found: StackState) -> None:
        """A stack that exists can only be gone on with when it has our key and the settings that are wanted now."""
        mine = store.public_key(found.name)
        theirs = found.parameters.get("SshPublicKey", "")
        if not mine or (theirs and theirs.split()[:2] != mine.split()[:2]):
            raise ClusterError(
                f"cluster {found.name} exists, but was made with another machine's key",
                "Use the machine that ran `phalanx up`, or `phalanx down` and `phalanx up` here.",
            )
        changes = self._changes(found)
        if changes:
            hint = "`phalanx down` first, or choose another name for the new one."
            if changes.keys() == {"nodes"}:
                hint = f"`phalanx scale {self.spec.nodes}` changes the number of nodes."
            what = "; ".join(f"{key}: {before} → {now}" for key, (before, now) in changes.items())
            raise ClusterError(f"cluster {found.name} exists with other settings: {what}", hint)

    def _changes(self, found: StackState) -> dict[str, tuple[object, object]]:
        """Settings that the cluster has and the file wants otherwise: (before, now) by key."""
        try:
            cluster = Cluster.load(found.name)
        except ClusterError:
            return {}
        wanted = self._settings()
        changes = {
            key: (before, wanted[key])
            for key, before in cluster.spec.items()
            if key in wanted and key not in _CHANGE_NOTHING and before != wanted[key]
        }
        if "nodes" in changes and self._asked_for(cluster) == self.spec.nodes:
            del changes["nodes"]
        return changes

    def _asked_for(self, cluster: Cluster) -> int | None:
        """How many nodes are asked for by now: `phalanx scale` changes that, and the file may follow."""
        roster = read_roster(self.cloud, cluster.table) if cluster.table else None
        return roster.requested if roster else None

    def _finish(self, state: StackState, already: bool) -> None:
        """Write down how the ready cluster is reached."""
        table = state.outputs["RosterTable"]
        roster = read_roster(self.cloud, table)
        if roster is None:
            raise CloudError(
                f"the roster of cluster {state.name} is empty", "`phalanx down` and `phalanx up` make it anew."
            )
        route = self.cloud.ssh_route()
        ready = self._ready_record(state, roster, route)
        store.write_ssh_config(ready, read_authority(self.cloud, table), route)
        ssh_hosts.write(ready)
        self.result = Up(ready.save(), roster, already)

    def _ready_record(self, state: StackState, roster: Roster, route: SshRoute) -> Cluster:
        return Cluster(
            name=state.name,
            cloud=self.cloud.name,
            region=self.cloud.region,
            stack_id=state.stack_id,
            head_address=state.outputs["HeadAddress"],
            shared=self.spec.shared,
            slots=roster.head.slots,
            nodes=len(roster.nodes),
            table=state.outputs["RosterTable"],
            admin_user=_admin_user(state.parameters.get("Image", "")),
            accounts_separated=self.cloud.accounts_separated(),
            created_s=state.created_s,
            worker_host=route.worker_host,
            worker_options=route.worker_options,
            spec=self._settings(),
        )

    def _record(self, stack_id: str = "") -> Cluster:
        return Cluster(self.spec.name, self.cloud.name, self.cloud.region, stack_id, spec=self._settings())

    def _settings(self) -> dict[str, object]:
        return asdict(self.spec)


def _until_let_in(remote: Remote) -> Iterator[Note]:
    """A function moves the Elastic IP to the head: that may come a moment after the head is ready."""
    for number, pause_s in enumerate(_LETS_IN_AFTER_S):
        try:
            remote.connect()
            return
        except NotListening as error:
            if number == 0:
                yield Note(f"waiting for the head to let us in: {error.message}")
        time.sleep(pause_s)
    remote.connect()


def save_boot_logs(cluster: Cluster, logs: Mapping[str, str]) -> Path | None:
    """Keep the logs in the cluster's directory, a file for each stream; returns where, None without any."""
    directory = cluster.directory / store.BOOT_LOGS
    for stream, text in logs.items():
        store.write_private(directory / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', stream)}.log", text + "\n")
    return directory if logs else None


def boot_log_tails(logs: Mapping[str, str], reason: str) -> list[str]:
    """The last lines of the nodes that the reason names; without a name, of the first few."""
    nodes = sorted(filter(_ADDRESS.fullmatch, logs))
    named = [node for node in nodes if set(_INSTANCE.findall(reason)) & set(_INSTANCE.findall(logs[node]))]
    shown: list[str] = []
    for node in (named or nodes)[:MOST_TAILS]:
        shown += ["", f"--- the end of the boot log of {node}:", *logs[node].splitlines()[-TAIL_LINES:]]
    return shown


def _admin_user(image: str) -> str:
    """The image's own user, who can sudo (docs/aws-behaviour.md 5.8)."""
    return "ubuntu" if "ubuntu" in image else "ec2-user"
