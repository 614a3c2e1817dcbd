"""An EMR cluster that phalanx did not make, as far as its adoption needs to know it. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    """A master or core instance that runs."""

    instance_id: str
    address: str
    """Its private address."""
    is_master: bool


@dataclass(frozen=True)
class EmrCluster:
    """An EMR cluster that can be adopted. `instances` has the master first, and no task instances."""

    cluster_id: str
    name: str
    instances: tuple[Instance, ...]
    master_address: str
    """The master's public address, or its private one if it has no other."""
    master_type: str
    type: str
    """Of the core instances, or of a master without any."""
    gpus: int
    """How many a core instance has."""
    image: str
    network: str
    """The block of addresses of its subnet."""
    group: str
    """The managed security group of the master."""
    key_pair: str
    """"" if it has none, so that nobody can log in."""
    role: str
    """The name of the role that all instances have."""
    role_arn: str
    role_id: str
    task_instances: int
    ends_itself: bool
    """Whether EMR ends it after its last step."""

    @property
    def master(self) -> Instance:
        return self.instances[0]

    @property
    def head_trains(self) -> bool:
        """Whether jobs run on the master, too: unless it is of another type than the core instances."""
        return self.master_type == self.type
