"""Mount prefixes of S3 by Mountpoint, with the rights of the role of jobs, and mount one again that ends.

Mountpoint gets credentials as jobs do, from this agent: never those of the node (docs/aws-behaviour.md 12.6).
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
import threading
import time
from dataclasses import dataclass

from phalanx.node import credentials, files, local_disks
from phalanx.node.agent import Agent
from phalanx.node.command import CommandError, run
from phalanx.node.speed import SPEED

PLACE = "/s3"
_LOGS = "/var/log/phalanx-s3"
_CACHE = "/var/cache/phalanx-s3"
_OF_DISKS = ".phalanx-s3"
_TOKEN = "/run/phalanx-s3.token"
# Of the free space when mounts are made, for all their caches: jobs need the rest.
_CACHE_SHARE = 0.25
_WITHIN_S = 60
_LOOK_S = 0.5
_AGAIN_S = 5 / SPEED
# How long S3 may refuse a role that is new (docs/aws-behaviour.md 11.5).
_NEW_ROLE_S = 180 / SPEED
# How long uploads may take after a job's last process has ended.
_UPLOADS_WITHIN_S = 3600
# A file that could not be uploaded, in Mountpoint's log: its writer may not have heeded the error (12.8).
_NOT_UPLOADED = re.compile(r"\b(?:WARN|ERROR) .*?\{(.*)\}: \S+: (?:flush|release|fsync) failed with (?!errno 9:)(.*)")
_NAME = re.compile(r'\bname="?([^"\s]+)')
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Mount:
    """A prefix, which ends with "/" or is "" for the whole bucket, and the name of its directory."""

    name: str
    bucket: str
    prefix: str
    is_writable: bool

    @property
    def place(self) -> str:
        return f"{PLACE}/{self.name}"


def of(setting: str) -> list[Mount]:
    """Return what a setting names, such as `pets:bucket/prefix/;runs+:bucket/`."""
    found = []
    for entry in filter(None, setting.split(";")):
        name, _, where = entry.partition(":")
        bucket, _, prefix = where.partition("/")
        found.append(Mount(name.rstrip("+"), bucket, prefix, name.endswith("+")))
    return found


def command(mount: Mount, region: str, owner: int, root: str = "") -> list[str]:
    """Return Mountpoint's command line. Only where nobody here writes is a cache never behind (12.7)."""
    argv = ["mount-s3", mount.bucket, mount.place, f"--region={region}", f"--log-directory={_LOGS}/{mount.name}"]
    argv += [f"--uid={owner}", f"--gid={owner}", "--allow-other"]
    if mount.prefix:
        argv.append(f"--prefix={mount.prefix}")
    if mount.is_writable:
        return [*argv, "--allow-delete", "--allow-overwrite"]
    return [*argv, "--read-only", f"--cache={_cache(mount, root)}"]


def _cache(mount: Mount, root: str) -> str:
    """Return the directory of a mount's cache: on the instance's own disks, if it has some."""
    own = local_disks.place(root)
    return f"{own}/{_OF_DISKS}/{mount.name}" if own else f"{_CACHE}/{mount.name}"


def keep_own_place(disks: str) -> None:
    """Make the directory of caches on the instance's own disks, where jobs write: they must not put another there.

    Raises CommandError if one did.
    """
    me = os.geteuid()
    os.chown(disks, me, me)
    # With the sticky bit, each removes and renames only what is its own.
    os.chmod(disks, 0o1777)
    place = f"{disks}/{_OF_DISKS}"
    os.makedirs(place, mode=0o700, exist_ok=True)
    found = os.lstat(place)
    if found.st_uid != me or not stat.S_ISDIR(found.st_mode):
        raise CommandError(f"mkdir {place}", 1, "something of a job is in the way")


class DataMounts:
    """The mounts of this node. Whatever ends is reported to the jobs here."""

    def __init__(self, agent: Agent, desk: credentials.Desk) -> None:
        self._agent, self._desk, self._root = agent, desk, agent.root
        self._mounts = of(agent.settings.data)
        self._lost: dict[str, str] = {}
        self._lock = threading.Lock()
        self._token = self._kept_token()
        desk.lend_to(self._token, "data")

    def _kept_token(self) -> str:
        """Return the token of this boot: Mountpoint goes on while the agent restarts."""
        path = self._root + _TOKEN
        files.write(path, files.read(path) or os.urandom(32).hex(), 0o600)
        return files.read(path)

    def begin(self, end: float) -> None:
        """Mount all by `end`, and watch them. Raises CommandError."""
        end = min(end, time.monotonic() + _NEW_ROLE_S)
        for mount in self._mounts:
            while self._state(mount):
                try:
                    self._mount(mount)
                except (CommandError, OSError) as error:
                    if time.monotonic() > end:
                        raise
                    self._agent.log.say(f"{error}; trying again")
                    time.sleep(_AGAIN_S)
        threading.Thread(target=self._watch, daemon=True).start()

    def problems(self) -> list[str]:
        """Look at all mounts; return what is wrong with each that has ended."""
        with self._lock:
            for mount in self._mounts:
                state = self._state(mount)
                if state:
                    self._lost.setdefault(mount.name, f"the mount of {mount.name} at {mount.place} ended: {state}")
            return list(self._lost.values())

    def logged(self) -> dict[str, int]:
        """Return how long each log of writable mounts is now."""
        paths = [path for mount in self._mounts if mount.is_writable for path in self._logs(mount)]
        return {path: os.path.getsize(path) for path in paths}

    def unsaved(self, since: dict[str, int]) -> list[str]:
        """Wait until nothing is being uploaded; return what of the files written since then is not in S3."""
        deadline = time.monotonic() + _UPLOADS_WITHIN_S
        found = []
        for mount in [one for one in self._mounts if one.is_writable]:
            while not self._state(mount) and self._uploads(mount):
                if time.monotonic() > deadline:
                    found.append(f"files in {mount.place} were not in S3 within {_UPLOADS_WITHIN_S} s")
                    break
                time.sleep(_LOOK_S)
            failed = [text for path in self._logs(mount) for text in _failures(path, since.get(path, 0))]
            more = f" and {len(failed) - _MOST_SHOWN} more" if len(failed) > _MOST_SHOWN else ""
            if failed:
                found.append(f"not in S3, from {mount.place}: {'; '.join(failed[:_MOST_SHOWN])}{more}")
        return found

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            problems = self.problems()
            for problem in problems:
                self._agent.log.say(problem)
            self._desk.tell(problems)
            for mount in [one for one in self._mounts if one.name in self._lost]:
                self._restore(mount)

    def _restore(self, mount: Mount) -> None:
        """Mount again what has ended; if that fails, it is tried again after a pause."""
        try:
            self._mount(mount)
        except (CommandError, OSError) as error:
            self._agent.log.say(f"{error}; trying again")
            time.sleep(_AGAIN_S)
            return
        with self._lock:
            del self._lost[mount.name]
        self._agent.log.say(f"{mount.place} is mounted again")

    def _mount(self, mount: Mount) -> None:
        argv = command(mount, self._agent.settings.region, self._agent.job_uid(), self._root)
        # Nothing else can be done with a directory whose Mountpoint has died (12.9).
        while self._is_mounted(mount):
            run(["umount", "-l", mount.place], _WITHIN_S)
        os.makedirs(mount.place, exist_ok=True)
        if not mount.is_writable:
            cache = _cache(mount, self._root)
            if local_disks.place(self._root):
                keep_own_place(local_disks.place(self._root))
            os.makedirs(cache, mode=0o700, exist_ok=True)
            number = sum(not one.is_writable for one in self._mounts)
            argv.append(f"--max-cache-size={int(shutil.disk_usage(cache).free * _CACHE_SHARE / number) >> 20}")
        if os.path.isdir(f"{self._root}/run/systemd/system"):
            # In a scope of its own: it must not end with the agent's unit.
            argv = ["systemd-run", "--quiet", "--scope", *argv]
        run(argv, _WITHIN_S, env={**os.environ, **credentials.variables(self._token)})

    def _state(self, mount: Mount) -> str:
        """Return why a mount is not there; "" if it is."""
        if not self._is_mounted(mount):
            return "it is not mounted"
        try:
            os.stat(mount.place)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _is_mounted(self, mount: Mount) -> bool:
        lines = files.read(f"{self._root}/proc/self/mountinfo").splitlines()
        return any(line.split()[4] == mount.place for line in lines)

    def _uploads(self, mount: Mount) -> bool:
        """Whether requests of the mount are being worked on: the last close of a file waits for its upload (12.8)."""
        try:
            device = os.minor(os.stat(mount.place).st_dev)
        except OSError:
            return False
        return files.read(f"{self._root}/sys/fs/fuse/connections/{device}/waiting").strip() not in ("", "0")

    def _logs(self, mount: Mount) -> list[str]:
        return sorted(glob.glob(f"{self._root}{_LOGS}/{mount.name}/*"))


def _failures(log: str, offset: int) -> list[str]:
    """Return each file that could not be uploaded, as Mountpoint's log has it from this offset on."""
    with open(log, errors="replace") as file:
        file.seek(offset)
        return [f"{_name(found[1])}: {found[2]}" for found in map(_NOT_UPLOADED.search, file) if found]


def _name(fields: str) -> str:
    found = _NAME.search(fields)
    return found[1] if found else "a file"
