"""Ask AWS itself what it says of a plan, before anything is made: it costs nothing, and nothing stays.

CloudFormation compares and validates the document as a change set, EC2 makes a dry run of a launch, and IAM simulates
the caller's policies. What one of them can't be asked is said, and stops none of the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from phalanx import template
from phalanx.aws import change_sets, stacks, what_if
from phalanx.aws.model import ChangeSet, InBucket, StackChange, StackState, Validation
from phalanx.aws.refusals import is_denied
from phalanx.aws.what_if import NotCheckedError
from phalanx.cluster.large_document import send
from phalanx.cluster.stack import Note, require_ours
from phalanx.cluster.target import Target, recorded
from phalanx.cluster.update import Update, refuse_fixed
from phalanx.errors import CloudError, ClusterError, PhalanxError
from phalanx.plan.machine_images import is_ami
from phalanx.spec.makers import maker_of
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.template.document import build
from phalanx.template.origins import key_of
from phalanx.template.policy import policy

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.plan.plan import Plan

Say = Callable[[str], None]


@dataclass
class Answers:
    """What AWS says. `changes` is None if CloudFormation was not asked, `rights` is how many IAM was asked about.

    `validations` are (the key of phalanx.yaml, "" if none can be named; what CloudFormation says).
    """

    changes: tuple[StackChange, ...] | None = None
    validations: list[tuple[str, Validation]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    rights: int = 0
    denied: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    left: str = ""

    @property
    def works(self) -> bool:
        """Whether nothing speaks against the plan, and nothing is left."""
        blocked = any(one.blocks for _, one in self.validations)
        return not (blocked or self.refused or self.denied or self.left)

    def as_dict(self) -> dict[str, Any]:
        changes = None if self.changes is None else [asdict(one) for one in self.changes]
        found = [{**asdict(one), "key": key or None} for key, one in self.validations]
        return {**asdict(self), "changes": changes, "validations": found, "works": self.works}


def ask(cloud: Aws, plan: Plan, say: Say) -> Answers:
    """Ask CloudFormation, EC2 and IAM about a plan. Raises ClusterError, CloudError or SpecError.

    What the change set made is removed in any case; `left` says what could not be.
    """
    answers = Answers()
    _ask_cloudformation(cloud, plan, answers, say)
    _ask_ec2(cloud, plan, answers)
    _ask_iam(cloud, plan, answers)
    return answers


def _ask_cloudformation(cloud: Aws, plan: Plan, answers: Answers, say: Say) -> None:
    found = stacks.describe(cloud, plan.spec.name)
    if found is None:
        _as_new(cloud, plan, answers, say)
        return
    require_ours(found)
    if found.in_review:
        raise ClusterError(
            f"stack {found.name} is in review: another `phalanx plan --on-aws` is asking, or was killed",
            f"Wait for that command, or run `phalanx down -c {found.name}`, which removes the empty stack.",
            code="in-review",
        )
    if found.ready and recorded(found.name):
        _as_update(cloud, plan, found, answers, say)
    else:
        reason = "and this machine has no record of it" if found.ready else "of which no change set can be made"
        answers.not_checked.append(f"the document: stack {found.name} is there as {found.status}, {reason}")


def _as_new(cloud: Aws, plan: Plan, answers: Answers, say: Say) -> None:
    document, parameters = template.request(plan)
    spec = plan.spec
    proposed = change_sets.of_new_stack(cloud, spec.name, spec.cloudformation_role)
    tags = {**(spec.tags or {}), CLUSTER_TAG: spec.name}

    def request(sent: str | InBucket) -> None:
        proposed.request(sent, parameters, (), tags)

    with _removed(proposed, answers, say):
        try:
            for one in send(cloud, spec, document, request):
                say(str(one))
        except CloudError as error:
            if not is_denied(error.__cause__) or "CreateChangeSet" not in error.message:
                raise
            answers.not_checked.append(f"the document: {error.message}")
            return
        _read(proposed, json.loads(document), answers)


def _read(proposed: change_sets.Proposed, document: dict[str, Any], answers: Answers) -> None:
    """Read what CloudFormation says of a change set."""
    try:
        found = proposed.validations()
    except CloudError as error:
        found = []
        answers.not_checked.append(f"what validations found: {error.message}")
    answers.validations += _with_keys(document, found)
    if proposed.failure and not any(one.blocks for one in found):
        answers.refused.append(f"CloudFormation: {proposed.failure}")
    answers.changes = proposed.changes()


def _with_keys(document: dict[str, Any], found: Iterable[Validation]) -> Iterator[tuple[str, Validation]]:
    return ((key_of(document, one.logical_id, one.path), one) for one in found)


@contextmanager
def _removed(proposed: change_sets.Proposed, answers: Answers, say: Say) -> Iterator[None]:
    """Remove a change set at the end of the block, also at Ctrl-C, and say what may be left."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; removing the change set and its empty stack")
        raise
    finally:
        try:
            proposed.remove()
        except (PhalanxError, KeyboardInterrupt) as error:
            reason = error.message if isinstance(error, PhalanxError) else "interrupted"
            remedy = f"`phalanx reap` names it, and `phalanx down -c {proposed.stack}` removes it"
            answers.left = f"the empty stack {proposed.stack} may be left: {reason}. {remedy}"
            say(f"warning: {answers.left}")
            if isinstance(error, KeyboardInterrupt):
                raise


def _as_update(cloud: Aws, plan: Plan, stack: StackState, answers: Answers, say: Say) -> None:
    """Have the cluster that is there compared with the file, as `up` does; nothing of it is changed."""
    target = Target(cloud, plan.spec)
    changes = target.changes(stack)
    refuse_fixed(stack, changes)
    try:
        reviewed = _followed(Update(cloud, stack, target.chosen, changes).review(), say)
    except change_sets.NotComparedError as error:
        answers.validations += _with_keys(json.loads(template.request(plan)[0]), error.validations)
        answers.refused += [] if error.validations else [error.message]
        return
    answers.changes = reviewed.changes if reviewed else ()
    if reviewed:
        try:
            found = change_sets.validations(cloud, ChangeSetName=reviewed.change_set_id)
            answers.validations += _with_keys(json.loads(template.request(plan)[0]), found)
        except CloudError as error:
            answers.not_checked.append(f"what validations found: {error.message}")
        finally:
            change_sets.forget(cloud, reviewed.change_set_id)


def _followed(steps: Generator[Note, None, ChangeSet | None], say: Say) -> ChangeSet | None:
    """Say what the steps yield, and return their result."""
    result: list[ChangeSet | None] = []

    def ended() -> Iterator[Note]:
        result.append((yield from steps))

    for one in ended():
        say(str(one))
    return result[0]


def _ask_ec2(cloud: Aws, plan: Plan, answers: Answers) -> None:
    if not maker_of(plan.spec.cloud).has_user_data:
        answers.not_checked.append("a launch: EMR makes the machines, with its own rights")
        return
    if role := plan.spec.cloudformation_role:
        answers.not_checked.append(f"a launch: CloudFormation asks for the machines, with the rights of {role}")
        return
    for kind, arguments in _launches(plan):
        try:
            refused = what_if.launch(cloud, **arguments)
        except NotCheckedError as error:
            answers.not_checked.append(f"a launch of {kind}: {error}")
            continue
        if refused:
            answers.refused.append(f"EC2 would not launch {kind}: {refused}")
        else:
            answers.launches.append(kind)


def _launches(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each type of machine, with the arguments of RunInstances that are known before there is a stack."""
    spec, image = plan.spec, plan.image_parameter
    tags = [{"Key": key, "Value": value} for key, value in {**(spec.tags or {}), CLUSTER_TAG: spec.name}.items()]
    arguments: dict[str, Any] = {
        "ImageId": image if is_ami(image) else f"resolve:ssm:{image}",
        "MetadataOptions": {"HttpTokens": "required"},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
    }
    if spec.subnets:
        arguments["SubnetId"] = spec.subnets[-1]
    else:
        arguments["Placement"] = {"AvailabilityZone": plan.zone}
    if spec.key_pair:
        arguments["KeyName"] = spec.key_pair
    for kind in dict.fromkeys((spec.head["type"] if spec.head else spec.type, spec.type, *spec.other_types)):
        yield kind, {**arguments, "InstanceType": kind}


def _ask_iam(cloud: Aws, plan: Plan, answers: Answers) -> None:
    spec = plan.spec
    wanted = policy(build(plan).to_dict(), spec.name, spec.bucket, spec.cloudformation_role)
    try:
        answers.rights, answers.denied = what_if.denied(cloud, wanted)
    except NotCheckedError as error:
        answers.not_checked.append(f"the rights that `phalanx policy` prints: {error}")
