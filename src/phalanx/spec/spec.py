"""ClusterSpec, the user's request. Each field is a key of phalanx.yaml with its rule, default, meaning and example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from phalanx.data import table
from phalanx.errors import SpecError, in_lines
from phalanx.spec import spec_bucket, spec_data, spec_emr, spec_job, spec_lustre
from phalanx.spec import spec_checks as checks
from phalanx.spec import spec_limits as limits
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_disk import DISK
from phalanx.spec.spec_groups import TAGS, group
from phalanx.spec.spec_key import IN_PLACE, NEW_MACHINES, REFUSED, Change, Key, Needs, key
from phalanx.spec.spec_network import NETWORK, SSH_FROM, in_its_place
from phalanx.spec.spec_rules import (
    matching,
    number,
    one_of,
    one_or_more,
    text,
    time_or_none_s,
    time_s,
    whole,
    word,
    words,
)
from phalanx.spec.spec_storage import FILE_SYSTEM_ID, STORAGE, keepable, of_efs, of_service, on_service

_AT_CREATION = Change(Needs.NOTHING, "at the next creation")
_COUNTED = Change(Needs.NOTHING, "at once, counted from now")


def _types() -> dict[str, Any]:
    return {"anyOf": [{"enum": list(table("prices")["usd_per_hour"])}, {"pattern": whole(checks.TYPE)}]}


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster that the user requested: frozen, valid, with defaults for everything that the cloud does not decide.

    Raises SpecError with all mistakes at once. A field that ends in `_s` is a key without `_s` whose value has a unit.
    """

    name: str = key(
        "Name of the cluster and of its CloudFormation stack.",
        limits.NAME,
        "demo",
        change=Change(Needs.NOTHING, "it is another cluster"),
    )
    cloud: str = key(
        "Where the cluster runs: `local` is this machine, at no cost; `aws` is your AWS account; `emr` is your account "
        "too, but Amazon EMR makes the nodes; `local-emr` is the same on this machine.",
        one_of(lambda: CLOUDS, "'{}' is not a cloud that phalanx supports"),
        "local",
        change=REFUSED,
        default="local",
    )
    region: str = key(
        "AWS region.",
        one_of(lambda: table("regions")["regions"], "'{}' is not an AWS region", "any of AWS, such as eu-central-1"),
        "us-east-1",
        change=REFUSED,
        default="us-east-1",
    )
    zones: tuple[str, ...] | None = key(
        "Availability Zones of the region, the preferred one first. All nodes are in the first zone that offers the "
        "type and has capacity for it at `up`. In another account, a zone of the same name may be another place.",
        words(
            checks.ZONE,
            limits.MOST_ZONES,
            "the name of an ordinary zone, such as us-east-1a (Local and Wavelength Zones have no EFS)",
        ),
        ["us-east-1b", "us-east-1c"],
        change=Change(Needs.MEMBERS, "at the next creation; a list without the cluster's own zone is refused"),
        unset="the first ordinary zone that offers the type",
        beside=checks.zones_of_region,
        default=None,
    )
    nodes: int = key(
        "Number of machines, the head included.",
        number(1, limits.MOST_NODES),
        4,
        change=Change(Needs.MEMBERS, "at once, as with `phalanx scale`"),
    )
    min: int = key(
        "Smallest number of nodes to accept: with fewer, `up` fails and deletes everything again.",
        number(1, limits.MOST_NODES),
        2,
        change=_AT_CREATION,
        beside=checks.at_most_nodes,
        default=1,
    )
    type: str = key(
        "EC2 instance type, of the workers and of a head that trains. With a list, `up` tries the next type where AWS "
        "has no capacity for one in any of the `zones`.",
        one_or_more(text(checks.instance_type, _types, limits.ANY_TYPE), limits.MOST_TYPES),
        "c5.large",
        change=NEW_MACHINES,
        default="c5.large",
    )
    head: Mapping[str, Any] | None = key(
        "A separate machine as the head, which runs no processes of jobs: its type, for the same processor as `type`.",
        group({"type": text(checks.instance_type, _types, limits.ANY_TYPE)}),
        {"type": "m5.large"},
        change=NEW_MACHINES,
        not_on_emr=("the master node is of `type`, and trains", "remove the line"),
        unset="the head is of `type` and trains",
        beside=checks.head_of_workers,
        default=None,
    )
    capacity: str | None = key(
        "How machines are bought. `spot` makes the workers spot instances, which AWS may take back at two minutes' "
        "notice; the head stays on demand. With the id of a Capacity Reservation or a Capacity Block, the nodes that "
        "train are there.",
        matching(
            f"on-demand|spot|{limits.RESERVATION}",
            "'{}' is no way to buy machines",
            "write on-demand, spot, or the id of a reservation",
            "on-demand, spot, or the id of a Capacity Reservation or Capacity Block, such as cr-0123456789abcdef0",
        ),
        "spot",
        change=NEW_MACHINES,
        unset="on-demand",
        beside=checks.spot_workers,
        default=None,
    )
    image: str | None = key(
        "Image of the nodes: an alias, an AMI id of the region, the path of an SSM parameter that holds one, or "
        "`recipe:torch` for the newest that `phalanx image build torch` has made (`recipe:torch@VERSION` for another).",
        text(
            checks.image,
            lambda: {
                "anyOf": [
                    {"enum": list(table("images")["images"])},
                    {"pattern": whole(checks.IMAGE)},
                ]
            },
            f"{', '.join(table('images')['images'])}, an id such as ami-0123abcd, a path such as /aws/service/…, "
            "or recipe:NAME",
        ),
        "ubuntu-24.04",
        change=NEW_MACHINES,
        unset="by the type, {cpu} or, with GPUs, {gpu}".format(**table("images")["default"]),
        default=None,
    )
    shared: str = key(
        "Directory that all nodes share.",
        text(
            checks.shared,
            lambda: {"pattern": whole(f"{checks.SHARED}/*")},
            "a path below /mnt, or one that begins with /data, /efs, /fsx, /lustre, /nfs, /project, /share, /storage "
            "or /work; of letters, digits and . _ - /",
        ),
        "/efs",
        change=REFUSED,
        default="/efs",
    )
    slots: int | None = key(
        "Processes that a node is meant to run.",
        number(1, 1024),
        2,
        change=NEW_MACHINES,
        unset="its GPUs, else its vCPUs",
        default=None,
    )
    network: Mapping[str, Any] | None = key(
        "Network of the nodes. `cidr` is the block of addresses of the VPC that the stack makes. Choose another one if "
        "nodes must reach a network that uses these addresses. `head_subnet` is a subnet of an existing VPC, and "
        "`worker_subnet` another one, if the workers have their own. The head's needs a default route to an internet "
        "gateway, the workers' to a NAT gateway or an internet gateway. The VPC is left as it is. With "
        "`access: private`, nodes have no public address. They reach AWS through endpoints, and ssh goes through AWS "
        "Systems Manager. In an existing VPC, the stack makes the endpoints that it lacks, or none where the subnets "
        "have a way out.",
        NETWORK,
        {"cidr": "10.20.0.0/16"},
        change=REFUSED,
        unset="a VPC with 10.0.0.0/16",
        beside=in_its_place,
        default=None,
    )
    ssh_from: str | tuple[str, ...] = key(
        "Networks that may reach the head by ssh. `auto` is the public address of the machine that runs `up`, as AWS "
        "sees it; `anywhere` is the whole internet.",
        SSH_FROM,
        "203.0.113.7/32",
        change=IN_PLACE,
        unset="this machine; on AWS it must be given, unless `network` has `access: private`",
        beside=checks.ssh_from_default,
        default="",
    )
    key_pair: str | None = key(
        "An EC2 key pair that may also log in, as the image's own user.",
        limits.KEY_PAIR,
        "my-key",
        change=NEW_MACHINES,
        default=None,
    )
    node_timeout_s: int = key(
        "Time after which a node that has not answered counts as missing.",
        time_s(limits.LONGEST_NODE_TIMEOUT_S, "the stack itself gives up after 55 minutes"),
        "20m",
        change=NEW_MACHINES,
        unset="10m, or 30m for bare metal, which takes longer to start",
        default=None,
    )
    storage: str | None = key(
        "What serves the shared directory. `efs` outlives the cluster; `lustre` is a fast file system of FSx, which "
        "the key `lustre` describes; `head` is a directory of the head's disk, at no further cost, which ends with it.",
        STORAGE,
        "efs",
        change=REFUSED,
        unset="efs",
        beside=on_service,
        default=None,
    )
    file_system: str | None = key(
        "Your own EFS file system for the shared directory, or with `storage: lustre` your own of FSx for Lustre. The "
        "cluster uses its mount targets in the VPC of `network`, if there are any. If it contains data, its root keeps "
        "its owner and mode, and jobs can write where you let uid 2000 write. A hostile job can read and change "
        "everything on an EFS file system.",
        FILE_SYSTEM_ID,
        "fs-0123456789abcdef0",
        change=REFUSED,
        unset="a new one",
        beside=of_service,
        default=None,
    )
    throughput: str | None = key(
        "How the new EFS file system is billed for its speed, which all nodes share. `bursting` costs nothing more and "
        "is slow once its credits are spent; `elastic` stays fast and costs by the GB read and written.",
        word(("bursting", "elastic")),
        "elastic",
        change=IN_PLACE,
        unset="bursting",
        beside=of_efs,
        default=None,
    )
    tls: str | None = key(
        "With `required`, nodes mount EFS by TLS only, and a new file system refuses every client without TLS. The "
        "image needs amazon-efs-utils; on Amazon Linux, boot installs it.",
        word(("required",)),
        "required",
        change=REFUSED,
        unset="TLS where the image has amazon-efs-utils, else plain NFS",
        beside=of_efs,
        default=None,
    )
    metrics: str | None = key(
        "Whether each node reports to CloudWatch every minute how much it reads and writes over NFS, and how long "
        "requests take. CloudWatch bills four metrics for each node.",
        word(("yes", "no")),
        "yes",
        change=NEW_MACHINES,
        unset="no",
        default=None,
    )
    disk: Mapping[str, Any] | None = key(
        "Root disk of every node, an encrypted EBS volume: size, type, IOPS and throughput.",
        DISK,
        {"size_gib": 100, "type": "gp3", "iops": 6000},
        change=NEW_MACHINES,
        unset="gp3, as large as the image's",
        default=None,
    )
    placement: str | None = key(
        "Placement group of the nodes that train. `cluster` makes one that keeps them close together in the network, "
        "and makes a shortage of capacity likelier; a name chooses your own group.",
        limits.PLACEMENT,
        "cluster",
        change=NEW_MACHINES,
        not_on_emr=("EMR starts no instances in a cluster placement group", "remove the line"),
        unset="none",
        default=None,
    )
    efa: str | None = key(
        "Whether the nodes that train have an Elastic Fabric Adapter on each network card that supports it. Their "
        "image must have AWS's EFA software, as the DLAMIs do. A node without a working adapter counts as missing.",
        word(("yes", "no")),
        "yes",
        change=NEW_MACHINES,
        unset="no",
        default=None,
    )
    policies: tuple[str, ...] | None = key(
        "IAM policies for the role of jobs, by ARN: what a job may do in AWS beside reading its own files.",
        words(
            limits.POLICY,
            limits.MOST_POLICIES,
            "the ARN of a managed policy, such as arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess",
        ),
        ["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"],
        change=IN_PLACE,
        unset="none: jobs have no rights in AWS",
        default=None,
    )
    data: Mapping[str, str] | None = spec_data.KEY
    lustre: Mapping[str, Any] | None = spec_lustre.KEY
    permissions_boundary: str | None = key(
        "Permissions boundary of all roles that the stack makes, by ARN, for accounts that require one.",
        limits.BOUNDARY,
        "arn:aws:iam::123456789012:policy/boundary",
        change=IN_PLACE,
        default=None,
    )
    cloudformation_role: str | None = key(
        "Role that CloudFormation assumes to make, change and delete the stack, by ARN. Whoever runs phalanx then "
        "needs the right to pass it, and none to make anything; `phalanx policy --service-role` prints its parts.",
        limits.STACK_ROLE,
        "arn:aws:iam::123456789012:role/for-stacks",
        change=REFUSED,
        unset="the rights of whoever runs phalanx",
        default=None,
    )
    kms_key: str | None = key(
        "Your own KMS key for all that the stack stores, by ARN or by the ARN of an alias: disks, the file system, "
        "table, queue, topic, function and logs. `plan` names each service that its policy must let in and does not.",
        limits.KEY,
        "arn:aws:kms:us-east-1:123456789012:alias/clusters",
        change=REFUSED,
        not_on_emr=("EMR encrypts disks by a security configuration, which phalanx does not make", "remove the line"),
        unset="AWS's own keys",
        beside=checks.kms_key,
        default=None,
    )
    tags: Mapping[str, str] | None = key(
        "Tags of the stack and of everything that it makes, for example to find its costs.",
        TAGS,
        {"project": "vision", "cost-center": "ML-7"},
        change=IN_PLACE,
        default=None,
    )
    bucket: str | None = spec_bucket.KEY
    keep: str | None = key(
        "Whether `down` keeps the data in the shared directory. Deleting the stack in the console always keeps them.",
        word(("yes", "no", "ask")),
        "ask",
        change=Change(Needs.NOTHING, "at the next `phalanx down`"),
        unset="yes with your own file system, else ask",
        beside=keepable,
        default=None,
    )
    lease_s: int | None = key(
        "Time after which AWS stops all nodes, counted from `up`. The shared directory and the cluster's name stay, "
        "`phalanx extend` moves the end, and `up` starts the nodes again.",
        time_or_none_s(limits.LONGEST_LEASE_S, "a year is the longest lease"),
        "8h",
        change=_COUNTED,
        not_on_emr=spec_emr.NEVER_STOPS,
        unset="24h on AWS if the type has accelerators or an hour costs $20 or more, else none",
        default=None,
    )
    idle_s: int | None = key(
        "Time after which the cluster stops all its nodes if no program of a user runs on any of them and nobody types "
        "there.",
        time_or_none_s(limits.LONGEST_IDLE_S, "a week is the longest"),
        "30m",
        change=Change(Needs.UPDATE, "in place; the head reads it again within ten minutes"),
        not_on_emr=spec_emr.NEVER_STOPS,
        unset="1h on AWS where `lease` is 24h, else none",
        default=None,
    )
    budget: str | None = key(
        "What nodes, NAT gateway and addresses may cost: AWS stops all nodes when the price of the whole cluster times "
        "its running time reaches it.",
        matching(r"\$[0-9]{1,7}(\.[0-9]{1,2})?", "'{}' is not an amount in dollars", "write one such as $50"),
        "$50",
        change=_COUNTED,
        not_on_emr=spec_emr.NEVER_STOPS,
        default=None,
    )
    down_after_s: int | None = key(
        "Time after which a cluster whose nodes were stopped is deleted by itself, unless `up` has started it again. "
        "Data in EFS stay, whatever `keep` says, and `up` finds them under the same name.",
        time_or_none_s(limits.LONGEST_DOWN_AFTER_S, "30 days is the longest"),
        "7d",
        change=IN_PLACE,
        not_on_emr=spec_emr.NEVER_STOPS,
        unset="none",
        beside=checks.down_after,
        default=None,
    )
    mail: str | None = key(
        "Address that gets a mail before the nodes are stopped; AWS first sends it a mail to confirm that.",
        limits.MAIL,
        "me@example.com",
        change=IN_PLACE,
        not_on_emr=("EMR stops no nodes of which a mail could warn", "remove the line"),
        default=None,
    )
    boot: str | None = key(
        "Shell script that root runs on every node, once the shared directory is mounted.",
        text(checks.boot, dict, f"at most {checks.LARGEST_BOOT_BYTES // 1024} KiB, compressed"),
        "pip install my-package\n",
        change=REFUSED,
        default=None,
    )
    job: Mapping[str, Any] | None = key(
        "Options of `phalanx run` for every job. An option on the command line takes precedence. A change does not "
        "affect the cluster.",
        spec_job.JOB,
        spec_job.EXAMPLE,
        change=Change(Needs.NOTHING, "with the next `phalanx run`; `up` is not needed"),
        default=None,
    )
    emr: Mapping[str, Any] | None = key(
        "A cluster of Amazon EMR: the place in S3 for the agent and EMR's logs, its release and applications, and "
        "your own roles and managed security groups. For `cloud: emr` and `local-emr`, which need it.",
        spec_emr.EMR,
        spec_emr.EXAMPLE,
        change=Change(Needs.UPDATE, "in place where AWS can; what would replace the EMR cluster is refused"),
        unset=spec_emr.UNSET,
        default=None,
    )
    other_types: tuple[str, ...] = ()
    """The types after the first, if `type` is a list."""

    def __post_init__(self) -> None:
        accepted, wrong = check({one.field: getattr(self, one.field) for one in KEYS.values()})
        if wrong:
            raise in_lines(*(SpecError(f"{key}: {one.what}", one.hint, code=one.code) for key, one in wrong.items()))
        if isinstance(accepted["type"], tuple):
            accepted["type"], *accepted["other_types"] = accepted["type"]
        accepted["other_types"] = tuple(accepted.get("other_types", self.other_types))
        if accepted["node_timeout_s"] is None:
            head = (accepted["head"] or {}).get("type", "")
            metal = any(map(limits.is_metal, (head, accepted["type"], *accepted["other_types"])))
            accepted["node_timeout_s"] = limits.METAL_TIMEOUT_S if metal else limits.NODE_TIMEOUT_S
        for name, value in accepted.items():
            object.__setattr__(self, name, value)

    @property
    def types(self) -> tuple[str, ...]:
        """The types by preference."""
        return (self.type, *self.other_types)

    @property
    def reservation(self) -> str:
        """The id of the reservation in `capacity`, or ""."""
        return self.capacity if self.capacity and self.capacity.startswith("cr-") else ""

    @property
    def ssh_sources(self) -> tuple[str, ...]:
        """`ssh_from` as a tuple: networks in CIDR notation, auto or anywhere; () with private access."""
        return (self.ssh_from,) if isinstance(self.ssh_from, str) and self.ssh_from else tuple(self.ssh_from)

    @property
    def subnets(self) -> tuple[str, ...]:
        """The subnets of the head and of the workers in an existing VPC; () if the stack makes a VPC."""
        head = (self.network or {}).get("head_subnet")
        return (head, (self.network or {}).get("worker_subnet", head)) if head else ()

    @property
    def is_private(self) -> bool:
        """Whether no node has a public address."""
        return checks.is_private(self.network)

    @property
    def uses_efa(self) -> bool:
        """Whether nodes that train have EFA's adapters."""
        return self.efa == "yes"

    @property
    def sends_metrics(self) -> bool:
        """Whether nodes send to CloudWatch what they read and write over NFS."""
        return self.metrics == "yes"

    @property
    def budget_usd(self) -> float | None:
        """`budget` as a number."""
        return float(self.budget.removeprefix("$")) if self.budget else None


KEYS = {one.name: one for one in map(Key.of, (field for field in fields(ClusterSpec) if field.metadata))}
"""All keys of phalanx.yaml by name."""


def check(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, WrongError]]:
    """Return the fields in their normal form, with defaults, and the errors by key. Ignore missing required keys."""
    accepted: dict[str, Any] = {}
    wrong: dict[str, WrongError] = {}
    for one in KEYS.values():
        if one.field in given or not one.required:
            try:
                value = one.accept(given.get(one.field, one.default), accepted)
                accepted[one.field] = spec_emr.fitting(one, value, accepted)
            except WrongError as error:
                wrong[one.name] = error
    return accepted, wrong
