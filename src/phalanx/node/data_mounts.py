"""Mount prefixes of S3 by Mountpoint, with the rights of the role of jobs, and mount one again that ends.

Mountpoint gets credentials as jobs do, from this agent: never those of the node (docs/aws-behaviour.md 12.6).
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import shutil
import stat
import threading
import time
from typing import Callable, Iterator, NamedTuple, Optional

from phalanx.node import credentials, files, local_disks, proc_files
from phalanx.node.agent import Agent
from phalanx.node.command import CommandError, run

PLACE = "/s3"
_LOGS = "/var/log/phalanx-s3"
_CACHE = "/var/cache/phalanx-s3"
_OF_DISKS = ".phalanx-s3"
_TOKEN = "/run/phalanx-s3.token"
# Of the free space when mounts are made, for all their caches: jobs need the rest.
_CACHE_SHARE = 0.25
_WITHIN_S = 60
_LOOK_S = 0.5
_AGAIN_S = 5
# Mountpoint answers for a prefix itself from its memory. One that does not answer within this is as good as dead.
_ANSWERS_WITHIN_S = 60
_QUICK_S = 0.1
# How long uploads may take after a job's last process has ended.
_UPLOADS_WITHIN_S = 3600
# The same where other jobs run that may write. All but the last close of a file waits in its process for the upload,
# and what is left then takes seconds (12.8).
_BESIDE_OTHERS_S = 120
# Between others' requests there is hardly a moment without any.
_LOOK_AT_UPLOADS_S = 0.05
# A file that could not be uploaded, in Mountpoint's log: its writer may not have heeded the error (12.8).
_NOT_UPLOADED = re.compile(r"\b(?:WARN|ERROR) .*?\{(.*)\}: \S+: (?:flush|release|fsync) failed with (?!errno 9:)(.*)")
_NAME = re.compile(r'\bname="?([^"\s]+)')
_MOST_SHOWN = 3
_LONGEST_LINE = 4096
LOST, UNSAVED, UNSURE = "lost", "unsaved", "unsure"
"""What jobs are told of their data: a mount has ended, files are not in S3, or it is not known whether they are."""


class Mount(NamedTuple):
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


class Doubt(NamedTuple):
    """What is not in S3 (UNSAVED), or may not be there (UNSURE), of what a job has written."""

    kind: str
    text: str


class _Question:
    """A look at a directory, in a thread of its own: if the directory hangs, only that thread does."""

    def __init__(self, place: str) -> None:
        self.asked = time.monotonic()
        self.answer: Optional[str] = None
        self._thread = threading.Thread(target=self._ask, args=(place,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(_QUICK_S)

    def _ask(self, place: str) -> None:
        try:
            os.stat(place)
            self.answer = ""
        except OSError as error:
            self.answer = str(error.strerror)


class DataMounts:
    """The mounts of this node. Whatever ends is reported to the jobs here."""

    def __init__(self, agent: Agent, desk: credentials.Desk) -> None:
        self._agent, self._desk, self._root = agent, desk, agent.root
        self._mounts = of(agent.settings.data)
        self._lost: dict[str, str] = {}
        self._questions: dict[str, _Question] = {}
        self._lock = threading.Lock()
        self._token = self._kept_token()
        desk.lend_to(self._token, "data")

    def _kept_token(self) -> str:
        """Return the token of this boot: Mountpoint goes on while the agent restarts."""
        path = self._root + _TOKEN
        files.write(path, files.read(path) or os.urandom(32).hex(), 0o600)
        return files.read(path)

    def begin(self, end: float, is_member: bool = False) -> None:
        """Mount all by `end`, and watch them. Raises CommandError, but not on a member, which serves without them."""
        now, patience = time.monotonic(), self._agent.settings.patience
        end = now + patience.remount_s if is_member else min(end, now + patience.new_role_s)
        for mount in self._mounts:
            self._begin(mount, end, is_member)
        for mount in self._mounts:
            threading.Thread(target=self._watch, args=(mount,), daemon=True).start()

    def _begin(self, mount: Mount, end: float, is_member: bool) -> None:
        while self._state(mount):
            try:
                self._mount(mount, end - time.monotonic() if is_member else _WITHIN_S)
            except (CommandError, OSError) as error:
                if is_member:
                    reason = error.output if isinstance(error, CommandError) else str(error)
                    self._lost[mount.name] = f"{mount.name} at {mount.place} can't be mounted: {reason}"
                    return
                if time.monotonic() > end:
                    raise
                self._agent.log.say(f"{error}; trying again")
                time.sleep(_AGAIN_S)

    def problems(self) -> list[str]:
        """Look at all mounts; return what is wrong with each that has ended."""
        return list(filter(None, map(self._problem, self._mounts)))

    def _problem(self, mount: Mount) -> str:
        with self._lock:
            state = self._state(mount)
            if state:
                self._lost.setdefault(mount.name, f"the mount of {mount.name} at {mount.place} ended: {state}")
            return self._lost.get(mount.name, "")

    def logged(self) -> dict[str, int]:
        """Return how long each log of writable mounts is now."""
        paths = [path for mount in self._mounts if mount.is_writable for path in self._logs(mount)]
        return {path: os.path.getsize(path) for path in paths}

    def settle(
        self, since: dict[str, int], others: Callable[[], list[str]], is_gone: Callable[[], object]
    ) -> list[Doubt]:
        """Wait until nothing is being uploaded; return what of the files written since then may not be in S3.

        `others` are the jobs that run on this node since before, and `is_gone` is whether nobody waits for this.
        """
        found = []
        for mount in [one for one in self._mounts if one.is_writable]:
            doubt = self._await_uploads(mount, others, is_gone)
            found += [doubt] if doubt else []
            failed = itertools.chain.from_iterable(_failures(path, since.get(path, 0)) for path in self._logs(mount))
            first = list(itertools.islice(failed, _MOST_SHOWN))
            left = sum(1 for _ in failed)
            if first:
                more = f" and {left} more" if left else ""
                found.append(Doubt(UNSAVED, f"not in S3, from {mount.place}: {'; '.join(first)}{more}"))
        return found

    def _await_uploads(
        self, mount: Mount, others: Callable[[], list[str]], is_gone: Callable[[], object]
    ) -> Optional[Doubt]:
        begun = time.monotonic()
        while mount.name not in self._lost and self._uploads(mount) and not is_gone():
            waited_s, beside = time.monotonic() - begun, others()
            if waited_s > _UPLOADS_WITHIN_S:
                return Doubt(UNSAVED, f"files in {mount.place} were not in S3 within {_UPLOADS_WITHIN_S} s")
            if beside and waited_s > _BESIDE_OTHERS_S:
                when = f"uploads to {mount.place} had not ended {_BESIDE_OTHERS_S} s after the job's last process"
                return Doubt(UNSURE, f"{when}; they may be of other jobs on the node: {', '.join(beside)}")
            time.sleep(_LOOK_AT_UPLOADS_S)
        return None

    def _watch(self, mount: Mount) -> None:
        while True:
            time.sleep(_LOOK_S)
            problem = self._problem(mount)
            if problem:
                self._restore(mount, problem)

    def _restore(self, mount: Mount, problem: str) -> None:
        """Tell the jobs here of a mount that has ended until it is made again, however long that takes."""
        self._agent.log.say(problem)
        refused = False
        while True:
            self._desk.tell([problem])
            try:
                self._mount(mount, _WITHIN_S)
                break
            except (CommandError, OSError) as error:
                if not refused:
                    self._agent.log.say(f"{error}; trying again")
                refused = True
                time.sleep(_AGAIN_S)
        with self._lock:
            del self._lost[mount.name]
        self._agent.log.say(f"{mount.place} is mounted again")

    def _mount(self, mount: Mount, within_s: float) -> None:
        argv = command(mount, self._agent.settings.region, self._agent.job_uid(), self._root)
        self._clear(mount)
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
        run(argv, max(1.0, within_s), env={**os.environ, **credentials.variables(self._token)})

    def _clear(self, mount: Mount) -> None:
        """Unmount what is left: nothing else can be done with a directory whose Mountpoint has died (12.9)."""
        while self._mounted(mount):
            connection = self._connection(mount)
            if connection and os.path.exists(f"{connection}/abort"):
                # Whatever waits for a Mountpoint that hangs gets an error.
                with open(f"{connection}/abort", "w") as file:
                    file.write("1")
            run(["umount", "-l", mount.place], _WITHIN_S)
        with self._lock:
            self._questions.pop(mount.name, None)

    def _state(self, mount: Mount) -> str:
        """Return why a mount is not there; "" if it is. Never waits for a directory that hangs."""
        if not self._mounted(mount):
            return "it is not mounted"
        question = self._questions.pop(mount.name, None) or _Question(mount.place)
        question.wait()
        if question.answer is None:
            self._questions[mount.name] = question
            is_late = time.monotonic() - question.asked > _ANSWERS_WITHIN_S
            return f"it has not answered for {_ANSWERS_WITHIN_S} s" if is_late else ""
        return question.answer

    def _mounted(self, mount: Mount) -> list[str]:
        """Return the fields of what is mounted there, as in mountinfo; none for nothing."""
        return next((fields for fields in proc_files.mounts(self._root) if fields[4] == mount.place), [])

    def _connection(self, mount: Mount) -> str:
        """Return the directory in which FUSE shows the mount's connection; "" for a mount of another kind."""
        fields = self._mounted(mount)
        is_fuse = fields and fields[fields.index("-") + 1].startswith("fuse")
        return f"{self._root}/sys/fs/fuse/connections/{fields[2].partition(':')[2]}" if is_fuse else ""

    def _uploads(self, mount: Mount) -> bool:
        """Whether requests of the mount are being worked on: the last close of a file waits for its upload (12.8)."""
        connection = self._connection(mount)
        return bool(connection) and files.read(f"{connection}/waiting").strip() not in ("", "0")

    def _logs(self, mount: Mount) -> list[str]:
        return sorted(glob.glob(f"{self._root}{_LOGS}/{mount.name}/*"))


def _failures(log: str, offset: int) -> Iterator[str]:
    """Yield each file that could not be uploaded, as Mountpoint's log has it from this offset on."""
    with open(log, errors="replace") as file:
        file.seek(offset)
        for line in iter(lambda: file.readline(_LONGEST_LINE), ""):
            found = _NOT_UPLOADED.search(line)
            if found:
                yield f"{_name(found[1])}: {found[2]}"


def _name(fields: str) -> str:
    found = _NAME.search(fields)
    return found[1] if found else "a file"
