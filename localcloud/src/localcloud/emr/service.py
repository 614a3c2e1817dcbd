"""The life of EMR clusters: launched, ready, resized, repaired and terminated, each with AWS's states and reasons."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends

from localcloud.context import Context
from localcloud.ec2.fleet import Fleet
from localcloud.emr import launching, public_access, requests, security, validation
from localcloud.emr.records import READY, Cluster, Group, Life, Member, Reason, new_id
from localcloud.emr.steps import CANCELLED, PENDING, RUNNING, Step

# How long nodes of a cluster that ends may take to store the logs of what they run.
GRACE_S = 10.0
# So many nodes in a row may fail to join before EMR stops to launch more.
_MOST_FAILURES = 3
_AT_ONCE = ("USER_REQUEST", "ALL_STEPS_COMPLETED")
_ROLES = ("MASTER", "CORE", "TASK")
Settled = Callable[[str | None], None]


class Service:
    """All clusters. Everything is done with `changed` held, which wakes those that wait for a change."""

    def __init__(self, context: Context, fleet: Fleet) -> None:
        self.context = context
        self.clusters: dict[str, Cluster] = {}
        # Block public access, by region, with what is configured there.
        self.public_access: defaultdict[str, Mapping[str, Any]] = defaultdict(lambda: public_access.DEFAULT)
        self.changed = threading.Condition(threading.RLock())
        self._fleet = fleet
        self._members: dict[str, Member] = {}
        fleet.watchers.append(self._instance_changed)

    # creation

    def run(self, region: str, wanted: Mapping[str, Any], tags: dict[str, str], settled: Settled | None) -> Cluster:
        """Make a cluster of a request that was checked, and return at once."""
        life = Life("STARTING", self.context.clock.now(), Reason(message="Provisioning Amazon EC2 capacity"))
        cluster = Cluster(new_id("j"), region, self.context.account, wanted, life, tags, settled)
        cluster.protected = bool(cluster.instances.get("TerminationProtected", False))
        cluster.groups = [self._group(cluster, given) for given in requests.groups(wanted)]
        cluster.groups.sort(key=lambda group: _ROLES.index(group.role))
        self.add_steps(cluster, wanted.get("Steps") or [])
        with self.changed:
            self.clusters[cluster.id] = cluster
        self.context.spawn(self._start, cluster, name=f"start-{cluster.id}")
        return cluster

    def _group(self, cluster: Cluster, given: Mapping[str, Any]) -> Group:
        return Group(
            id=new_id("ig"),
            role=given["InstanceRole"],
            name=given.get("Name") or given["InstanceRole"].title(),
            instance_type=given["InstanceType"],
            requested=int(given["InstanceCount"]),
            market=given.get("Market", "ON_DEMAND"),
            custom_ami=given.get("CustomAmiId") or cluster.wanted.get("CustomAmiId") or "",
            life=Life("PROVISIONING", self.context.clock.now()),
            cluster=cluster,
        )

    def _start(self, cluster: Cluster) -> None:
        with self.changed:
            try:
                validation.check(self.context, cluster)
                security.arrange(cluster, launching.place(cluster))
                self._check_public_access(cluster)
                for group in cluster.groups:
                    self._fill(group)
            except validation.Invalid as problem:
                self.end(cluster, problem.reason())
            except ServiceException as problem:
                self.end(cluster, Reason(validation.CODE, problem.message))
            except Exception:
                self.end(cluster, Reason("INTERNAL_ERROR", "An internal error occurred."))
                raise

    def _check_public_access(self, cluster: Cluster) -> None:
        backend = ec2_backends[cluster.account][cluster.region]
        groups = [*cluster.master_groups, *cluster.slave_groups]
        public_access.check(self.public_access[cluster.region], backend, groups)

    def _fill(self, group: Group) -> None:
        """Launch what a group lacks. Raises EC2ClientError."""
        subnet = launching.place(group.cluster)
        while len(group.live) < group.requested:
            member = launching.launch(self.context, group.cluster, group, subnet.id)
            group.members.append(member)
            self._members[member.token] = member

    # progress

    def member(self, token: str) -> Member | None:
        """Return the member whose controller has this token."""
        return self._members.get(token)

    def advance(self, cluster: Cluster) -> None:
        """Put the cluster into the state that its groups and steps have reached."""
        for group in cluster.groups:
            if len(group.running) == group.requested == len(group.live) and group.life.state != "SUSPENDED":
                group.life.state, group.life.ready = "RUNNING", group.life.ready or self.context.clock.now()
        if not cluster.is_ending and (cluster.life.state in READY or self._all_there(cluster)):
            self._become_ready(cluster)
            self._look_at_steps(cluster)
        self.changed.notify_all()

    def _all_there(self, cluster: Cluster) -> bool:
        return all(group.life.state == "RUNNING" for group in cluster.groups)

    def _become_ready(self, cluster: Cluster) -> None:
        if cluster.life.ready is None:
            cluster.life.ready = self.context.clock.now()
            self._settle(cluster, None)

    def _settle(self, cluster: Cluster, reason: str | None) -> None:
        """Report once whether the cluster became ready."""
        settled, cluster.settled = cluster.settled, None
        if settled:
            self.context.spawn(settled, reason, name=f"settle-{cluster.id}")

    def _look_at_steps(self, cluster: Cluster) -> None:
        if any(step.is_open for step in cluster.steps):
            cluster.life.state, cluster.life.reason = "RUNNING", Reason(message="Running step")
        elif cluster.ends_without_steps:
            self.end(cluster, Reason("ALL_STEPS_COMPLETED", "Steps completed"))
        else:
            cluster.life.state, cluster.life.reason = "WAITING", Reason(message="Cluster ready to run steps.")

    def add_steps(self, cluster: Cluster, steps: list[Mapping[str, Any]]) -> list[Step]:
        """Queue steps."""
        now = self.context.clock.now()
        added = [Step(new_id("s"), step, now) for step in steps]
        cluster.steps += added
        return added

    # changes of size

    def resize(self, group: Group, count: int, chosen: list[str]) -> None:
        """Change a group's size; `chosen` are EC2's ids of instances to end first."""
        group.requested, group.failures = count, 0
        group.life.state, group.life.reason = "RESIZING", Reason()
        surplus = len(group.live) - count
        by_age = sorted(group.live, key=lambda member: (member.instance.id not in chosen, -group.members.index(member)))
        for member in by_age[: max(surplus, 0)]:
            self._end_member(member, Reason())
        self._repair(group)
        self.advance(group.cluster)

    def _repair(self, group: Group) -> None:
        """Launch what the group lacks, unless too many have failed."""
        try:
            if group.failures < _MOST_FAILURES:
                self._fill(group)
                return
            reason = "too many of its instances failed to start"
        except ServiceException as problem:
            reason = problem.message
        group.life.state, group.life.reason = "SUSPENDED", Reason("INSTANCE_FAILURE", reason)

    def dismiss(self, member: Member, reason: Reason) -> None:
        """End an instance that failed to join a cluster that is ready; the group launches another."""
        member.group.failures += 1
        self._end_member(member, reason)

    def _end_member(self, member: Member, reason: Reason) -> None:
        member.life.reason = reason
        member.instance.disable_api_termination = False
        self._fleet.end(member.instance, "Server.EMR", "Server.EMR: ended by Amazon EMR")
        self._record_end(member)

    def _record_end(self, member: Member) -> None:
        member.life.state, member.life.ended, member.busy = "TERMINATED", self.context.clock.now(), False

    # deaths

    def _instance_changed(self, instance_id: str) -> None:
        with self.changed:
            members = [member for member in self._members.values() if member.instance.id == instance_id]
            for member in members:
                if member.instance.state == "terminated":
                    self._instance_ended(member)

    def _instance_ended(self, member: Member) -> None:
        cluster = member.group.cluster
        member.group.failures += member.is_live and member.life.state != "RUNNING"
        if member.is_live:
            member.life.reason = member.life.reason if cluster.is_ending else Reason("INSTANCE_FAILURE", "Terminated")
            self._record_end(member)
        if cluster.is_ending:
            self._finish_if_empty(cluster)
        elif not cluster.live:
            self.end(cluster, Reason("INSTANCE_FAILURE", "All instances in the job flow are terminated"))
        elif cluster.master is None:
            self.end(cluster, Reason("INSTANCE_FAILURE", "The master node was terminated"))
        elif cluster.life.ready is None and member.group.failures >= _MOST_FAILURES:
            self.end(cluster, Reason("INSTANCE_FAILURE", f"The {member.group.role} instances failed to start"))
        else:
            self._repair(member.group)
            self.advance(cluster)

    # the end

    def end(self, cluster: Cluster, reason: Reason) -> None:
        """Begin to terminate a cluster: what runs is stopped first, so that its logs are stored."""
        if cluster.is_ending:
            return
        cluster.life.state, cluster.life.reason = "TERMINATING", reason
        for step in cluster.steps:
            if step.is_open:
                step.end(CANCELLED, self.context.clock.now())
        self.changed.notify_all()
        if any(member.busy for member in cluster.live):
            self.context.clock.call_later(GRACE_S, self.end_instances, cluster)
        else:
            self.end_instances(cluster)

    def end_instances(self, cluster: Cluster) -> None:
        """End the instances of a cluster that ends, at once."""
        with self.changed:
            ended = Reason("CLUSTER_TERMINATED", "Job flow terminated")
            for member in cluster.live:
                member.life.reason = ended
                member.instance.disable_api_termination = False
                self._fleet.end(member.instance, "Server.EMR", "Server.EMR: ended by Amazon EMR")
            self._finish_if_empty(cluster)

    def _finish_if_empty(self, cluster: Cluster) -> None:
        instances = [member.instance for member in cluster.members]
        if cluster.has_ended or any(instance.state != "terminated" for instance in instances):
            return
        now = self.context.clock.now()
        for group in cluster.groups:
            group.life.state, group.life.ended, group.life.reason = "TERMINATED", now, Reason("CLUSTER_TERMINATED")
        good = cluster.life.reason.code in _AT_ONCE
        cluster.life.state, cluster.life.ended = "TERMINATED" if good else "TERMINATED_WITH_ERRORS", now
        self._settle(cluster, cluster.life.reason.message)
        for gone in cluster.gone:
            self.context.spawn(gone, None, name=f"gone-{cluster.id}")
        self.changed.notify_all()

    def protect(self, cluster: Cluster, protected: bool) -> None:
        """Protect a cluster and its instances from being terminated, or not."""
        cluster.protected = protected
        for member in cluster.live:
            member.instance.disable_api_termination = protected

    def delete(self, cluster_id: str, gone: Settled) -> bool:
        """Terminate a cluster for CloudFormation; False if it has ended already."""
        with self.changed:
            cluster = self.clusters.get(cluster_id)
            if cluster is None or cluster.has_ended:
                return False
            if cluster.protected:
                self.context.spawn(gone, requests.PROTECTED)
                return True
            cluster.gone.append(gone)
            self.end(cluster, Reason("USER_REQUEST", "Terminated by user request"))
            return True

    def cancel(self, cluster: Cluster, step: Step) -> bool:
        """Cancel a step; return whether that was possible."""
        if step.state == PENDING:
            step.end(CANCELLED, self.context.clock.now())
        step.cancelling = step.state == RUNNING
        self.advance(cluster)
        return step.cancelling or step.state == CANCELLED
