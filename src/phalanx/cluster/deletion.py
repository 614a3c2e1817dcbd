"""Delete a CloudFormation stack, and prove that nothing is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from phalanx import waits
from phalanx.aws import file_systems, log_groups, lustre_file_systems, policies, stacks
from phalanx.aws.inventory import foreign, remains
from phalanx.aws.model import Resource, StackEvent
from phalanx.cluster import rivals
from phalanx.cluster.stack import Deadline, Follower, ForeignDeleted, Leftovers, RoleFreed, Stack
from phalanx.counts import first_of
from phalanx.errors import CloudError
from phalanx.spec.spec_limits import is_metal

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

DOWN_DEADLINE_S = 30 * 60.0
# Bare metal is cleaned and tested before EC2 calls it terminated (docs/aws-behaviour.md 2.67).
METAL_DEADLINE_S = 2 * 3600.0
# A deleted resource soon disappears from all answers; one that is still there after this does not go by itself.
PROOF_DEADLINE_S = 5 * 60.0
EFS = "AWS::EFS::FileSystem"
LUSTRE = "AWS::FSx::FileSystem"
LETS_NODES_IN = "NfsFromNodes"
"""The logical id of the rule by which nodes reach a mount target that is not their stack's."""
GROUP = "AWS::AutoScaling::AutoScalingGroup"
ROLE, REMOVAL_ROLE = "AWS::IAM::Role", "RemovalRole"
_VPC = "AWS::EC2::VPC"
# An endpoint's network interface takes minutes to be deleted.
_DEADLINE_S = 10 * 60.0


class Deletion:
    """A stack being deleted. Iterate `steps()`, which ends when nothing is left or raises CloudError with what is.

    A file system outlives its stack unless it is one of `file_systems`.
    """

    def __init__(
        self,
        stack: Stack,
        file_systems: Sequence[str] = (),
        deadline_s: float = DOWN_DEADLINE_S,
        proof_s: float = PROOF_DEADLINE_S,
    ) -> None:
        self.stack, self._file_systems, self._proof_s = stack, file_systems, proof_s
        self._deadline = Deadline.after(deadline_s, f"stack {stack.name} to be deleted")

    def steps(self) -> Iterator[StackEvent | Leftovers | RoleFreed | ForeignDeleted]:
        yield from self._until_updated()
        resources = self._to_go(self._made())
        self._delete_lustre(resources)
        self._end_machines(resources)
        follower = yield from self._delete()
        if self._stuck(follower):
            self._await_lustre(resources)
            yield from self._free_roles(follower)
            yield from _delete_guard_duty(self.stack.cloud, resources, self._deadline.at_s)
            # A network interface in use by Lambda or EFS is often free at the second try (docs/aws-behaviour.md 1.22).
            follower = yield from self._delete()
        if self._stuck(follower):
            raise CloudError(*self._why_stuck(follower, resources), code="not-deleted")
        self.delete_evidence(resources)
        yield from self._prove_gone(resources)

    def _made(self) -> list[Resource]:
        """Return the stack's resources, and those that only its events name: a rollback may take them off the list.

        What the stack failed to make is left out: a name that was taken is somebody else's.
        """
        cloud, stack_id = self.stack.cloud, self.stack.stack_id
        listed = stacks.resources(cloud, stack_id)
        known = {"", stack_id, *(one.physical_id for one in listed)}
        others = {
            one.physical_id: Resource(one.logical_id, one.physical_id, one.resource_type)
            for one in stacks.events(cloud, stack_id, None)
            if one.status == "CREATE_COMPLETE" and one.physical_id not in known
        }
        return [*listed, *others.values()]

    def _until_updated(self) -> Iterator[StackEvent]:
        """Wait for an update in progress: CloudFormation deletes no stack meanwhile (docs/aws-behaviour.md 1.31)."""
        state = stacks.describe(self.stack.cloud, self.stack.stack_id)
        if state is not None and any(is_metal(one) for one in state.parameters.values()):
            self._deadline = Deadline.after(METAL_DEADLINE_S, f"stack {self.stack.name} to be deleted")
        if state is not None and state.updating:
            seen = stacks.events(self.stack.cloud, self.stack.stack_id, None)
            for events in Follower(self.stack, self._deadline, seen[-1].event_id if seen else None).polls():
                yield from events

    def _delete(self) -> Generator[StackEvent, None, Follower]:
        cloud, stack_id = self.stack.cloud, self.stack.stack_id
        before = stacks.events(cloud, stack_id, None)
        stacks.delete(cloud, stack_id)
        cloud.prepare(remains.SERVICES)
        follower = Follower(self.stack, self._deadline, after=before[-1].event_id if before else None)
        for events in follower.polls():
            yield from events
        return follower

    def _end_machines(self, resources: Sequence[Resource]) -> None:
        """Set all groups to 0 at once: CloudFormation deletes one after another, and waits for the machines of each."""
        sizes = {"MinSize": 0, "DesiredCapacity": 0}
        for group in (one.physical_id for one in resources if one.resource_type == GROUP):
            # Whatever refuses this, CloudFormation does the same, only later.
            with contextlib.suppress(CloudError):
                self.stack.cloud.call("autoscaling", "update_auto_scaling_group", AutoScalingGroupName=group, **sizes)

    def _delete_lustre(self, resources: Sequence[Resource]) -> None:
        """Ask FSx to delete a Lustre file system while the stack goes: it keeps its subnet (aws-behaviour 4.14)."""
        for file_system in _lustre_of(resources):
            with waits.waiting(f"FSx to accept the deletion of {file_system}"):
                while reason := lustre_file_systems.delete(self.stack.cloud, file_system):
                    self._deadline.check(reason)
                    time.sleep(self.stack.cloud.poll_interval_s)

    def _await_lustre(self, resources: Sequence[Resource]) -> None:
        for file_system in _lustre_of(resources):
            with waits.waiting(f"{file_system} to be deleted"):
                while lustre_file_systems.describe(self.stack.cloud, file_system):
                    self._deadline.check(f"the Lustre file system {file_system}")
                    time.sleep(self.stack.cloud.poll_interval_s)

    def _free_roles(self, follower: Follower) -> Iterator[RoleFreed]:
        refused = {e.physical_id for e in follower.seen if e.status == "DELETE_FAILED" and e.resource_type == ROLE}
        for role in sorted(refused):
            removed = policies.remove(self.stack.cloud, role)
            if removed:
                yield RoleFreed(role, removed)

    @staticmethod
    def _stuck(follower: Follower) -> bool:
        return follower.state is not None and follower.state.status != "DELETE_COMPLETE"

    def _why_stuck(self, follower: Follower, resources: Sequence[Resource]) -> tuple[str, str]:
        failed = [e for e in follower.seen if e.status == "DELETE_FAILED" and e.physical_id != self.stack.stack_id]
        lines = [f"  {e.logical_id} ({e.physical_id}): {e.reason}" for e in failed]
        others = others_in(self.stack.cloud, self.stack.name, resources)
        if others:
            lines += ["Its VPC has resources that phalanx did not make:", *(f"  {line}" for line in others)]
        message = f"stack {self.stack.name} could not be deleted:\n{first_of(lines, chr(10))}"
        return message, "Remove what uses these resources, then run `phalanx down` again."

    def delete_evidence(self, resources: Sequence[Resource]) -> None:
        """Delete the file systems, and what the template retains: the log group, and the role of a removal."""
        for resource in (one for one in resources if one.physical_id):
            if resource.resource_type == "AWS::Logs::LogGroup":
                log_groups.delete(self.stack.cloud, resource.physical_id)
            elif resource.logical_id == REMOVAL_ROLE:
                policies.delete_role(self.stack.cloud, resource.physical_id)
        for file_system in self._file_systems:
            if file_system not in _lustre_of(resources):
                file_systems.delete(self.stack.cloud, file_system)

    def _to_go(self, recorded: Sequence[Resource]) -> list[Resource]:
        """Return all resources that must be gone in the end."""
        others = [resource for resource in recorded if resource.resource_type not in (EFS, LUSTRE)]
        kinds = {resource.physical_id: resource.resource_type for resource in recorded}
        doomed = self._file_systems
        return others + [Resource("FileSystem", one, kinds.get(one, EFS)) for one in doomed]

    def _prove_gone(self, resources: Sequence[Resource]) -> Iterator[Leftovers]:
        cloud = self.stack.cloud
        deadline = Deadline.after(self._proof_s, f"all resources of {self.stack.name} to be deleted")
        reported: list[str] = []
        while left := remains.find(cloud, self.stack.name, resources):
            rivals.require_no_successor(cloud, self.stack.name, self.stack.stack_id)
            if left != reported:
                yield Leftovers(tuple(left))
                reported = left
            deadline.check(first_of(left, "; "))
            time.sleep(cloud.poll_interval_s)


def file_systems_of(stack: Stack) -> tuple[str, ...]:
    """Return the file systems that the stack created, including one that it keeps."""
    resources = stacks.resources(stack.cloud, stack.stack_id)
    return tuple(one.physical_id for one in resources if one.resource_type in (EFS, LUSTRE) and one.physical_id)


def _lustre_of(resources: Sequence[Resource]) -> list[str]:
    return [one.physical_id for one in resources if one.resource_type == LUSTRE]


def _delete_guard_duty(cloud: Aws, resources: Sequence[Resource], deadline_s: float) -> Iterator[ForeignDeleted]:
    """Delete GuardDuty's endpoint and security group, and wait for their end. Raises CloudError at the deadline."""
    end_s = min(deadline_s, time.monotonic() + _DEADLINE_S)
    for vpc in _vpcs(resources):
        shown: list[str] = []
        while left := foreign.delete_guard_duty(cloud, vpc):
            if not shown:
                yield ForeignDeleted(tuple(left))
                shown = left
            if time.monotonic() > end_s:
                raise CloudError(
                    f"{vpc} can't be deleted: {first_of(left, '; ')}",
                    "Delete it, then run `phalanx down` again.",
                    code="not-deleted",
                )
            time.sleep(cloud.poll_interval_s)


def others_in(cloud: Aws, cluster: str, resources: Sequence[Resource]) -> list[str]:
    """Return a line for each resource of others that is left in the cluster's VPC.

    The stack's own are left out by their ids: a stack from CloudFormation's console has no tag to know them by.
    """
    own = {resource.physical_id for resource in resources}
    lines = (line for vpc in _vpcs(resources) for line in foreign.find(cloud, cluster, vpc))
    return [line for line in lines if not own & set(line.split())]


def _vpcs(resources: Sequence[Resource]) -> list[str]:
    return [resource.physical_id for resource in resources if resource.resource_type == _VPC]
