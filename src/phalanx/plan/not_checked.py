"""What a plan from the tables takes for granted, and the command that checks it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.plan.machine_images import is_ami, is_of_recipe
from phalanx.plan.network_cards import adapters
from phalanx.plan.plan import Plan
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import AUTO
from phalanx.spec.spec_data import places
from phalanx.spec.spec_limits import OWN_GROUP
from phalanx.spec.spec_storage import LUSTRE


def not_checked(plan: Plan) -> list[str]:
    """Return a sentence for each thing that only the cloud knows; none if it was asked."""
    if not plan.facts.not_asked:
        return []
    of_all = [] if is_local(plan.spec.cloud) else _of_every_plan(plan)
    return [f"{what}: `{check}`" for what, check in (*of_all, *_of_nodes(plan), *_of_names(plan.spec))]


def _of_every_plan(plan: Plan) -> Iterator[tuple[str, str]]:
    spec = plan.spec
    types = ",".join(dict.fromkeys((spec.type, *spec.other_types, *([spec.head["type"]] if spec.head else []))))
    zone = "the subnets' zone" if spec.subnets else plan.zone
    offers = "aws ec2 describe-instance-type-offerings --location-type availability-zone --filters"
    yield f"whether {zone} offers {types}", f"{offers} Name=instance-type,Values={types}"
    yield f"the image {plan.image_parameter}", _of_image(plan.image_parameter)
    yield "the account's quotas", "aws service-quotas list-service-quotas --service-code ec2"


def _of_image(image: str) -> str:
    if is_of_recipe(image):
        return "phalanx image ls"
    return f"aws ec2 describe-images --image-ids {image}" if is_ami(image) else f"aws ssm get-parameter --name {image}"


def _of_nodes(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what decides how the nodes are connected, and what is assumed of it."""
    spec = plan.spec
    if plan.facts.vpc:
        names = " ".join(dict.fromkeys(spec.subnets))
        ways = "a NAT gateway as their way out (without one, the stack gets endpoints)"
        if not spec.is_private:
            others = " and a NAT gateway as the workers'" if len(set(spec.subnets)) > 1 else ""
            ways = f"an internet gateway as the head's way out{others}"
        what = f"the subnets, taken to be in one VPC with DNS host names and free private addresses, and to have {ways}"
        yield what, f"aws ec2 describe-subnets --subnet-ids {names}"
    for one in (plan, *plan.alternatives) if spec.uses_efa else ():
        kind = one.spec.type
        what = f"the network cards of {kind}, {adapters(one.facts.cards)} by the table"
        yield what, f"aws ec2 describe-instance-types --instance-types {kind} --query '*[].NetworkInfo'"
    if AUTO in spec.ssh_sources:
        yield "this machine's public address, for ssh_from", "curl https://checkip.amazonaws.com"


def _of_names(spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield what the spec names."""
    if spec.reservation:
        what = f"{spec.reservation}, taken to be an active reservation and no Capacity Block"
        yield what, f"aws ec2 describe-capacity-reservations --capacity-reservation-ids {spec.reservation}"
    if spec.file_system and spec.storage == LUSTRE:
        what = f"{spec.file_system}, its mount name and its security group"
        yield what, f"aws fsx describe-file-systems --file-system-ids {spec.file_system}"
    elif spec.file_system:
        what = f"{spec.file_system}, taken to have no mount targets"
        yield what, f"aws efs describe-mount-targets --file-system-id {spec.file_system}"
    if spec.key_pair:
        yield f"the key pair {spec.key_pair}", f"aws ec2 describe-key-pairs --key-names {spec.key_pair}"
    if spec.placement and spec.placement != OWN_GROUP:
        group = spec.placement
        yield f"the placement group {group}", f"aws ec2 describe-placement-groups --group-names {group}"
    for arn in (*(spec.policies or ()), *([spec.permissions_boundary] if spec.permissions_boundary else [])):
        yield f"the policy {arn}", f"aws iam get-policy --policy-arn {arn}"
    if key := spec.kms_key:
        what = f"which key {key} stands for (a document needs its ARN)" if ":alias/" in key else f"the key {key}"
        yield f"{what}, and who may use it", f"aws kms describe-key --key-id {key}"
    if role := spec.cloudformation_role:
        yield f"the role {role}", f"aws iam get-role --role-name {role.rpartition('/')[2]}"
    urls = [place.url for place in places(spec.data)] + ([spec.emr["logs"]] if spec.emr else [])
    if spec.emr and (role := spec.emr.get("node_role")):
        yield f"the role {role}", f"aws iam get-role --role-name {role}"
    for url in dict.fromkeys([*urls, *([f"s3://{spec.bucket}"] if spec.bucket else [])]):
        yield f"the bucket of {url}", f"aws s3 ls {url}"
