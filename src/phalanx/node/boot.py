"""Boot a node step by step, and report a step that fails to where the user sees it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

from phalanx.node import (
    account,
    adapters,
    contract,
    daemon,
    failure,
    files,
    firewall,
    loader,
    local_disks,
    mount,
    packages,
    progress,
    trust,
    wire,
)
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError
from phalanx.node.command import CommandError, run
from phalanx.node.disk import BOOTED, HOME
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

# The trap names the command that failed; bash itself would only stop.
_BASH = "set -eE -o pipefail; trap 'echo \"line $LINENO: $BASH_COMMAND: exit $?\" >&2' ERR; . "
# Of the node's timeout, so that theirs is reported before the node's.
OFFERS_EFA = ["/opt/amazon/efa/bin/fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
MEMORY_LIMIT = "/etc/security/limits.d/phalanx.conf"
"""Of what a login may lock, which PAM reads."""
_TRIES_SHARE = 0.5
# It fails unless libfabric offers the adapter, whose kernel module and library come with AWS's EFA software
# (docs/aws-behaviour.md 5.6).
_SCRIPT_SHARE = 0.9


def boot(settings: Settings, metadata: Metadata, root: str = "", by_unit: bool = False) -> bool:
    """Run all steps and, unless this is the agent's unit, start the agent. Return False if a step failed."""
    step, failed = "identity", True
    agent = None
    try:
        agent = Agent(settings, metadata, root)
        agent.log.ship(agent.stream)
        for step, action in steps(agent, by_unit):
            agent.step = step
            agent.log.say(f"step: {step}")
            action()
        failed = False
    except Exception as error:
        files.write(root + BOOTED, f"failed: {step}\n")
        failure.report(settings, agent, step, error)
        if agent is not None:
            failure.make_way(agent)
    if agent is not None:
        # Last, so that a hello does not wait for it.
        agent.log.close()
    return not failed


def steps(agent: Agent, by_unit: bool = False) -> list[tuple[str, Callable[[], Any]]]:
    """Return the steps in order, each with its name. Each may run again, after a reboot."""
    settings, root = agent.settings, agent.root

    def make_user() -> None:
        account.make_environments(account.make_user(settings.job_user, root), root)
        account.authorize(settings.job_user, settings.ssh_public_key, root)

    patience_s = _TRIES_SHARE * settings.node_timeout_s

    def check_fabric() -> None:
        see_adapters(int(settings.efa), settings.job_user, patience_s, root)

    serves = settings.head and settings.file_system == mount.HEAD

    def mount_shared() -> None:
        if serves:
            mount.serve(settings.shared, agent.job_uid(), settings.networks)
        else:
            source = agent.shared_from(agent.head_address)
            mount.mount(source, settings.shared, agent.job_uid(), patience_s, agent.log.say, settings.linked)

    def make_keys() -> None:
        account.share_key(trust.make_keys(root, agent.identity.instance_id), settings.job_user, root)

    def start() -> None:
        files.write(root + BOOTED, "ready to serve\n")
        if not by_unit:
            daemon.start(agent)

    return [
        *([("address", lambda: _take_address(agent, patience_s))] if settings.address else []),
        ("workers", lambda: _raise_workers(agent)),
        ("firewall", lambda: firewall.install(settings.job_user, root)),
        ("job user", make_user),
        *([("fabric", check_fabric)] if settings.efa else []),
        ("packages", lambda: _install(agent, serves, patience_s)),
        ("shared directory", mount_shared),
        ("local disks", lambda: local_disks.mount(agent.job_uid(), agent.log.say, root)),
        ("ssh keys", make_keys),
        ("boot script", lambda: _run_script(agent)),
        ("agent", start),
    ]


def see_adapters(wanted: int, user: str, patience_s: float, root: str = "") -> None:
    """See that libfabric offers EFA and that no adapter is missing. Raises CommandError.

    Adapters register memory that can't be swapped, of which PAM allows a login 8 MiB (docs/aws-behaviour.md 2.66).
    """
    run(OFFERS_EFA, patience_s)
    if (found := adapters.count(root)) < wanted:
        raise CommandError("ls /sys/class/infiniband", 1, f"{found} of {wanted} Elastic Fabric Adapters are there")
    files.write(root + MEMORY_LIMIT, files.line(user, "-", "memlock", "unlimited"))


def _install(agent: Agent, serves: bool, patience_s: float) -> None:
    """Install what the image lacks. `serves`: this node serves the shared directory."""
    settings, root, say = agent.settings, agent.root, agent.log.say
    path = contract.this_machine(settings.region, settings.shared, settings.job_user, root).path
    lacking = packages.lacking(path, root, serves)
    if lacking and settings.offline:
        say(f"not on the image, and no mirror can be reached: {' '.join(lacking)}")
    else:
        packages.install(lacking, patience_s, say)
    if mount.LUSTRE in settings.file_system and not settings.offline:
        packages.install_lustre(patience_s, say, root)
    if settings.tls:
        packages.install_efs_utils(patience_s, say, root)
    if settings.data:
        packages.install_mountpoint(patience_s, say, root)


def _take_address(agent: Agent, patience_s: float) -> None:
    """Take the cluster's Elastic IP. No stack waits for a head that replaces another, so it must not give up early."""
    end, count = time.monotonic() + patience_s, 0
    while True:
        try:
            agent.fleet.take_address(agent.settings.address, agent.identity.instance_id)
            break
        except AwsError as error:
            if error.code.startswith(("AccessDenied", "Unauthorized")) or time.monotonic() > end:
                raise
            agent.log.say(f"{error}; trying again")
        wire.pause(count, agent.settings.patience.pause_s)
        count += 1
    wire.forget()


def _raise_workers(agent: Agent) -> None:
    """On a first head, request the workers now, so that they boot in parallel. `Head.serve` requests them again."""
    if not agent.settings.head:
        return
    from phalanx.node import head  # here, because compiling it would cost a worker a fifth of its CPU time

    def work() -> None:
        try:
            if not agent.table.get("roster"):
                head.raise_workers(agent)
        except AwsError as error:
            agent.log.say(f"the workers were not raised yet: {error}")

    progress.begin(agent)
    threading.Thread(target=work, daemon=True).start()


def _run_script(agent: Agent) -> None:
    """Run the user's script by its own interpreter, or by bash up to the first command that fails."""
    settings, root = agent.settings, agent.root
    if not os.path.exists(loader.SCRIPT) or not os.path.getsize(loader.SCRIPT):
        return
    if settings.head:
        # A script may end this machine or process: the progress shows then that it was the script.
        progress.report(agent)
    state = f"{root}{HOME}/boot-script"
    if files.read(state) == "ended":
        return
    if not files.write(state, "began", is_synced=True):
        raise CommandError("the boot script", 1, "the machine restarted while it ran")
    files.sync(os.path.dirname(state))
    with open(loader.SCRIPT, "rb") as file:
        has_interpreter = file.read(2) == b"#!"
    machine = contract.this_machine(settings.region, settings.shared, settings.job_user, root)
    environment = {**os.environ, "PATH": machine.path, "EFS_MOUNT": settings.shared, "HOME": "/root"}
    environment["PHALANX_SCRATCH"] = machine.scratch
    argv = [loader.SCRIPT] if has_interpreter else ["/bin/bash", "-c", _BASH + loader.SCRIPT]
    try:
        run(argv, _SCRIPT_SHARE * settings.node_timeout_s, agent.log.say, env=environment, cwd="/")
    except CommandError as error:
        raise CommandError("the boot script", error.status, error.output) from None
    files.write(state, "ended", is_synced=True)
    files.sync(os.path.dirname(state))
