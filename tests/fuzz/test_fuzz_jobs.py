"""What any job can write and others read: records, output, the code store, and frames."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nodes import roster
from hypothesis import strategies as st

from fuzz.fuzzing import changed_bytes, changed_value, fuzz
from fuzz.samples import PROCESS, STATE
from phalanx.code import code_tree
from phalanx.code.upload import Upload
from phalanx.jobs.job_model import status_in, status_of
from phalanx.jobs.job_output import FollowDecoder, OutputLine
from phalanx.node.roster import Node
from phalanx.node.validate import Invalid
from phalanx.runner import frames
from phalanx.runner.files import codestore
from phalanx.runner.files import state as states
from phalanx.runner.files.job_status import JobStatus, NodeVerdict
from phalanx.runner.files.output import ENDED, RECORD, OutputWriter
from phalanx.runner.head import settle
from phalanx.runner.head.attempt_runner import AttemptRunner
from phalanx.runner.head.load_book import Loads
from phalanx.runner.head.starters import Starters
from phalanx.runner.login import Line
from phalanx.runner.loop import Loop
from phalanx.runner.names import MANIFEST, OUTPUT, WORK
from phalanx.runner.process import PreparedJob, Process
from phalanx.runner.verbs import follow, listing
from phalanx.ssh import head_answers
from phalanx.ssh.head_answers import InvalidAnswerError

JOB_ID: str = STATE["id"]
HEAD = "deeplearning-worker1"


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a job whose runner is gone, on a head that contacts no node and starts nothing."""
    (tmp_path / "roster.json").write_text(roster(2, 1).to_json())
    monkeypatch.setattr(settle, "roster_path", lambda: str(tmp_path / "roster.json"))
    monkeypatch.setattr(settle, "verify", lambda directory: ())
    monkeypatch.setattr(settle, "_run_verb", lambda directory, verb: "it starts nothing")
    monkeypatch.setattr(settle.checked, "keep", lambda path: None)
    monkeypatch.setattr(listing, "settle_in_background", lambda directory: None)
    directory = tmp_path / "jobs" / JOB_ID
    directory.mkdir(parents=True)
    yield directory


def listed(directory: Path) -> list[JobStatus]:
    """List jobs as `phalanx jobs` and `status` do."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        listing.list_jobs(str(directory.parent), STATE["stack"])
    return [status_in(line) for line in out.getvalue().splitlines()]


def logged(directory: Path, capture: pytest.CaptureFixture[bytes]) -> list[OutputLine | JobStatus]:
    """Read the output as `phalanx logs` does."""
    follow.follow(str(directory), STATE["stack"], wait=False)
    decoder = FollowDecoder()
    events = decoder.feed(capture.readouterr().out)
    return [event if isinstance(event, OutputLine) else status_of(event) for event in events]


def test_a_record_on_the_disk_is_shown_or_called_damaged(head: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    def check(content: bytes) -> None:
        (head / "state.json").write_bytes(content)
        assert [job.id for job in listed(head)] == [JOB_ID]
        *_, last = logged(head, capfdbinary)
        assert isinstance(last, JobStatus) and last.state.final
        with contextlib.suppress(Invalid):
            over = settle.settle(str(head), is_stop=True)
            assert states.read(str(head)) == over and over.state.final

    check(json.dumps(STATE).encode())
    assert states.read(str(head)).state == "lost", "what is changed below is valid"
    values = changed_value(STATE).map(lambda value: json.dumps(value).encode())
    corpus = [b"", b"[" * 5000, b"9" * 5000, b"null", b"\xff", json.dumps({**STATE, "state": "damaged"}).encode()]
    fuzz(values | changed_bytes(json.dumps(STATE).encode()), check, corpus)


def test_output_on_the_disk_is_shown_or_called_damaged(head: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    def check(both: tuple[bytes, bytes]) -> None:
        for name, content in zip(("index", "processes"), both, strict=True):
            (head / OUTPUT / name).write_bytes(content)
        lines = logged(head, capfdbinary)
        assert isinstance(lines[-1], JobStatus)
        assert all(line.data in (b"one", b"", b"two", b"wo") or len(line.data) < 8 for line in lines[:-1])

    (head / "state.json").write_text(json.dumps({**STATE, "state": "succeeded"}))
    writer = OutputWriter(str(head / OUTPUT))
    number = writer.add("0", HEAD, is_rank=True)
    writer.write(number, frames.STDOUT, b"one\ntwo")
    writer.ended(number, 0)
    writer.flush()
    valid = (head / OUTPUT / "index").read_bytes(), (head / OUTPUT / "processes").read_bytes()
    check(valid)
    assert len(logged(head, capfdbinary)) == 3, "what is changed below is valid"
    index = changed_bytes(valid[0]) | st.lists(st.builds(RECORD.pack, LONG, LONG, INT, SHORT, BYTE)).map(b"".join)
    processes = changed_bytes(valid[1]) | changed_value(PROCESS).map(lambda value: json.dumps(value).encode() + b"\n")
    torn = valid[0] + b"\0" * RECORD.size, valid[1] + b"\0" * 40
    far = RECORD.pack(1, 1 << 63, 1, 0, frames.STDOUT), valid[1]
    fuzz(st.tuples(index, processes), check, [(valid[0][:-1], valid[1]), (valid[0], valid[1][:-1]), torn, far])


LONG, INT, SHORT = (st.integers(0, (1 << bits) - 1) | st.integers(0, 9) for bits in (64, 32, 16))
BYTE = st.sampled_from([frames.STDOUT, frames.STDERR, 0, ENDED])


class PatientLoop(Loop):
    """A loop that never waits: when nothing is ready, its clock jumps past the deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def turn(self, timeout_s: float | None) -> None:
        self._is_idle = True
        super().turn(0)
        self.now += 0.001 + (timeout_s or 0.0) * self._is_idle

    def watch(self, fd: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        def busy(ready: int) -> None:
            self._is_idle = False
            handler(ready)

        super().watch(fd, busy, events)

    def monotonic(self) -> float:
        return self.now

    time = staticmethod(time.time)


class HostileStarter:
    """A node's starter that answers any request with these bytes, as many as its pipe takes at once, and ends."""

    def __init__(self, loop: Loop, data: bytes) -> None:
        self._words = data
        self._to_us, self._to_fd = os.pipe()
        self._from_fd, self._out_fd = os.pipe()
        os.set_blocking(self._out_fd, False)
        self._error_fd, error = os.pipe()
        os.close(error)
        loop.watch(self._to_us, self._speak)
        self._loop = loop

    def line(self) -> Line:
        return Line(self._to_fd, self._from_fd, self._error_fd, lambda: None)

    def _speak(self, fd: int) -> None:
        os.read(fd, 1 << 16)
        self._loop.forget(fd)
        os.close(fd)
        os.write(self._out_fd, frames.MAGIC + self._words)
        os.close(self._out_fd)


SAID = (
    (frames.CHECKED, {"problem": "", "code": 0, "taken": [], "boot_id": "b"}, 0),
    (frames.RANK, {"label": "0"}, frames.FIRST_RANK_NUMBER),
    (frames.ASK, {"node": HEAD, "command": "true"}, 1),
    (frames.EXIT, {"code": 0, "at": 1.0, "ending": False, "oom_kills": None}, frames.FIRST_RANK_NUMBER),
    (frames.EXIT, {"code": 1, "at": 1.0, "ending": True, "oom_kills": 3}, 0),
    (frames.UNSURE, {"reason": "its own"}, 0),
    (frames.LEAVING, {"reason": "its own"}, 0),
    (frames.REPORT, {"ended": ["one"], "killed": [], "left": []}, 0),
)


def shown(changed: int, body: Any) -> bytes:
    """Return all frames that a starter may send, with one body replaced."""
    bodies = [body if number == changed else valid for number, (_, valid, _) in enumerate(SAID)]
    packed = (frames.pack_json(kind, one, process) for (kind, _, process), one in zip(SAID, bodies, strict=True))
    return b"".join(packed)


def test_a_starters_words_end_a_job_with_a_verdict_that_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Inquiry:
        boot_id = ""

        def __init__(self, _directory: str, _job_id: str, node: Node) -> None:
            self._node = node.name

        def verdict(self) -> NodeVerdict:
            return NodeVerdict(self._node, False, 0, "not asked")

    monkeypatch.setattr(settle, "Inquiry", Inquiry)
    monkeypatch.setattr(Starters, "_beat", lambda starters: None)
    monkeypatch.setattr("phalanx.runner.head.attempt_runner.reap", list)
    monkeypatch.setattr("phalanx.runner.head.membership.roster_path", lambda: str(tmp_path / "roster.json"))
    (tmp_path / "roster.json").write_text(roster(1, 1).to_json())
    os.utime(tmp_path / "roster.json", (1, 1))
    process = Process("0", HEAD, ("work",), ("true",), {HEAD: 1}, is_rank=True)
    job = PreparedJob(("true",), "exec", id="1", directory="/efs/1")

    def check(data: bytes) -> None:
        loop = PatientLoop()
        monkeypatch.setattr("phalanx.runner.head.attempt_runner.time", loop)
        shutil.rmtree(tmp_path / OUTPUT, ignore_errors=True)
        output = OutputWriter(str(tmp_path / OUTPUT))
        listener = SimpleNamespace(request=None)
        loads = Loads(str(tmp_path))
        context: Any = SimpleNamespace(loop=loop, output=output, socket=listener, stop_requested=False, loads=loads)
        context.publish = output.flush
        starter = HostileStarter(loop, data)
        attempt = AttemptRunner(context, job, roster(1, 1), (process,), lambda ranks: None, lambda _: starter.line())
        nodes = attempt.run()
        status = JobStatus.from_record(STATE)._replace(**attempt.outcome.record, nodes=tuple(nodes))
        assert JobStatus.from_record(json.loads(json.dumps(status.to_record()))) == status
        for file in (output._index, output._processes, *(fd for fd, _ in output._files.values())):
            os.close(file)

    valid = b"".join(frames.pack_json(kind, body, process) for kind, body, process in SAID)
    changed = st.one_of(
        *(
            changed_value(body).map(lambda value, which=number: shown(which, value))
            for number, (_, body, _) in enumerate(SAID)
        )
    )
    huge = [
        shown(3, {"code": 1 << 200, "at": 1.0, "ending": False, "oom_kills": 1}),
        shown(4, {"code": -999, "at": 1.0, "ending": False, "oom_kills": 1}),
    ]
    fuzz(changed | changed_bytes(valid), check, [valid, *huge])


def code(directory: Path) -> Upload:
    """Make an Upload of a small tree."""
    (directory / "tree" / "sub").mkdir(parents=True)
    for name, content in {"a.py": b"print(1)\n", "sub/b.py": b"", "sub/same.py": b"print(1)\n"}.items():
        (directory / "tree" / name).write_bytes(content)
    (directory / "tree" / "link").symlink_to("a.py")
    return Upload(code_tree.scan(directory / "tree"), directory / "cache")


def sent(upload: Upload, numbers: list[int]) -> bytes:
    out = io.BytesIO()
    upload.send(out, numbers, lambda _: None)
    return out.getvalue()


def contents(directory: Path) -> dict[str, bytes | str]:
    found = sorted(directory.rglob("*"))
    return {str(one.relative_to(directory)): look(one) for one in found if one.is_symlink() or one.is_file()}


def look(path: Path) -> bytes | str:
    return os.readlink(path) if path.is_symlink() else path.read_bytes()  # noqa: PTH115 - as it is


def test_code_comes_whole_or_not_at_all_whatever_was_in_the_store(tmp_path: Path):
    upload = code(tmp_path)
    whole, store, job = contents(tmp_path / "tree"), tmp_path / "shared" / "code", tmp_path / "shared" / "jobs" / JOB_ID
    contained = [entry[1] for entry in json.loads(upload.manifest) if len(entry) == 4]

    def submitted(stream: Asked) -> bool:
        """Return whether the code was accepted; check that it is then what was sent."""
        shutil.rmtree(job, ignore_errors=True)
        (job / WORK).mkdir(parents=True)
        (job / MANIFEST).write_bytes(upload.manifest)
        try:
            codestore.unpack(str(job), stream, stream.answer)
        except (EOFError, OSError):
            return False
        assert not stream.is_honest or contents(job / WORK) == whole
        return True

    def check(case: tuple[list[tuple[str, str, bytes]], bytes | None]) -> None:
        shutil.rmtree(store, ignore_errors=True)
        for place in ("objects", "trees"):
            (store / place).mkdir(parents=True)
        for place, name, content in case[0]:
            leave(store / place / name, content)
        submitted(Asked(upload, case[1]))
        assert submitted(Asked(upload, None)) or submitted(Asked(upload, None))
        assert {path.name for path in (tmp_path / "shared").iterdir()} == {"code", "jobs"}

    forged = b"print(2)\n"
    names = st.sampled_from([*contained, "incoming.1.0", "x-y", "-", "é", "0" * 64])
    content = st.sampled_from([*KINDS, b"", forged, b"x-y\n0-0\n\xff"])
    odd = st.tuples(st.sampled_from(["objects", "trees"]), names, content)
    stream = st.none() | changed_bytes(sent(upload, [0]), sent(upload, [0, 3]))
    corpus = [([("objects", contained[0], left)], None) for left in (*KINDS, b"", forged)]
    corpus += [([("objects", "x-y", b"")], None), ([], None)]
    fuzz(st.tuples(st.lists(odd, max_size=3, unique_by=lambda one: one[:2]), stream), check, corpus)


KINDS = (b"fifo", b"directory", b"link")


def leave(path: Path, content: bytes) -> None:
    """Write a file with this content, or something that is not a file."""
    if content == b"fifo":
        os.mkfifo(path)
    elif content == b"directory":
        path.mkdir()
    elif content == b"link":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content)


class Asked(io.BytesIO):
    """The head's stdin: what it requests, or these bytes."""

    def __init__(self, upload: Upload, stream: bytes | None) -> None:
        super().__init__(stream or b"")
        self._upload = upload
        self.is_honest = stream is None

    def answer(self, line: bytes) -> None:
        if self.is_honest and line.startswith(b'{"send"'):
            self.write(sent(self._upload, json.loads(line)["send"]))
            self.seek(0)


def test_a_head_gets_nothing_that_the_code_does_not_hold(tmp_path: Path):
    upload = code(tmp_path)
    most = len(sent(upload, [0])) * 9

    def check(answer: bytes) -> None:
        with contextlib.suppress(InvalidAnswerError):
            numbers = head_answers.required(head_answers.parsed(answer), {"send": ASKED})["send"]
            assert len(sent(upload, numbers)) < most

    fuzz(changed_value({"send": [0, 3]}).map(lambda value: json.dumps(value).encode()), check, [b'{"send": [1]}'])


ASKED = head_answers.list_of(head_answers.whole)
