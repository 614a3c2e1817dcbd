"""This node's settings, from the launch template."""

from __future__ import annotations

from typing import Any, NamedTuple

from phalanx.node.workers_group import nodes_of

FORMAT = 1
"""The number of the settings' format."""
_NUMBERS = ("min", "node_timeout_s", "slots")


class Patience(NamedTuple):
    """How long the agent waits for what takes AWS a while. A rehearsal in the local cloud passes shorter times."""

    call_s: float = 60.0
    """A call that fails is repeated for this long."""
    pause_s: float = 5.0
    """The longest pause before a call is repeated."""
    metadata_s: float = 30.0
    """A new machine may have no identity or credentials for this long (docs/aws-behaviour.md 2.27)."""
    signal_s: float = 120.0
    """The outcome is sent to CloudFormation for this long."""
    hello_s: float = 30.0
    """A worker that the head does not know says hello again after this: hellos may be lost, and a new head has none."""
    launch_s: float = 120.0
    """A shortage of machines is believed after this (node.decision)."""
    driver_s: float = 180.0
    """nvidia-smi loads the GPUs' driver for this long (docs/aws-behaviour.md 11.15)."""
    new_role_s: float = 180.0
    """S3 may refuse a new role for this long (docs/aws-behaviour.md 11.5)."""
    remount_s: float = 60.0
    """A member that has restarted waits this long for its mounts of S3 before it serves without them: jobs wait."""
    notice_every_s: float = 5.0
    """How often to look for a spot instance's notice, as AWS recommends (docs/aws-behaviour.md 2.16)."""
    metrics_every_s: float = 60.0

    @staticmethod
    def of(given: str) -> Patience:
        """Return what a text such as "call_s=6,pause_s=0.5" says, and AWS's times for the rest."""
        pairs = (one.partition("=") for one in given.split(",") if one)
        return Patience(**{name: float(wait_s) for name, _, wait_s in pairs})


ON_AWS = Patience()


class Settings(NamedTuple):
    """`config.json` as the user data wrote it; all values come as texts."""

    job_user = "phalanx"
    stack_id: str
    domain: str
    """Of the partition: amazonaws.com, amazonaws.com.cn, amazonaws.eu … (docs/aws-behaviour.md 6.1)."""
    role: str
    queue_url: str
    table: str
    log_group: str
    job_role: str
    nodes: int
    """How many the cluster was created with; how many are requested now is in the table's item `wish`."""
    min: int
    node_timeout_s: int
    shared: str
    file_system: str
    """The id of an EFS file system, where Lustre is mounted from, or mount.HEAD."""
    slots: int
    """0: one for each GPU, or for each vCPU; -1: none, on a head that does not train."""
    efa: str
    """How many Elastic Fabric Adapters this node has; "" if it needs none."""
    gpus: str
    """The stack's instance type and how many GPUs it has, as in "p4d.24xlarge=8"; "" if it has none."""
    block: str
    """The Capacity Block in which the nodes are, or ""."""
    ssh_public_key: str
    wait_handle: str
    networks: str
    """Where the nodes' addresses are: CIDR blocks with commas."""
    worker_role: str
    """Unique id of the workers' role, by which the head recognizes their messages; "" on a worker."""
    address: str
    """Allocation of the Elastic IP, which the head takes; "" on a worker, and where there is none."""
    digest: str
    agent: str
    """The beginning of the agent's stream (node.loader)."""
    offline: str = ""
    """"1" if nodes reach no package mirror, or ""."""
    metrics: str = ""
    """"1" if this node sends metrics of NFS, or ""."""
    tls: str = ""
    """"1" if nodes mount EFS only by TLS, or ""."""
    emr: str = ""
    """The EMR cluster that makes the machines (`j-…`); "" if Auto Scaling does."""
    fixed: str = ""
    """"1" if the EMR cluster is a user's own, whose size is not the head's to change."""
    linked: str = ""
    """The directories of Lustre's data/ that are prefixes of S3, with commas; "+" behind those where jobs may write."""
    data: str = ""
    """The prefixes of S3 that are mounted (node.data_mounts); "" for none."""
    patience: Patience = ON_AWS

    @staticmethod
    def of(given: dict[str, str]) -> Settings:
        """Build them from texts. Raises OSError if a newer phalanx wrote these; ValueError, KeyError or TypeError."""
        number = int(given["format"])
        if number > FORMAT:
            made = f"made by a newer phalanx (format {number}; this one reads {FORMAT})"
            raise OSError(f"the configuration of this node was {made}: pip install -U phalanx")
        if number != FORMAT:
            raise ValueError(f"{number} is no format")
        values: dict[str, Any] = {name: given[name] for name in Settings._fields if name in given}
        values.update({name: int(given[name]) for name in _NUMBERS}, nodes=nodes_of(int(given["workers"])))
        return Settings(**{**values, "patience": Patience.of(given.get("patience", ""))})

    @property
    def cluster(self) -> str:
        """The stack's name, from `arn:aws:cloudformation:<region>:<account>:stack/<name>/<uuid>`."""
        return self.stack_id.split("/")[1]

    @property
    def region(self) -> str:
        return self.stack_id.split(":")[3]

    @property
    def workers_group(self) -> str:
        return self.cluster + "-workers"

    @property
    def head_group(self) -> str:
        return self.cluster + "-head"

    @property
    def head(self) -> bool:
        return self.role == "head"
