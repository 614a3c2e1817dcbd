"""A node's namespaces: less privileged than the supervisor's, so that root in them can't undo what it built.

When a mount namespace is copied into a new user namespace, all its mounts are locked: they can't be made writable or
removed there (mount_namespaces(7)). Root on a node owns the node's network and process namespaces.
"""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Callable

from localcloud.nodes import kernel, userns
from localcloud.nodes.machine import Site

_OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
_OWN |= kernel.CLONE_NEWCGROUP


def make_for_nodes(site: Site) -> None:
    """Make everything that this process creates belong to the nodes' root; it keeps its capabilities."""
    if site.root:
        kernel.change_owner(site.root)


def enter(site: Site, connect: Callable[[int], None]) -> None:
    """Move this process into new namespaces, whose process 1 will be its next child.

    Once the namespaces of this process, `pid`, exist, a helper outside of them calls `connect(pid)`. Raises OSError,
    also for the helper's errors.
    """
    created_r, created_w = os.pipe()
    error_r, error_w = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(created_w)
        os.close(error_r)
        _help(site, connect, created_r, error_w)
    os.close(created_r)
    os.close(error_w)
    kernel.unshare(_OWN if site.mode == "root" else _OWN | kernel.CLONE_NEWUSER)
    os.write(created_w, b"g")
    os.close(created_w)
    with os.fdopen(error_r) as pipe:
        problem = pipe.read()
    os.waitpid(helper, 0)
    if problem:
        raise OSError(*json.loads(problem))


def _help(site: Site, connect: Callable[[int], None], created_r: int, error_w: int) -> None:
    """Set up the namespaces of the parent process from outside. Never returns."""
    try:
        if os.read(created_r, 1):
            if site.mode != "root":
                userns.map_ids(os.getppid(), site.root)
            connect(os.getppid())
    except BaseException as problem:
        traceback.print_exc()
        os.write(error_w, json.dumps(_facts(problem)).encode())
    finally:
        os._exit(0)


def _facts(problem: BaseException) -> tuple[int, str, str]:
    """Return the error's errno, text and step."""
    if isinstance(problem, OSError):
        return problem.errno or errno.EIO, problem.strerror or str(problem), str(problem.filename or problem.strerror)
    if isinstance(problem, userns.NamespaceError):
        return problem.code, problem.detail, problem.step
    return errno.EIO, f"{type(problem).__name__}: {problem}", "isolation"
