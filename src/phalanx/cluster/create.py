"""Create a cluster's stack where AWS has capacity, or follow a creation in progress, until the stack is ready."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx import template
from phalanx.aws import s3_objects, stacks
from phalanx.aws.model import InBucket, StackState
from phalanx.cluster import failed_creation, keys, rivals
from phalanx.cluster.large_document import send
from phalanx.cluster.stack import Creation, Note, Progress, Stack
from phalanx.cluster.target import Target, require_key
from phalanx.errors import CloudError, NoCapacity, PhalanxError, StackFailed
from phalanx.plan.each_type import single
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import installed_at_boot, warnings
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

Attempt = Generator[Progress | Note, None, StackState]
"""Yields progress and returns the state of a stack that is ready. Raises StackFailed."""


def create(target: Target) -> Attempt:
    """Create the cluster in the first zone, and of the first type, for which AWS has capacity."""
    if target.spec.is_private:
        # What ssh takes then may be missing on this machine: not only after the cluster was paid for.
        target.cloud.site.ssh_route(by_session=True)
    plans = plans_for(target.cloud, target.spec)
    plan = next(plans)
    return (yield from _try(target, _create_from(target, plan), _place(plan), plans))


def resume(target: Target, found: StackState) -> Attempt:
    """Follow a creation; without capacity for it, go on as the `up` that was interrupted would have done."""
    target.refuse_changes(found)
    yield Note(f"stack {found.name} is being created already; following it")
    kind, zone = (found.parameters.get(name, "") for name in ("InstanceType", "Zone"))
    attempt = _follow(target, Stack(target.cloud, found.name, found.stack_id))
    plans = _plans_after(target.cloud, target.spec, kind, zone)
    return (yield from _try(target, attempt, f"{kind} in {zone}", plans))


def _try(target: Target, attempt: Attempt, place: str, plans: Iterator[Plan]) -> Attempt:
    """Make an attempt; where AWS has no capacity for it, make another one by each of these plans."""
    while True:
        try:
            return (yield from attempt)
        except NoCapacity as failure:
            following = next(plans, None)
            if following is None:
                raise
            reason = failure.message.partition("\n")[2].partition("\n")[0]
        yield Note(f"no capacity for {place}: {reason}")
        attempt, place = _create_from(target, following), _place(following)
        yield Note(f"nothing of that attempt is left; trying {place}")


def _create_from(target: Target, plan: Plan) -> Attempt:
    target.choose(plan.spec.type)
    plan = replace(plan, facts=replace(plan.facts, ssh_public_key=keys.make(target.spec.name)))
    # Written before the stack is requested, so that the next `up` finds the key if this one is killed.
    cluster = target.record().save()
    try:
        if plan.facts.kept_file_system:
            yield Note(f"{plan.spec.shared} uses the file system that `down` kept: {plan.facts.kept_file_system}")
        if installed := installed_at_boot(plan):
            yield Note(f"each node's boot installs {installed}")
        yield from (Note(f"warning: {warning}") for warning in warnings(plan))
        stack = yield from _deploy(target, plan)
    except PhalanxError:
        cluster.forget()
        raise
    return (yield from _follow(target, stack))


def _deploy(target: Target, plan: Plan) -> Generator[Note, None, Stack]:
    """Request the stack, or follow it if another `up` has just created it."""
    cloud, spec = target.cloud, plan.spec
    document, parameters = template.request(plan)
    if plan.limits.lease_s:
        parameters["LeaseEnd"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + plan.limits.lease_s))

    def ask(sent: str | InBucket) -> Stack:
        for url, text in template.uploads(plan).items():
            s3_objects.put(cloud, url, text)
        target.may_be_requested = True
        role = spec.cloudformation_role
        made = stacks.create(cloud, spec.name, sent, parameters, spec.tags, role=role)
        target.stack = Stack(cloud, spec.name, made)
        return target.stack

    try:
        return (yield from send(cloud, spec, document, ask))
    except StackFailed:
        raise  # of another document than this one: never to be followed
    except CloudError:
        found = stacks.describe(cloud, spec.name)
        if found is None or not found.creating or not found.ours:
            raise
        require_key(found)
        target.refuse_changes(found)
        return Stack(cloud, found.name, found.stack_id)


def _follow(target: Target, stack: Stack) -> Attempt:
    target.stack, target.was_there = stack, True
    cluster = target.record(stack.stack_id).save()
    creation = Creation(stack)
    yield from creation.steps()
    if creation.was_deleted:
        cluster.forget()
        raise rivals.deleted(stack.name)
    if creation.state is None or not creation.ready:
        yield from failed_creation.clean_up(cluster, creation)
        raise AssertionError("clean_up raises StackFailed")
    return creation.state


def plans_for(cloud: Aws, spec: ClusterSpec) -> Iterator[Plan]:
    """Yield a plan for each of the spec's types in each of its zones that offers the type.

    Raises SpecError with the mistakes of all types, before the first plan.
    """
    whole = make_plan(spec, cloud.site.facts(spec, ""))
    first, *others = single(spec)
    yield from _in_each_zone(replace(whole, spec=first, alternatives=()))
    for one in others:
        # Looked up again: the attempts before took minutes.
        yield from _in_each_zone(make_plan(one, cloud.site.facts(one, "")))


def _in_each_zone(plan: Plan) -> Iterator[Plan]:
    return (replace(plan, zone=zone) for zone in plan.zones)


def _plans_after(cloud: Aws, spec: ClusterSpec, instance_type: str, zone: str) -> Iterator[Plan]:
    """Yield the plans that come after the one of this type and zone."""
    following = plans_for(cloud, spec)
    if any((plan.spec.type, plan.zone) == (instance_type, zone) for plan in following):
        yield from following


def _place(plan: Plan) -> str:
    """Describe what a plan asks of which zone."""
    return f"{plan.spec.type} in {plan.zone}"
