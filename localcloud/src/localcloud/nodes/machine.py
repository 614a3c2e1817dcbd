"""The records between the API process and the supervisor: Machine, NodeState, NodeError and Site."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BRIDGE = "vpc"
"""The link that connects a VPC's nodes and their router."""
IMDS_ADDRESS = "169.254.169.254"
IMDS_PORT = 80
DNS_ADDRESS = "169.254.169.253"
DNS_PORT = 53
# The ports that nodes can reach outside: git over ssh, and the web.
WAY_OUT_PORTS = (22, 80, 443)
API_ADDRESS = "169.254.1.1"
# The port of AWS's endpoints, for which security groups and their rules are written.
API_PORT = 443
# Users' connections come from this address outside the VPC (RFC 5737), as those from the internet do on AWS.
USER_ADDRESS = "203.0.113.1"
# Public addresses: half of RFC 2544's for network tests, which no host on the internet has.
PUBLIC_NETWORK = "198.19.0.0/16"
API_URL = f"http://{API_ADDRESS}:{API_PORT}"


EXPORTS = "nfs"
"""The directory in the state directory with what nodes serve over NFS, by VPC."""
BUCKETS = "s3"
"""The directory in the state directory with the files of mounted buckets, by VPC."""


class NodeError(Exception):
    """The supervisor could not carry out a request; the message says which and why."""


@dataclass(frozen=True)
class Machine:
    """An instance to boot. `address` is in `vpc_cidr`; `file_systems`: ids → addresses (placement.machine).

    Without a way out, its packets to addresses outside of the VPC are dropped until `NodeRunner.give_way_out`.
    """

    instance_id: str
    vpc_id: str
    vpc_cidr: str
    address: str
    hostname: str
    instance_type: str
    vcpus: int
    memory_mib: int
    user_data: bytes
    domain: str
    """Of the region's services, such as us-east-1.amazonaws.com."""
    zone: str
    file_systems: Mapping[str, str]
    has_way_out: bool = True
    image: str = ""
    """The name of its image, with a full operating system; "" for this machine's own programs."""
    gpus: str = ""
    """What `nvidia-smi` lists; "" without GPUs."""
    local_disks: bool = False
    """Whether its type has disks of its own."""
    gpus_after_s: float = 0.0
    """How long `nvidia-smi` takes to load the driver, once after each boot."""
    apt_busy_s: float = 0.0
    """For how long after each boot apt's lock is held, and then no mirror answers; only of a full operating system."""
    admin_key: str = ""
    """The public key of its key pair, for the image's administrator; "" without one."""
    administrator: str = "ubuntu"
    """The default user of its image."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """What its user data runs (user_data.scripts); empty on images with their own cloud-init."""
    rate_bit_s: int = 0
    """What its link carries each way; 0: as much as it can."""
    delay_s: float = 0.0
    """How late each packet leaves it."""

    @property
    def dns_domain(self) -> str:
        """The domain of the private names of its region's instances (docs/aws-behaviour.md 2.76)."""
        region = self.domain.partition(".")[0]
        return "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "user_data": base64.b64encode(self.user_data).decode()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        return cls(
            **{
                **data,
                "user_data": base64.b64decode(data["user_data"]),
            }
        )


@dataclass(frozen=True)
class NodeState:
    """A node that was booted and not yet killed. `alive`: its init still runs.

    `pid` is its init's pid on the host; 0 while the machine is built.
    """

    instance_id: str
    vpc_id: str
    address: str
    hostname: str
    pid: int
    alive: bool
    console: Path
    rate_bit_s: int
    delay_s: float
    inner_pid: int = 0
    """The same process, as the local cloud's own processes see it."""


@dataclass(frozen=True)
class Site:
    """What all nodes of a local cloud share: the directory of its files, the uid mode, and what they see of the host.

    `root` is the uid of the nodes' root in the supervisor's namespace (userns.root_of_nodes). `cgroup` is the directory
    of all nodes' control groups; None if they are not limited. `etc` contains further files of the image, by their
    names below /etc. `images` is the directory of images with a full operating system, whose nodes see only `pip_paths`
    of this machine: those that its settings for pip name. `most_processes` is the limit of all nodes together, and
    `memory_bytes` is what this machine or the container around it has. `is_fips`:
    OpenSSH in nodes without an image of their own allows what it allows in FIPS mode.
    """

    state: Path
    mode: str
    binds: tuple[Path, ...]
    path_dirs: tuple[str, ...]
    root: int = 0
    cgroup: Path | None = None
    etc: Mapping[str, str] = field(default_factory=dict)
    images: Path | None = None
    pip_paths: tuple[Path, ...] = ()
    most_processes: int = 0
    memory_bytes: int = 0
    is_fips: bool = False

    @property
    def image(self) -> Path:
        return self.state / "image"

    @property
    def layer(self) -> Path:
        """What the local cloud adds to every image with a full operating system."""
        return self.state / "image-layer"

    @property
    def file_systems(self) -> Path:
        return self.state / "efs"

    @property
    def buckets(self) -> Path:
        """The files of mounted buckets: a directory for each VPC, and in it one for each bucket."""
        return self.state / BUCKETS

    def exports(self, vpc_id: str) -> Path:
        """What the nodes of a VPC serve each other over NFS."""
        return self.state / EXPORTS / vpc_id

    def node(self, instance_id: str) -> Path:
        return self.state / "nodes" / instance_id

    def disk(self, instance_id: str) -> Path:
        return self.node(instance_id) / "disk"

    def shm(self, instance_id: str) -> Path:
        return self.node(instance_id) / "shm"

    def console(self, instance_id: str) -> Path:
        return self.node(instance_id) / "console.log"

    @property
    def path(self) -> str:
        """PATH of the image: `path_dirs`, then Ubuntu's directories."""
        return ":".join([*self.path_dirs, STANDARD_PATH])


STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def mac_of(address: str) -> str:
    """Return the hardware address for an IPv4 address; 0a means locally administered, as on EC2."""
    return ":".join(["0a", "ff", *(f"{int(part):02x}" for part in address.split("."))])
