"""What the API side asks for (Machine), what it gets back (NodeState), and what can go wrong (NodeError)."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMDS_ADDRESS = "169.254.169.254"
IMDS_PORT = 80
DNS_ADDRESS = "169.254.169.253"
DNS_PORT = 53
# The ports that nodes can reach outside: git over ssh, and the web.
WAY_OUT_PORTS = (22, 80, 443)
API_ADDRESS = "169.254.1.1"
API_PORT = 4566
# Whence users' connections come, as those of the internet do on AWS: from outside of the VPC (RFC 5737).
USER_ADDRESS = "203.0.113.1"
API_URL = f"http://{API_ADDRESS}:{API_PORT}"


class NodeError(Exception):
    """The supervisor could not do what was asked; the text says what and why."""


@dataclass(frozen=True)
class Machine:
    """One instance to boot. `address` lies in `vpc_cidr`; `file_systems` are the EFS ids it may mount."""

    instance_id: str
    vpc_id: str
    vpc_cidr: str
    address: str
    hostname: str
    instance_type: str
    vcpus: int
    memory_mib: int
    user_data: bytes
    region: str
    zone: str
    file_systems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "user_data": base64.b64encode(self.user_data).decode()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        return cls(
            **{
                **data,
                "user_data": base64.b64decode(data["user_data"]),
                "file_systems": tuple(data["file_systems"]),
            }
        )


@dataclass(frozen=True)
class NodeState:
    """A node that was booted and not yet killed. `alive`: its init still runs.

    `pid` is its init's, as the host counts; 0 while the machine is built.
    """

    instance_id: str
    vpc_id: str
    address: str
    hostname: str
    pid: int
    alive: bool
    console: Path


@dataclass(frozen=True)
class Site:
    """What all nodes of one local cloud share: where its files are, the uid mode, what the image shows of the host.

    `root` is the nodes' root as the supervisor counts (userns.root_of_nodes). `cgroup` is the directory of all nodes'
    control groups; None if they are not limited. `etc` are more files of the image, by
    their names below /etc.
    """

    state: Path
    mode: str
    binds: tuple[Path, ...]
    path_dirs: tuple[str, ...]
    root: int = 0
    cgroup: Path | None = None
    etc: Mapping[str, str] = field(default_factory=dict)

    @property
    def image(self) -> Path:
        return self.state / "image"

    @property
    def file_systems(self) -> Path:
        return self.state / "efs"

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
        """PATH of the image: the directories asked for, then Ubuntu's."""
        return ":".join([*self.path_dirs, STANDARD_PATH])


STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def mac_of(address: str) -> str:
    """The hardware address of the interface with this IPv4 address; 0a: as on EC2, locally administered."""
    return ":".join(["0a", "ff", *(f"{int(part):02x}" for part in address.split("."))])
