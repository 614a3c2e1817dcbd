"""The groups and users of a config."""

from __future__ import annotations

import grp
import pwd
from typing import Any

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import run


def add_groups(groups: dict[str, dict[str, Any] | None]) -> list[str]:
    """Make the groups that are missing; return their names."""
    return [name for name in sorted(groups) if _add_group(name, str((groups[name] or {}).get("gid", "")))]


def _add_group(name: str, gid: str) -> bool:
    existing = next((group for group in grp.getgrall() if group.gr_name == name), None)
    if existing:
        _require_same("Group", name, "gid", existing.gr_gid, gid)
        return False
    _succeed(["/usr/sbin/groupadd", "-r", *(["-g", gid] if gid else []), name], f"create group {name}")
    return True


def add_users(users: dict[str, dict[str, Any] | None]) -> list[str]:
    """Make users that can't log in, or change their groups and homes; return the names of those that changed."""
    return [name for name in sorted(users) if _add_user(name, users[name] or {})]


def _add_user(name: str, given: dict[str, Any]) -> bool:
    existing = next((user for user in pwd.getpwall() if user.pw_name == name), None)
    home, uid = given.get("homeDir"), str(given.get("uid", ""))
    options = [*(["-G", ",".join(map(str, given["groups"]))] if given.get("groups") else [])]
    options += ["-d", home] if home and not (existing and existing.pw_dir == home) else []
    if existing is None:
        wanted = ["-M", "-r", "--shell", "/sbin/nologin", *options, *(["-u", uid] if uid else [])]
        _succeed(["/usr/sbin/useradd", *wanted, name], f"add user {name}")
        return True
    _require_same("User", name, "uid", existing.pw_uid, uid)
    if options:
        _succeed(["/usr/sbin/usermod", *options, name], f"modify user {name}")
    return bool(options)


def _require_same(what: str, name: str, key: str, number: int, wanted: str) -> None:
    if wanted and str(number) != wanted:
        raise FailedError(f"{what} {name} exists with {key} {number}, but {key} {wanted} was requested")


def _succeed(command: list[str], doing: str) -> None:
    if run(command, doing):
        raise FailedError(f"FailedError to {doing}")
