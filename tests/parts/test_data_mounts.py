"""The agent's mounts of S3, and what it tells jobs of them: a stand-in for Mountpoint, and its log as it really is."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.node import account, data_mounts
from phalanx.node.command import CommandError
from phalanx.node.credentials import Desk
from phalanx.node.data_mounts import DataMounts
from phalanx.node.settings import ON_AWS
from phalanx.runner.loop import Loop
from phalanx.runner.starter import guest

# In the format of Mountpoint 1.23 (docs/aws-behaviour.md 12.8).
FAILED = (
    '2026-11-23T06:12:28.000000Z  WARN ThreadId(05) release{{req=8 ino=3 fh=1 name="{}" pid=12}}: '
    "mountpoint_s3_fs::fuse: release failed with errno 5: upload error: put request failed: Forbidden\n"
)
HARMLESS = (
    '2026-11-23T06:12:27.000000Z  WARN ThreadId(02) flush{req=7 ino=3 fh=1 name="read" pid=12}: '
    "mountpoint_s3_fs::fuse: flush failed with errno 9: file handle has been invalidated\n"
    '2026-11-23T06:12:27.000000Z  INFO ThreadId(02) release{req=7 ino=3 name="b" pid=12}: a: release failed with x\n'
    '2026-11-23T06:12:27.000000Z  WARN ThreadId(02) lookup{req=7 ino=3 name="c" pid=12}: a: lookup failed: no file\n'
)
# It mounts, as far as mountinfo shows, unless a file says why not.
PROGRAM = """#!/bin/sh
[ ! -e $ROOT/refused ] || { cat $ROOT/refused >&2; exit 1; }
env | grep ^AWS_ > $ROOT/env
echo "1 1 0:45 / $2 rw - fuse mountpoint-s3 rw" >> $ROOT/proc/self/mountinfo
mkdir -p $ROOT/var/log/phalanx-s3/${2##*/}; touch $ROOT/var/log/phalanx-s3/${2##*/}/log
"""


@pytest.fixture
def node(tmp_path, monkeypatch) -> Any:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").touch()
    (tmp_path / "run").mkdir()
    program = tmp_path / "bin/mount-s3"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(data_mounts, "PLACE", str(tmp_path / "s3"))
    monkeypatch.setattr(data_mounts, "_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(data_mounts, "_LOOK_S", 0.02)
    monkeypatch.setattr(data_mounts, "_AGAIN_S", 0.02)
    monkeypatch.setattr(account, "uid_of", lambda _: os.getuid())
    said: list[str] = []
    settings = SimpleNamespace(
        data="pets:my-bucket/pets/;runs+:my-bucket/runs/",
        region="us-east-1",
        domain="amazonaws.com",
        job_user="phalanx",
        job_role="arn",
        patience=ON_AWS,
    )
    agent: Any = SimpleNamespace(
        settings=settings, root=str(tmp_path), job_uid=lambda: 1001, log=SimpleNamespace(say=said.append)
    )
    metadata: Any = SimpleNamespace(credentials=None)
    return SimpleNamespace(root=tmp_path, agent=agent, desk=Desk(agent.settings, metadata), said=said)


@pytest.fixture
def mounts(node, monkeypatch) -> Iterator[DataMounts]:
    """Mount all; the thread that watches them ends with the test."""
    with watched(monkeypatch):
        made = DataMounts(node.agent, node.desk)
        made.begin(time.monotonic() + 120)
        node.desk.mounts = made
        yield made


@contextlib.contextmanager
def watched(monkeypatch: Any) -> Iterator[None]:
    """The threads that watch mounts end with this."""
    watchers, watch = list[threading.Thread](), DataMounts._watch

    def until_the_end(self: DataMounts, mount: Any) -> None:
        watchers.append(threading.current_thread())
        with contextlib.suppress(SystemExit):
            watch(self, mount)

    def end(_: float) -> None:
        raise SystemExit

    monkeypatch.setattr(DataMounts, "_watch", until_the_end)
    yield
    monkeypatch.setattr(data_mounts, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
    for watcher in watchers:
        watcher.join(10)


class Starter:
    """The connection of a job's starter to the agent."""

    def __init__(self, desk: Desk, job: str = "a-job") -> None:
        self._theirs, self.socket = socket.socketpair()
        self.socket.settimeout(10)
        self._desk, self._lines = desk, self.socket.makefile()
        self._thread = threading.Thread(target=self._register)
        self._thread.start()
        self.socket.send(f"token {job}".encode())

    def _register(self) -> None:
        with self._theirs, contextlib.suppress(OSError):
            self._desk.register(self._theirs)

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
        self._thread.join(10)

    def line(self) -> str:
        return self._lines.readline().strip()

    def ask(self) -> Iterator[str]:
        """Ask whether all is in S3, and yield the agent's answer."""
        self.socket.send(b"?")
        while (told := self.line()) != "settled":
            yield told


@pytest.fixture
def join(node) -> Iterator[Callable[..., Starter]]:
    """Return a function that registers a starter; all are gone with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *job: stack.enter_context(contextlib.closing(Starter(node.desk, *job)))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def have_umount(node: Any, script: str) -> None:
    program = node.root / "bin/umount"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def unmount(node: Any, name: str) -> None:
    table = node.root / "proc/self/mountinfo"
    table.write_text("".join(one for one in table.read_text().splitlines(True) if f"/{name} " not in one))


def test_mountpoint_gets_credentials_as_jobs_do_and_never_a_file_s(node, mounts):
    given = dict(line.split("=", 1) for line in (node.root / "env").read_text().splitlines())
    assert given["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == "http://127.0.0.1:331/"
    assert given["AWS_CONFIG_FILE"] == given["AWS_SHARED_CREDENTIALS_FILE"] == "/dev/null"
    token = node.root / "run/phalanx-s3.token"
    assert token.read_text() == given["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    # Mountpoint goes on with it while the agent restarts.
    DataMounts(node.agent, node.desk)
    assert token.read_text() == given["AWS_CONTAINER_AUTHORIZATION_TOKEN"]


def test_the_agent_lends_the_role_to_mountpoint_alone(node, mounts, monkeypatch):
    monkeypatch.setattr(node.desk, "_lend", lambda job: ("200 OK", {"job": job}))

    def answer(token: str) -> str:
        theirs, ours = socket.socketpair()
        with theirs, ours:
            ours.send(f"GET / HTTP/1.1\r\nAuthorization: {token}\r\n\r\n".encode())
            node.desk.answer(theirs)
            return ours.recv(4096).decode()

    assert '{"job": "data"}' in answer((node.root / "run/phalanx-s3.token").read_text())
    assert "401 Unauthorized" in answer("another")


def test_a_refusal_is_repeated_and_then_reported_in_mountpoint_s_words(node, monkeypatch):
    (node.root / "refused").write_text("Forbidden: Access Denied")
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _s: None)
    monkeypatch.setattr("phalanx.node.data_mounts.time", clock)
    with pytest.raises(CommandError, match="Forbidden: Access Denied"):
        DataMounts(node.agent, node.desk).begin(9)
    assert "Forbidden: Access Denied; trying again" in node.said[0]


def test_a_member_that_restarts_comes_up_without_a_mount_that_is_refused(node, join, monkeypatch):
    """It names the mount to every job here, and mounts it when it may."""
    (node.root / "refused").write_text("Forbidden: Access Denied")
    with watched(monkeypatch):
        node.desk.mounts = made = DataMounts(node.agent, node.desk)
        made.begin(0, is_member=True)
        starter = join()
        told = [starter.line() for _ in range(3)]
        why = "can't be mounted: Forbidden: Access Denied"
        assert told == ["data", *(f"lost {name} at {node.root}/s3/{name} {why}" for name in ("pets", "runs"))]
        until(lambda: {line.removeprefix("lost ") for line in told[1:]} <= set(node.said))
        (node.root / "refused").unlink()
        until(lambda: not made.problems())
        again = join()
        assert again.line() == "data" and list(again.ask()) == []


def test_a_mount_that_hangs_is_lost_after_its_deadline_and_holds_up_nobody(node, mounts, join, monkeypatch):
    """The stat of a directory whose Mountpoint is stopped never returns; an aborted connection ends it."""
    monkeypatch.setattr(data_mounts, "_ANSWERS_WITHIN_S", 0.5)
    monkeypatch.setattr(data_mounts, "_QUICK_S", 0.01)
    abort = node.root / "sys/fs/fuse/connections/45/abort"
    abort.parent.mkdir(parents=True)
    abort.touch()
    have_umount(node, 'sed -i "\\# $2 #d" $ROOT/proc/self/mountinfo')
    stat_of, place = os.stat, f"{node.root}/s3/pets"

    def stat(path: Any, **options: Any) -> Any:
        while path == place and abort.read_text() != "1":
            time.sleep(0.01)
        return stat_of(path, **options)

    monkeypatch.setattr(data_mounts.os, "stat", stat)
    begun = time.monotonic()
    assert mounts.problems() == [] and time.monotonic() - begun < 0.4
    starter = join()
    assert starter.line() == "data"
    assert starter.line() == f"lost the mount of pets at {place} ended: it has not answered for 0.5 s"
    until(lambda: f"{place} is mounted again" in node.said)


def test_jobs_are_told_of_a_mount_that_ends_and_later_ones_while_it_is_away(node, mounts, join):
    first = join()
    assert first.line() == "data"
    (node.root / "refused").write_text("no")
    unmount(node, "pets")
    lost = f"lost the mount of pets at {node.root}/s3/pets ended: it is not mounted"
    assert first.line() == lost
    second = join()
    assert [second.line(), second.line()] == ["data", lost]
    (node.root / "refused").unlink()
    until(lambda: not mounts.problems())
    third = join()
    assert third.line() == "data" and list(third.ask()) == []


def test_a_mount_that_died_while_no_agent_ran_is_made_again(node, request):
    """What is left of it is in the way of everything: like a link to nothing, for which mkdir fails, and stat."""
    place = node.root / "s3/pets"
    place.parent.mkdir()
    place.symlink_to("nothing")
    (node.root / "proc/self/mountinfo").write_text(f"1 1 0:45 / {place} rw - fuse mountpoint-s3 rw\n")
    have_umount(node, 'rm "$2"; sed -i "\\# $2 #d" $ROOT/proc/self/mountinfo')
    mounts = request.getfixturevalue("mounts")
    assert mounts.problems() == [] and place.is_dir()


def test_a_job_that_comes_before_the_mounts_is_told_of_them(node, mounts, join):
    node.desk.mounts = None
    starter = join()
    until(lambda: node.desk._jobs)
    time.sleep(0.1)
    node.desk.mounts = mounts
    assert starter.line() == "data"


def test_a_job_that_does_not_read_holds_nobody_up(node, mounts, join):
    starter = join()
    assert starter.line() == "data"
    telling = threading.Thread(target=node.desk.tell, args=(["x" * 1000] * 10_000,), daemon=True)
    telling.start()
    telling.join(10)
    assert not telling.is_alive()


def test_a_job_ends_when_its_uploads_have_ended(node, mounts, join):
    """FUSE counts the requests that Mountpoint works on, and it answers a file's last close after the upload."""
    waiting = uploads(node)
    starter = join()
    assert starter.line() == "data"
    starter.socket.send(b"?")
    starter.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        starter.socket.recv(1)
    starter.socket.settimeout(10)
    waiting.write_text("0\n")
    assert starter.socket.recv(100) == b"settled\n"


def uploads(node: Any) -> Any:
    """Have Mountpoint work on a request; return the file with their number."""
    waiting = node.root / "sys/fs/fuse/connections/45/waiting"
    waiting.parent.mkdir(parents=True)
    waiting.write_text("1\n")
    return waiting


def test_a_job_does_not_wait_long_for_what_others_write(node, mounts, join, monkeypatch):
    """FUSE does not say whose requests it counts, and those of a job that runs may never end."""
    monkeypatch.setattr(data_mounts, "_BESIDE_OTHERS_S", 0.2)
    uploads(node)
    other, starter, copier = join("other"), join(), join()
    assert [one.line() for one in (other, starter, copier)] == ["data"] * 3
    (told,) = starter.ask()
    assert told == (
        f"unsure uploads to {node.root}/s3/runs had not ended 0.2 s after the job's last process; "
        "they may be of other jobs on the node: other"
    )


def test_jobs_that_have_ended_together_wait_for_all_uploads(node, mounts, join, monkeypatch):
    monkeypatch.setattr(data_mounts, "_BESIDE_OTHERS_S", 0.5)
    waiting = uploads(node)
    both = [join(), join("other")]
    for starter in both:
        assert starter.line() == "data"
    for starter in both:
        starter.socket.send(b"?")
    until(lambda: len(node.desk._settling) == 2)
    time.sleep(0.7)
    waiting.write_text("0\n")
    assert [starter.line() for starter in both] == ["settled", "settled"]


def test_nobody_waits_for_the_uploads_of_a_job_whose_starter_has_gone(node, mounts, join):
    uploads(node)
    starter = join()
    assert starter.line() == "data"
    starter.socket.send(b"?")
    until(lambda: node.desk._settling)
    starter.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: not node.desk._jobs)


def test_a_log_full_of_failures_costs_no_memory(node, mounts):
    log = node.root / "var/log/phalanx-s3/runs/log"
    log.write_text(FAILED.format("out") * 50_000)
    tracemalloc.start()
    (told,) = mounts.settle({}, list, bool)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told.text.endswith("and 49997 more")
    assert peak_bytes < 1 << 20


def test_files_that_were_not_uploaded_since_the_job_began_are_named(node, mounts, join):
    log = node.root / "var/log/phalanx-s3/runs/log"
    log.write_text(FAILED.format("before"))
    starter = join()
    assert starter.line() == "data"
    with log.open("a") as file:
        file.write(HARMLESS)
        file.write("".join(FAILED.format(f"out{n}") for n in range(5)))
    (told,) = starter.ask()
    why = "errno 5: upload error: put request failed: Forbidden"
    assert told == (f"unsaved not in S3, from {node.root}/s3/runs: out0: {why}; out1: {why}; out2: {why} and 2 more")


def test_without_mounts_a_job_is_told_nothing(join):
    starter = join()
    starter.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        starter.socket.recv(1)


def test_a_starter_hears_what_the_agent_says_and_asks_only_one_that_has_mounts(tmp_path, monkeypatch):
    """Pieces of lines, and an agent that goes away while it is asked."""
    path = str(tmp_path / "socket")
    monkeypatch.setattr(guest, "SOCKET", path)
    loop, told = Loop(), []
    own = guest.Guest(loop, "a-job", lambda reason, kind: told.append((reason, kind)))
    own.token = "t"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        own.register()
        agent = listener.accept()[0]
    own.settle()
    assert own.is_settled and agent.recv(100) == b"t a-job"
    for piece in (b"data\nlost a mo", b"unt ended\nunsaved not in S3: x\nunsure y\nof a later agent\n"):
        agent.send(piece)
        loop.turn(5)
    assert told == [("a mount ended", "lost"), ("not in S3: x", "unsaved"), ("y", "unsure")]
    own.settle()
    assert not own.is_settled and agent.recv(100) == b"?"
    agent.close()
    loop.turn(5)
    assert own.is_settled
