"""A node's own namespaces: below the supervisor's in rank, so that root in them can undo nothing of what it built.

A mount namespace that is copied into a new user namespace has all of its mounts locked: they can't be made writable or
taken away there (mount_namespaces(7)). Root on a node owns its namespaces of the network and of processes.
"""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Callable

from phalanx.localcloud import kernel, userns
from phalanx.localcloud.nodes.machine import Site

_OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
_OWN |= kernel.CLONE_NEWCGROUP


def make_for_nodes(site: Site) -> None:
    """Let whatever this process creates from now on belong to the nodes' root; its capabilities stay."""
    if site.root:
        kernel.change_owner(site.root)


def enter(site: Site, connect: Callable[[int], None]) -> None:
    """Move this process into new namespaces, whose process 1 will be its next child.

    `connect(pid)` is called in a helper that stays outside, once the namespaces of `pid`, this process, are there.
    Raises OSError, the helper's included.
    """
    there_r, there_w = os.pipe()
    said_r, said_w = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(there_w)
        os.close(said_r)
        _help(site, connect, there_r, said_w)
    os.close(there_r)
    os.close(said_w)
    kernel.unshare(_OWN if site.mode == "root" else _OWN | kernel.CLONE_NEWUSER)
    os.write(there_w, b"g")
    os.close(there_w)
    with os.fdopen(said_r) as said:
        problem = said.read()
    os.waitpid(helper, 0)
    if problem:
        raise OSError(*json.loads(problem))


def _help(site: Site, connect: Callable[[int], None], there_r: int, said_w: int) -> None:
    """Never returns."""
    try:
        if os.read(there_r, 1):
            if site.mode != "root":
                userns.map_ids(os.getppid(), site.root)
            connect(os.getppid())
    except BaseException as problem:
        traceback.print_exc()
        os.write(said_w, json.dumps(_facts(problem)).encode())
    finally:
        os._exit(0)


def _facts(problem: BaseException) -> tuple[int, str, str]:
    """Errno, words and step."""
    if isinstance(problem, OSError):
        return problem.errno or errno.EIO, problem.strerror or str(problem), str(problem.filename or problem.strerror)
    if isinstance(problem, userns.NamespaceError):
        return problem.code, problem.detail, problem.step
    return errno.EIO, f"{type(problem).__name__}: {problem}", "isolation"
