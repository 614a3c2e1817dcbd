"""One build of an image: a machine from the parent image runs the components and becomes an image, which is tested."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from moto.logs.models import logs_backends

from localcloud.api import moto_setup
from localcloud.context import Context
from localcloud.ec2 import fleet
from localcloud.images import store
from localcloud.images.imagebuilder import registered
from localcloud.images.imagebuilder.documents import Step
from localcloud.images.store import Image
from localcloud.nodes.machine import STANDARD_PATH

log = logging.getLogger(__name__)
# systemd and cloud-init, on a busy machine.
_BOOT_TIMEOUT_S = 600.0
_LOOK_EVERY_S = 0.5
# As Image Builder does at the end of its own builds (docs/aws-behaviour.md 9.11).
_SANITIZE = """set -eu
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /root/.*_history /home/*/.*_history
rm -rf /var/lib/cloud/* /var/log/journal/* /tmp/* /var/tmp/*
find /var/log -type f -exec truncate -s 0 {} +
rm -f /etc/hostname
: >/etc/machine-id
"""
_ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_ENV = {"PATH": STANDARD_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
# The node's own files, without what its boot mounts.
_PACK = ("tar", "--create", "--one-file-system", "--numeric-owner", "--exclude=./dev/*", "--directory=/", ".")
_MOST_CHARACTERS = 500
_UNPACK = ("tar", "--extract", "--numeric-owner", "--preserve-permissions")


class BuildFailed(Exception):  # noqa: N818 - a result that is shown, not a bug
    """The image can't be made; the message says which step failed, and how."""


@dataclass(frozen=True)
class Order:
    """What to build: the image, its parent, the machine, and the components' steps in order."""

    image: Image
    region: str
    parent: str
    machine: Mapping[str, Any]
    steps: Sequence[Step]
    log_group: str
    log_stream: str
    tests: bool = True


class Build:
    """A build that runs on a thread of its own, and calls `done` with what failed (None: nothing), unless cancelled."""

    def __init__(self, context: Context, order: Order, done: Callable[[str | None], None]) -> None:
        self._context, self._order, self._done = context, order, done
        self._cancelled = threading.Event()
        self._ended: Callable[[], None] | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._instance_id = ""
        self._is_full = False

    def start(self) -> None:
        self._context.spawn(self._run, name=f"image-{self._order.image.name}")

    def cancel(self, ended: Callable[[], None]) -> bool:
        """End the build; return whether it still runs, and then call `ended` when nothing of it is left."""
        with self._lock:
            if self._is_over:
                return False
            self._ended = ended
        self._cancelled.set()
        self._terminate()
        return True

    def _run(self) -> None:
        try:
            self._make()
            failed = None
        except BuildFailed as reason:
            failed = str(reason)
        except Exception as error:
            log.exception("the build of %s", self._order.image.name)
            failed = f"Internal Failure: {error}"
        with self._lock:
            self._is_over = True
        if self._ended:
            registered.deregister(self._context, self._order.image.ami)
            self._ended()
        else:
            self._done(failed)

    def _make(self) -> None:
        with _Machine(self, self._order.parent) as shell:
            self._run_phases(shell, ("build", "validate"))
            self._keep(shell)
        if self._order.tests:
            with _Machine(self, self._order.image.ami) as shell:
                self._run_phases(shell, ("test",))

    def launch(self, image_id: str) -> Shell:
        """Start a machine, and return a shell on it once it has booted. Raises BuildFailed."""
        backend = ec2_backends[self._context.account][self._order.region]
        reservation = backend.run_instances(image_id, 1, None, [], **self._order.machine)
        self._instance_id = reservation.instances[0].id
        self.say(f"launched {self._instance_id} from {image_id}")
        end = time.monotonic() + _BOOT_TIMEOUT_S
        while time.monotonic() < end and not self._cancelled.wait(_LOOK_EVERY_S):
            shell = self._shell()
            if shell and shell.succeeds("test", "-e", "/run/cloud-init/result.json"):
                return shell
        raise BuildFailed(f"{self._instance_id} did not finish its boot within {_BOOT_TIMEOUT_S:g} s")

    def _shell(self) -> Shell | None:
        instance = fleet.current().instance(self._instance_id)
        if instance is None or instance.state not in fleet.LIVE:
            raise BuildFailed(f"{self._instance_id} has ended")
        nodes = self._context.runner.nodes()
        pid = next((node.inner_pid for node in nodes if node.instance_id == self._instance_id and node.pid), 0)
        return Shell(pid) if pid else None

    def end_machine(self) -> None:
        """Terminate the machine, and wait until it is gone."""
        gone = threading.Event()
        fleet.current().when_it_is(self._instance_id, ("terminated",), lambda _state: gone.set())
        self._terminate()
        gone.wait(_BOOT_TIMEOUT_S)

    def _terminate(self) -> None:
        instance = fleet.current().instance(self._instance_id)
        if instance is not None:
            fleet.current().end(instance, "Client.UserInitiatedShutdown", "Image Builder has ended it")

    def _run_phases(self, shell: Shell, phases: Sequence[str]) -> None:
        for step in self._order.steps:
            if step.phase in phases:
                self.say(f"phase {step.phase}, step {step.name}")
                self._check(shell.run(step.script, step.timeout_s, self.say), f"phase {step.phase}, step {step.name}")

    def _check(self, failed: str, what: str) -> None:
        if self._cancelled.is_set():
            raise BuildFailed(f"{what} failed: {failed or 'cancelled'}")
        if failed and self._is_full:
            failed = f"the machine's disk is full; it is a part of this machine's memory ({failed})"
        if failed:
            raise BuildFailed(f"{what} failed: {failed}")

    def _keep(self, shell: Shell) -> None:
        """Make an image of the machine's disk."""
        self.say(f"creating {self._order.image.ami}")
        self._check(shell.run(_SANITIZE, _BOOT_TIMEOUT_S, self.say), "the clean-up")
        with registered.partial(self._context, self._order.image.name) as partial:
            tree = partial / store.TREE
            tree.mkdir()
            os.chown(tree, self._context.root_of_nodes, self._context.root_of_nodes)
            self._check(shell.copy(tree), "the copy of the disk")
            image = registered.described(self._context, self._order.image, tree)
            registered.complete(self._context, partial, image)

    def say(self, line: str) -> None:
        """Write a line to the build's log, as Image Builder does to CloudWatch."""
        self._is_full |= os.strerror(errno.ENOSPC) in line
        backend: Any = logs_backends[self._context.account][self._order.region]
        group, stream = self._order.log_group, self._order.log_stream
        if group not in backend.groups:
            backend.create_log_group(group, {})
        if stream not in backend.groups[group].streams:
            backend.create_log_stream(group, stream)
        at_ms = int(self._context.clock.now().timestamp() * 1000)
        backend.put_log_events(group, stream, [{"timestamp": at_ms, "message": line or " "}])


class _Machine:
    """A machine of a build, which ends with the block: `with _Machine(build, image_id) as shell`."""

    def __init__(self, build: Build, image_id: str) -> None:
        self._build, self._image_id = build, image_id

    def __enter__(self) -> Shell:
        if self._image_id not in moto_setup.FULL_IMAGES.values():
            raise BuildFailed(f"{self._image_id} has no full operating system: choose one of `localcloud image build`")
        try:
            return self._build.launch(self._image_id)
        except BuildFailed:
            self._build.end_machine()
            raise

    def __exit__(self, *_error: object) -> None:
        self._build.end_machine()


class Shell:
    """A root shell on the node whose process 1 is `pid`, as this process sees it."""

    def __init__(self, pid: int) -> None:
        self._target = ("nsenter", f"--target={pid}", "--user")

    def succeeds(self, *argv: str) -> bool:
        """Run a program quietly, and return whether it succeeded."""
        done = subprocess.run([*self._target, *_ENTER, *argv], env=_ENV, capture_output=True, check=False)
        return done.returncode == 0

    def run(self, script: str, timeout_s: float, say: Callable[[str], None]) -> str:
        """Run a script with bash, and pass each line of its output on. Return what failed, "" for nothing."""
        pipe = subprocess.PIPE
        argv = [*self._target, *_ENTER, "bash", "-s"]
        process = subprocess.Popen(argv, env=_ENV, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, cwd="/")
        assert process.stdin and process.stdout
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(script.encode())
            for line in process.stdout:
                say(line.decode(errors="replace").rstrip())
            code = process.wait()
        finally:
            late = timer.finished.is_set()
            timer.cancel()
        if late:
            return f"timed out after {timeout_s:g} s"
        return f"exit code {code}" if code else ""

    def copy(self, tree: Path) -> str:
        """Copy the node's file system to a directory of the nodes' root. Return what failed, "" for nothing."""
        # By the current directory, since the nodes' root may not enter those above it.
        unpack = [*self._target, *_UNPACK]
        with subprocess.Popen([*self._target, *_ENTER, *_PACK], env=_ENV, stdout=subprocess.PIPE) as packing:
            unpacked = subprocess.run(unpack, stdin=packing.stdout, stderr=subprocess.PIPE, cwd=tree, check=False)
        # tar's 1: a file changed while it was read, such as a log.
        if packing.returncode not in (0, os.EX_OK + 1) or unpacked.returncode:
            last = unpacked.stderr.decode(errors="replace")
            ended = (
                f"tar ended with exit codes {packing.returncode} and {unpacked.returncode}: {last[-_MOST_CHARACTERS:]}"
            )
            return store.full_disk(last, tree.parents[1]) or ended
        return ""
