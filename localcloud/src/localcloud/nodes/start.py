"""Start a local cloud's processes, each of which dies with the one above it.

starter                      writes the uid maps, waits          (the host's namespaces)
├── gateway                  the nodes' way out                  (the host's namespaces)
└── outer                    makes the namespaces
    └── supervisor           process 1 of a pid namespace        (all below dies with it)
        ├── API process      serve_api(NodeRunner, listener)
        └── node             process 1 of its own namespaces, a user namespace among them; one per machine
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from localcloud import accounts
from localcloud.network.nat import gateway
from localcloud.network.netlink import Rtnetlink
from localcloud.nodes import image, isolation, kernel, limits, userns, wire
from localcloud.nodes.client import NodeRunner
from localcloud.nodes.machine import Site
from localcloud.nodes.supervisor import Supervisor
from localcloud.nodes.userns import exit_status
from localcloud.storage import trees

ServeApi = Callable[[NodeRunner, socket.socket], None]

_BACKLOG = 512


def start_supervisor(
    state: Path,
    mode: str,
    binds: Sequence[Path],
    path_dirs: Sequence[str],
    serve_api: ServeApi,
    etc: Mapping[str, str] | None = None,
    cgroup: Path | None = None,
    images: Path | None = None,
    pip_paths: Sequence[Path] = (),
) -> int:
    """Run a local cloud until `serve_api` returns, and return the exit status of that process.

    `cgroup` (cgroups.take) contains the nodes' control groups; `images` the images with a full operating system, whose
    nodes see `pip_paths`.

    Forks three times, so the caller must have no threads. Raises userns.NamespaceError if this machine does not support
    `mode` ("range", "single" or "root"). When the caller dies, everything dies.
    """
    root = userns.root_of_nodes(mode)
    seen = (tuple(binds), tuple(path_dirs))
    site = Site(
        state.resolve(),
        mode,
        *seen,
        root,
        cgroup,
        etc or {},
        images,
        tuple(pip_paths),
        limits.most_processes(),
        limits.most_memory_bytes(),
        accounts.read(state) == accounts.GOV,
    )
    limits.allow_many_files()
    # Here, because only this process's network leads outside.
    way_out, gateway_pid = gateway.start()
    try:
        with way_out, socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
            doors = Doors(listener, way_out)
            pid = userns.spawn(mode, lambda: _outer(site, doors, serve_api))
        return exit_status(os.waitpid(pid, 0)[1])
    finally:
        os.kill(gateway_pid, signal.SIGKILL)
        os.waitpid(gateway_pid, 0)


class Doors(NamedTuple):
    """What the API process needs from the host's network: its listener, and the connection to the gateway."""

    listener: socket.socket
    way_out: socket.socket

    def close(self) -> None:
        self.listener.close()
        self.way_out.close()


def _outer(site: Site, doors: Doors, serve_api: ServeApi) -> int:
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
    kernel.unshare(flags)
    alive_r, alive_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(alive_w)
            kernel.die_with_parent()
            if os.read(alive_r, 1):
                os.close(alive_r)
                status = _supervise(site, doors, serve_api)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    doors.close()
    os.close(alive_r)
    os.write(alive_w, b"g")
    return exit_status(os.waitpid(pid, 0)[1])


def _supervise(site: Site, doors: Doors, serve_api: ServeApi) -> int:
    os.umask(0o022)  # files with the user's restrictive umask would be unreadable for a node's accounts
    kernel.mount(None, "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    loopback = Rtnetlink()
    loopback.set_up("lo")  # for the API process and its children
    loopback.close()
    _clear(site)
    for directory in (site.file_systems, site.buckets):
        directory.mkdir(parents=True, exist_ok=True)
    image.mount(site)
    ours, theirs = wire.pair()
    api = _fork(lambda: (ours.close(), _run_api(theirs, doors, serve_api)))
    theirs.close()
    doors.close()
    builder = _fork(lambda: (isolation.make_for_nodes(site), image.build(site)))
    try:
        return Supervisor(site, ours, api, builder, host_proc).run()
    finally:
        kernel.unmount(site.image)
        _clear(site)


def _clear(site: Site) -> None:
    for directory in (site.state / "nodes", site.image, site.layer, site.buckets):
        trees.remove(directory)


def _run_api(channel: socket.socket, doors: Doors, serve_api: ServeApi) -> None:
    serve_api(NodeRunner(channel, doors.way_out), doors.listener)


def _fork(main: Callable[[], object]) -> int:
    """Run `main` in a child, which exits with 0 when it returns, and with 1 and a traceback when it raises."""
    _flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _flush() -> None:
    """Flush the buffers, which os._exit would lose and os.fork would duplicate."""
    sys.stdout.flush()
    sys.stderr.flush()
