"""What a plan needs to know about the cloud: the answers of read-only requests, or of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.node.settings import ON_AWS, Patience
from phalanx.plan import machine_room, money
from phalanx.plan.capacity import Reservation
from phalanx.plan.existing_vpc import ExistingVpc
from phalanx.plan.lustre_storage import LustreFileSystem
from phalanx.plan.machine_images import Image
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.mounted_data import Contents
from phalanx.plan.network_cards import Card
from phalanx.plan.quotas import Quota


@dataclass(frozen=True)
class HeadFacts:
    """What a plan needs to know about the type of a separate head."""

    vcpus: int
    memory_gib: float
    architecture: str


@dataclass(frozen=True)
class KmsKey:
    """The key that a spec names. `doubt` is why it is not known whether all who must use it may."""

    arn: str
    doubt: str = ""

    def users(self, region: str, account: str) -> dict[str, tuple[str, str]]:
        """Map each principal that the key must let in to what it does with the key, and to what for (6.7)."""
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        scaling = f"arn:{self.arn.split(':')[1]}:iam::{account}:role/aws-service-role/autoscaling.amazonaws.com"
        stores = "kms:Decrypt kms:DescribeKey kms:Encrypt kms:GenerateDataKey* kms:ReEncrypt*"
        sends = "kms:Decrypt kms:GenerateDataKey*"
        return {
            f"{scaling}/AWSServiceRoleForAutoScaling": (f"{stores} kms:CreateGrant", "disks, messages to the topic"),
            f"logs.{region}.{domain}": (stores, "logs"),
            "sns.amazonaws.com": (sends, "messages to the queue"),
            "lambda.amazonaws.com": (sends, "the function's code"),
        }

    def warnings(self, region: str) -> Iterator[str]:
        """Yield who must be let in, if it is not known whether all are."""
        if self.doubt:
            users = "; ".join(f"{one} ({actions})" for one, (actions, _) in self.users(region, "ACCOUNT").items())
            yield f"it is not known whether all who must use {self.arn} may ({self.doubt}); they are {users}"


@dataclass(frozen=True)
class Facts:
    """What a plan needs to know about the cloud, from read-only requests.

    `zones` are the ordinary ones that offer the type, without Local and Wavelength Zones.
    """

    cloud: str
    region: str
    zones: tuple[str, ...]
    vcpus: int
    gpus: int = 0
    """NVIDIA's."""
    stand_ins: int | None = None
    """How many stand-ins for GPUs a node of this type has in the local cloud, which has no GPUs; None on AWS."""
    memory_gib: float = 0
    architecture: str = "x86_64"
    """x86_64 or arm64."""
    image: Image | None = None
    """What EC2 says about the image; None if it was not asked."""
    kept_file_system: str = ""
    """The file system that an earlier `down` of this name kept; the shared directory uses it again."""
    ssh_public_key: str = ""
    network_cards: int = 1
    cards: tuple[Card, ...] = ()
    """The type's network cards if it takes Elastic Fabric Adapters, else none."""
    strategies: tuple[str, ...] = ("cluster", "partition", "spread")
    """The strategies of placement groups that the type supports."""
    reservation: Reservation | None = None
    """The reservation that the spec names."""
    mount_targets: tuple[MountTarget, ...] = ()
    """Those of the file system that the spec names."""
    node_role: tuple[str, str] = ("", "")
    """The ARN and the unique id of the role that the spec names for EMR's nodes."""
    lustre: LustreFileSystem | None = None
    """The file system that the spec names, if it is one of FSx for Lustre."""
    vpc: ExistingVpc | None = None
    """The VPC of the subnets that the spec names."""
    own_address: str = ""
    """This machine's public address, if the spec asks for it."""
    head: HeadFacts | None = None
    """The sizes of a head that does not train."""
    quotas: tuple[Quota, ...] = ()
    """On AWS those that the cluster takes of, with their limits if they could be asked."""
    quotas_unknown: str = ""
    """Why the quotas could not be asked."""
    shortages: tuple[machine_room.Shortage, ...] = ()
    """What this machine has not enough of for all nodes of a local cluster."""
    key: KmsKey | None = None
    """The key that the spec names for all that is stored."""
    disk_key: str = ""
    """The account's own default key, with which disks are encrypted; "" for AWS's."""
    blocked_access: str = ""
    """The mode of VPC Block Public Access that counts for the cluster's VPC: block-ingress, block-bidirectional."""
    data: Mapping[str, Contents] = field(default_factory=dict)
    """What is in the S3 prefixes that are mounted, by name; none if that was not asked."""
    prices: money.Prices = money.TABLE
    """What nodes cost, on AWS by its price list if that could be asked."""
    others: tuple[Facts, ...] = ()
    """Those of the spec's other types."""
    not_asked: str = ""
    """Why the cloud was not asked, if everything comes from the tables; zones and image are not checked then."""
    patience: Patience = ON_AWS
    """How long agents wait; in the local cloud's weather as much shorter as its delays are."""
    deployment: int = 1
    """1 for a new stack, then counted up at each deployment, because a WaitCondition can't be used again."""

    def about_keys(self) -> Iterator[str]:
        """Warn of a key that others may not use: each launch would end after a minute (docs/aws-behaviour.md 11.12)."""
        yield from self.key.warnings(self.region) if self.key else ()
        if self.disk_key:
            yield (
                f"the account encrypts disks with {self.disk_key}: launches fail unless the role "
                "AWSServiceRoleForAutoScaling may use it (`phalanx doctor` shows whether it may, and the grant to make)"
            )
