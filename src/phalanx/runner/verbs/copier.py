"""Keeps a job's checkpoints in S3, in a process of its own beside the runner, with the rights of the role of jobs.

It brings the newest copy before the job begins, makes another one whenever files have changed, and a last one when its
stdin ends.
"""

from __future__ import annotations

import json
import os
import select
import socket
from typing import TYPE_CHECKING

from phalanx.objects.download import CopyError, size_text
from phalanx.objects.generations import CHANGED, Copy, Shelf, TakenError, kept_links
from phalanx.objects.job_keys import OfJob
from phalanx.objects.s3_client import Bucket, S3Error
from phalanx.objects.snapshot import Home, Seen
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.names import COPIER_STATUS
from phalanx.runner.starter.guest import PORT, SOCKET

if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from phalanx.node.sigv4 import Credentials

_EVERY_S = 5.0
_TRIES = 3
_MOST_SAID = 5
_AGENT_WITHIN_S = 10
_ERRORS = (S3Error, CopyError, OSError, ValueError)


def copy(directory: str) -> int:
    """Serve the job in this directory until stdin ends; return an exit status."""
    job = job_record.read(directory)
    place = job.mirror
    assert place is not None
    bucket = Bucket(place.bucket, place.region, place.endpoint)
    home = Home(place.home, f"{place.prefix}{Copy(job=job.id).name}/")
    copier = Copier(home, Shelf(bucket, place.prefix, _Keys(job.id), job.id))
    problem = copier.begin()
    if not problem:
        _tell(directory, {"ready": True})
        problem = copier.work()
    _tell(directory, {"ready": True, "over": True, "problem": problem})
    return 1 if problem else 0


class Copier:
    """Brings the newest copy to a job's directory, and makes further ones of it."""

    def __init__(self, home: Home, shelf: Shelf) -> None:
        self._home, self._shelf = home, shelf
        self._last = Copy()
        self._left_out: Tuple[str, ...] = ()

    def begin(self) -> str:
        """Bring the newest copy unless it is here, and claim the place. Return what is wrong."""
        for count in range(_TRIES):
            try:
                self._bring()
                self._shelf.claim(self._last)
                return ""
            except (TakenError, *_ERRORS) as error:
                is_race = isinstance(error, TakenError) or getattr(error, "status", 0) in CHANGED
                if not is_race or count == _TRIES - 1:
                    return _text(error)
        raise AssertionError

    def _bring(self) -> None:
        self._last = copy = self._shelf.newest()
        if copy.number and not self._home.knows(copy.name):
            self._shelf.bring(copy, self._home.incoming(copy.name))
            self._home.replace(copy.name)
            _say(f"{_described(copy)} from {self._shelf.url}, by job {copy.job}")
        os.makedirs(self._home.files, exist_ok=True)

    def work(self) -> str:
        """Make copies until stdin ends, and a last one. Return what is wrong with that."""
        said = ""
        while not select.select([0], [], [], _EVERY_S)[0]:
            problem, is_final = self._try()
            if is_final:
                return problem
            if problem and problem != said:
                _say(f"{problem}; trying again")
            said = problem
        for _ in range(_TRIES):
            said, is_final = self._try()
            if not said or is_final:
                break
        return said

    def _try(self) -> Tuple[str, bool]:
        """Make a copy if something has changed. Return what is wrong, and whether that stays so."""
        try:
            return ("" if self.copy_changes() else "files are replaced all the time"), False
        except TakenError as error:
            return _text(error), True
        except _ERRORS as error:
            return _text(error), False

    def copy_changes(self) -> bool:
        last, home = self._last, self._home
        kept = {path: own for path, own in home.kept().items() if path in last.files}
        now = home.look()
        self._tell_left_out(now.left_out)
        if Seen(now.files, kept_links(now.links)) == Seen(kept, last.links):
            return True
        taken = home.snapshot(kept)
        if taken is None:
            return False
        seen, changed = taken
        try:
            same = {path: last.files[path] for path in seen.files if path not in changed}
            home.note((last.name, self._shelf.name_after(last)), kept)
            self._last = copy = self._shelf.keep(last, changed, same, kept_links(seen.links))
            home.note((copy.name,), seen.files)
        finally:
            home.forget_snapshot()
        return True

    def _tell_left_out(self, names: Tuple[str, ...]) -> None:
        """Say once which files have no copy in S3."""
        new = [name for name in names if name not in self._left_out]
        self._left_out = names
        for name in new[:_MOST_SAID]:
            _say(f"not in {self._shelf.url}: {name}")
        if len(new) > _MOST_SAID:
            _say(f"not in {self._shelf.url}: {len(new) - _MOST_SAID} more files")


class _Keys:
    """The credentials of the job's role, for a token that the node's agent knows as long as this process lives."""

    def __init__(self, job_id: str) -> None:
        self._hello = f"{os.urandom(32).hex()} {job_id}"
        self._agent: Optional[socket.socket] = None
        os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = self._hello.split()[0]
        os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://127.0.0.1:{PORT}/"
        self._of_job = OfJob()

    def __call__(self) -> Credentials:
        self._register()
        return self._of_job()

    def _register(self) -> None:
        """Register, also after the agent has restarted."""
        if self._agent and not select.select([self._agent], [], [], 0)[0]:
            return
        try:
            self._agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._agent.settimeout(_AGENT_WITHIN_S)
            self._agent.connect(SOCKET)
            self._agent.send(self._hello.encode())
        except OSError as error:
            self._agent = None
            raise S3Error(f"this node's agent does not answer: {error}") from error


def _described(copy: Copy) -> str:
    files = "1 file" if len(copy.files) == 1 else f"{len(copy.files)} files"
    return f"{files}, {size_text(sum(one.size for one in copy.files.values()))}"


def _text(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the copy failed'}: {error.strerror or error}"
    return str(error)


def _say(text: str) -> None:
    print(text, flush=True)


def _tell(directory: str, status: Dict[str, object]) -> None:
    states.write_file(os.path.join(directory, COPIER_STATUS), json.dumps(status))
