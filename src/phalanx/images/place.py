"""Where an image is made, and under whose rules: what a cluster's file says of the account, or a network of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.aws import kms_keys, lookups, vpcs
from phalanx.aws.policies import require_policies
from phalanx.errors import Mistakes, SpecError
from phalanx.plan import existing_vpc
from phalanx.plan.existing_vpc import INTERNET

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.plan.existing_vpc import ExistingVpc
    from phalanx.spec.spec import ClusterSpec


@dataclass(frozen=True)
class Place:
    """The zone of the build's own subnet, or the subnet to use in its place; and what the account demands of it."""

    zone: str = ""
    subnet: str = ""
    vpc: str = ""
    boundary: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    role: str = ""
    """The service role of the stack, if it has one."""
    key: str = ""
    """The ARN of the key that encrypts all that is stored, if it is not AWS's."""
    encrypted: bool = False
    """Whether its disks are encrypted, as those of nodes are. An image with AWS's own key can't be shared."""


OWN_NETWORK = Place()


def find(api: Aws, instance_type: str, spec: ClusterSpec | None = None) -> Place:
    """Return where machines of this type build, as the cluster's file demands. Raises SpecError with all that is wrong.

    They need a way to package indexes, and nobody needs a way to them: the workers' subnet is the one to use.
    """
    zones = lookups.zones(api, instance_type)
    if not zones:
        raise SpecError(
            f"no zone of {api.region} offers {instance_type}", "Name another with --type.", code="type-not-offered"
        )
    if spec is None:
        return Place(zones[0])
    mistakes = Mistakes()
    mistakes.check(require_policies, api, spec)
    vpc = mistakes.check(vpcs.find, api, spec)
    key = mistakes.check(kms_keys.find, api, spec)
    mistakes.check(_refuse_closed, api, spec, vpc, zones)
    mistakes.report()
    rules = {
        "boundary": spec.permissions_boundary or "",
        "tags": spec.tags or {},
        "role": spec.cloudformation_role or "",
        "key": key.arn if key else "",
        "encrypted": True,
    }
    if vpc:
        return Place(vpc.workers.zone, vpc.workers.subnet_id, vpc.vpc, **rules)
    return Place(next((zone for zone in spec.zones or () if zone in zones), zones[0]), **rules)


def _refuse_closed(api: Aws, spec: ClusterSpec, vpc: ExistingVpc | None, zones: tuple[str, ...]) -> None:
    """Raise SpecError if the machines would not reach package indexes, or can't be had where they would."""
    need = "an image's packages come from the web, and the machine that installs them must reach it"
    if vpc is None and spec.is_private:
        raise SpecError(f"network: {need}", "Name a subnet with a NAT gateway.", code="unsuited-network")
    mode = vpcs.blocked_access(api, vpc)
    if vpc is None:
        existing_vpc.refuse_blocked(spec, mode, None)
        return
    subnet, wrong = vpc.workers, list[str]()
    if subnet.zone not in zones:
        wrong.append(f"{subnet.subnet_id} is in {subnet.zone}, and the type can be had in {', '.join(zones)}")
    if not subnet.way_out:
        wrong.append(f"the default route of {subnet.subnet_id} leads nowhere: {need}")
    elif subnet.way_out == INTERNET and not subnet.gives_addresses:
        wrong.append(f"{subnet.subnet_id} gives no public addresses, which its internet gateway needs: {need}")
    elif mode == existing_vpc.BLOCKS_ALL or (mode and subnet.way_out == INTERNET):
        wrong.append(f"{existing_vpc.blocked(mode, api.region)}: {need}")
    if wrong:
        hint = "Name a `worker_subnet` with a NAT gateway."
        raise SpecError.alike([f"network: {one}" for one in wrong], hint, code="unsuited-network")
