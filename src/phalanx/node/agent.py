"""This node: its settings, its identity, and the AWS services that it uses."""

from __future__ import annotations

import os
import time
from typing import Any

from phalanx.node import account, contract, core_group, files, loader, mount, services, trust, validate
from phalanx.node.aws_client import Aws
from phalanx.node.bootlog import BootLog
from phalanx.node.command import CommandError, insist
from phalanx.node.metadata import Metadata
from phalanx.node.roster import Node
from phalanx.node.settings import Settings

# What nvidia-smi prints at once while the driver is being loaded, after a reboot.
_DRIVER_COMES = "communicate with the NVIDIA driver"


class Agent:
    """What boot, head and worker share. Created with the metadata service: raises OSError without it."""

    def __init__(self, settings: Settings, metadata: Metadata, root: str = "") -> None:
        self.settings, self.metadata, self.root = settings, metadata, root
        self.log = BootLog()
        # A head's progress until `settled` (node.progress): its step, and the workers that said hello, (id, address).
        self.step, self.settled = "", False
        self.answered: list[tuple[str, str]] = []
        # How many nodes may poll the table: as many as the cluster was created with, then as in the newest roster.
        self.nodes = settings.nodes
        # Of the head that was there when this worker was made.
        head = files.read(loader.HEAD)
        self.head_address = head and validate.address(head, settings.networks)
        self.identity = metadata.identity()
        self.aws = aws = Aws(settings.region, settings.domain, metadata.credentials, settings.patience)
        self.queue = services.Queue(aws, settings.queue_url)
        self.table = services.Table(aws, settings.table)
        self.fleet, self.own_group = _fleets(aws, settings)
        self.stream = services.LogStream(aws, settings.log_group, self.identity.address)

    def describe(self) -> Node:
        """Return this node's description, without a name: the head assigns that."""
        identity = self.identity
        expected = self.settings.gpus.partition("=")
        gpus = _gpus(int(expected[2]) if expected[0] == identity.type else 0, self.settings.patience.driver_s)
        name = os.uname().nodename.split(".")[0]
        kind = trust.kind_of_keys(self.root)
        return Node(
            name="",
            instance_id=identity.instance_id,
            address=identity.address,
            # One of EC2's two kinds of hostname, whatever the image has changed it to.
            hostname=name if name == identity.instance_id else "ip-" + identity.address.replace(".", "-"),
            zone=identity.zone,
            type=identity.type,
            gpus=gpus,
            slots=max(0, self.settings.slots or gpus or os.cpu_count() or 1),
            head=self.settings.head,
            host_key=validate.key_line(trust.make_key(self.root + trust.host_key(kind), identity.instance_id, kind)),
            user_key=validate.key_line(trust.make_key(self.root + trust.user_key(kind), identity.instance_id, kind)),
        )

    def machine(self) -> contract.Machine:
        settings = self.settings
        added = self.fleet.administrator, self.fleet.address_file
        return contract.this_machine(settings.region, settings.shared, settings.job_user, self.root, *added)

    def job_uid(self) -> int:
        return account.find(self.settings.job_user, self.root)

    def shared_from(self, head_address: str) -> mount.Source:
        """Return from where a node mounts the shared directory."""
        settings = self.settings
        if settings.file_system == mount.HEAD:
            return mount.of_head(head_address, settings.shared)
        if mount.LUSTRE in settings.file_system:
            return mount.of_lustre(settings.file_system)
        return mount.of_efs(settings.file_system, f"efs.{settings.region}.{settings.domain}", bool(settings.tls))

    def report(self, kind: str, **content: Any) -> None:
        """Send the head a message about this node."""
        self.queue.send({"kind": kind, "instance_id": self.identity.instance_id, **content})


def _fleets(aws: Aws, settings: Settings) -> tuple[services.Fleet, services.Fleet]:
    """Return the workers' machines and the head's, as the service counts them that makes them."""
    if settings.emr:
        workers = (core_group.Fixed if settings.fixed else core_group.Core)(aws, settings.emr)
        return workers, workers
    return services.Fleet(aws, settings.workers_group), services.Fleet(aws, settings.head_group)


def _gpus(expected: int, driver_s: float) -> int:
    """Return the number of working GPUs. Raises CommandError if they are fewer than the type has."""
    argv = ["nvidia-smi", "-L"]
    try:
        passing, end = _DRIVER_COMES if expected else "(?!)", time.monotonic() + driver_s
        listed = insist(argv, driver_s, passing, end, lambda _: None)
    except CommandError:
        if expected:
            raise
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    if found < expected:
        raise CommandError(" ".join(argv), 0, f"only {found} of {expected} GPUs work:\n{listed}")
    return found
