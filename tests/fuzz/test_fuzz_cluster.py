"""What a cluster sends, perhaps a hostile one: rosters, messages of the queue, frames, a job's state."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import changed_bytes, changed_text, changed_value, fuzz
from fuzz.samples import PROCESS, STATE
from phalanx.errors import JobError, PhalanxError
from phalanx.jobs import check_net, net_plot, net_result, transfer
from phalanx.jobs.job_model import status_of
from phalanx.jobs.job_output import FollowDecoder, OutputLine
from phalanx.node import validate
from phalanx.node.head import Head
from phalanx.node.roster import Node, Roster
from phalanx.runner import frames
from phalanx.runner.files import carry, holes
from phalanx.runner.files.job_status import JobStatus
from phalanx.runner.verbs import follow_frames, porter

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "x" * 43
WORKER = Node(
    "deeplearning-worker2", "i-0abc", "10.0.1.5", "ip-10-0-1-5", "eu-west-1a", "c5.large", 0, 2, False, KEY, KEY
)
HEAD = Node("deeplearning-worker1", "i-0123", "10.0.1.4", "ip-10-0-1-4", "eu-west-1a", "c5.large", 0, 2, True, KEY, KEY)
ROSTER = Roster("demo", 3, 2, 1, (HEAD, WORKER))
ROLE = "AROAEXAMPLE"


# The words that a node may say of itself, which get into files and arguments.
WORDS = (validate.instance_id, validate.address, validate.hostname, validate.node_name, validate.instance_type)
KEY_LINES = (validate.key_line, validate.certificate_line)


def test_what_a_node_says_of_itself_is_safe_in_a_line_and_as_an_argument():
    def check(text: str) -> None:
        for validator in (*WORDS, *KEY_LINES):
            with contextlib.suppress(validate.Invalid):
                passed = validator(text)
                assert passed.isascii() and passed.isprintable() and not passed.startswith("-")
                assert not set(passed) & set("\"'`$\\;&|<>(){}*?!#%,~[]\t")
                assert passed.count(" ") == (validator in KEY_LINES)

    likely = st.from_regex(r"\A(i-|ip-|ssh-|deeplearning-)[ -~\n]*\Z")
    fuzz(likely | changed_text(WORKER.instance_id, WORKER.address, WORKER.hostname, WORKER.name, KEY), check)


def test_a_roster_is_whole_or_refused():
    def check(text: str) -> None:
        with contextlib.suppress(validate.Invalid):
            roster = validate.roster(text)
            assert validate.roster(roster.to_json()) == roster

    items = changed_value(json.loads(ROSTER.to_json())).map(json.dumps)
    fuzz(changed_text(ROSTER.to_json()) | items, check, ["[" * 5000, "9" * 5000, '{"nodes": [[]]}'])


def test_a_message_changes_what_is_known_of_its_sender_alone():
    def check(body: str) -> None:
        head = a_head()
        head.hear(body, f"{ROLE}:{WORKER.instance_id}")
        known = {*head.state.acks, *head.state.failed, *head.state.hellos, *head._newcomers}
        assert known <= {WORKER.instance_id}
        assert len(repr(head.state)) < 100_000

    valid = [
        {"kind": "hello", **WORKER._asdict()},
        {"kind": "ack", "instance_id": WORKER.instance_id, "generation": 3},
        {"kind": "failed", "instance_id": WORKER.instance_id, "step": "s", "command": "c", "exit": 1, "output": "o"},
    ]
    head = a_head()
    for one in valid:
        head.hear(json.dumps(one), f"{ROLE}:{WORKER.instance_id}")
    assert not head._refused, "what is changed below is valid"
    bodies = st.one_of(*(changed_value(one) for one in valid)).map(json.dumps)
    fuzz(bodies | changed_text(*map(json.dumps, valid)), check, ["[" * 5000, "9" * 5000, "[]", "null"])


def a_head() -> Any:
    """A head that knows no node yet; it reads messages, and does nothing."""
    head: Any = object.__new__(Head)
    log = SimpleNamespace(say=lambda text: None)
    head.agent = SimpleNamespace(settings=SimpleNamespace(worker_role=ROLE), log=log, answered=[])
    head.state = SimpleNamespace(acks={}, failed={}, hellos={}, heard={}, roster=None, group=None)
    head._newcomers, head._known, head._refused, head._check_s, head._checked_at = {}, set(), 0, 1.0, 0.0
    return head


def test_frames_of_a_starter_are_whole_or_break_the_channel():
    def check(chunks: list[bytes]) -> None:
        reader = frames.FrameReader(preamble=True)
        with contextlib.suppress(frames.ChannelBrokenError):
            for chunk in chunks:
                for kind, stream, _, payload in reader.feed(chunk):
                    assert kind < 256 and stream < 256 and len(payload) <= 16 << 20

    valid = (
        b"motd\n"
        + frames.MAGIC
        + frames.pack(frames.OUTPUT, 1, b"text", 1)
        + frames.pack_json(frames.RANK, {"label": "0"})
    )
    fuzz(in_chunks(changed_bytes(valid)), check, [[frames.MAGIC + b"\xff" * 12], [b"x" * (1 << 17)]])


def test_a_measured_network_is_whole_or_refused():
    document = {
        "nodes": [{"address": "10.0.0.1", "efa": True}, {"address": "10.0.0.9", "efa": False}],
        "links": [{"from": 0, "to": 1, "bit_s": 1e9, "round_trip_s": 1e-4}, {"from": 1, "to": 0, "error": "timed out"}],
        "sums": [{"engine": "mpi", "transport": "Open MPI", "times": [{"bytes": 4096, "s": 0.001}]}] * 2,
    }

    def check(text: bytes) -> None:
        with contextlib.suppress(JobError):
            found = net_result.network(text, {})
            check_net.problems(found, {"10.0.0.1": 1e9})
            drawn = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(net_plot.svg(found)).iter()}
            assert drawn <= {"svg", "rect", "text", "polyline", "circle"}

    net_result.network(json.dumps(document).encode(), {})  # what is changed below is valid
    texts = changed_value(document).map(lambda value: json.dumps(value).encode())
    fuzz(texts | changed_bytes(json.dumps(document).encode()), check, [b"[" * 5000, b"9" * 5000, b"[]", b""])


def in_chunks(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.builds(
        lambda data, size: [data[i : i + size] for i in range(0, len(data), size)], whole, st.integers(1, 99)
    )


def a_frame(kind: int, payload: bytes, number: int = 0) -> bytes:
    return follow_frames.HEADER.pack(kind, 1, number, len(payload), 7, 1) + payload


def follow_bytes(process: Any = PROCESS, state: Any = STATE) -> bytes:
    parts = [a_frame(follow_frames.PROCESS, json.dumps(process).encode()), a_frame(follow_frames.OUTPUT, b"line\nha")]
    parts += [a_frame(follow_frames.ENDED_PROCESS, b""), a_frame(follow_frames.STATE, json.dumps(state).encode())]
    return follow_frames.MAGIC + b"".join(parts)


def followed(chunks: list[bytes]) -> list[OutputLine | JobStatus]:
    """Read the stream as `Job.follow` does."""
    decoder = FollowDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [event if isinstance(event, OutputLine) else status_of(event) for event in events]


def test_what_follow_sends_is_lines_and_states_or_refused():
    def check(chunks: list[bytes]) -> None:
        with contextlib.suppress(JobError):
            for event in followed(chunks):
                assert isinstance(event, JobStatus) or isinstance(event.data, bytes)

    first, second, status = followed([follow_bytes()])
    assert (first.data, second.data, status.id) == (b"line", b"ha", STATE["id"]), "what is changed below is valid"
    streams = changed_bytes(follow_bytes()) | changed_value(PROCESS).map(lambda value: follow_bytes(process=value))
    streams |= changed_value(STATE).map(lambda value: follow_bytes(state=value))
    long = struct.pack("<BBHIQQ", follow_frames.OUTPUT, 1, 0, (1 << 32) - 1, 0, 0)
    corpus = [
        follow_frames.MAGIC + long + b"x" * 100_000,
        follow_frames.MAGIC + a_frame(follow_frames.OUTPUT, b"\n", 5),
    ]
    corpus += [
        follow_frames.MAGIC + a_frame(follow_frames.STATE, text) for text in (b"{", b"[" * 5000, b"null", b"\xff")
    ]
    fuzz(in_chunks(streams), check, [[one] for one in corpus])


def carried(directory: Path) -> tuple[carry.Load, bytes]:
    (directory / "tree" / "sub").mkdir(parents=True)
    (directory / "tree" / "sub" / "file").write_bytes(b"content")
    (directory / "tree" / "link").symlink_to("sub/file")
    load = carry.survey(str(directory / "tree"))
    out = io.BytesIO()
    carry.say(out, {**load.header(), carry.LISTED: False})
    carry.send(out, load)
    return load, out.getvalue()


def test_a_stream_of_files_stays_in_its_place(tmp_path: Path):
    _, valid = carried(tmp_path)
    target = tmp_path / "deep" / "in" / "target"
    target.parent.mkdir(parents=True)

    def check(stream: bytes) -> None:
        remove(target)
        source = io.BytesIO(stream)
        with contextlib.suppress(carry.CarryError, PhalanxError):
            carry.receive(source, transfer._header(source, io.BytesIO(), None, "data"), str(target))
        assert {path.name for path in target.parent.iterdir()} <= {"target"}
        assert {path.name for path in tmp_path.iterdir()} == {"tree", "deep"}

    body = valid.partition(b"\n")[2].partition(b"\n")[2]
    header = {"items": 4, "files": 1, "bytes": 7, "left_out": [], "unread": []}
    headers = changed_value(header).map(lambda value: carry.MAGIC + json.dumps(value).encode() + b"\n" + body)
    fuzz(
        changed_bytes(valid)
        | headers
        | st.builds(lambda kind, name, link: a_member(kind, name, link), KINDS, NAMES, NAMES),
        check,
    )


def test_what_a_head_takes_stays_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, valid = carried(tmp_path)
    shared = tmp_path / "shared"

    def take(stream: bytes) -> dict[str, str]:
        remove(shared)
        shared.mkdir()
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stream)))
        with contextlib.redirect_stdout(out):
            porter.take(f"{shared}/tree", str(shared))
        return json.loads(out.buffer.getvalue().splitlines()[-1])

    def check(stream: bytes) -> None:
        answer = take(stream)
        assert answer.get("place") == f"{shared}/tree" or answer["error"]
        assert {path.name for path in shared.iterdir()} <= {"tree"}
        assert {path.name for path in tmp_path.iterdir()} == {"tree", "shared"}

    assert take(valid) == {"place": f"{shared}/tree"}, "what is changed below is valid"
    headers = changed_value({"items": 4, "files": 1, "bytes": 7, "left_out": [], "unread": []}).map(json.dumps)
    body = valid.partition(b"\n")[2].partition(b"\n")[2]
    streams = headers.map(lambda header: carry.MAGIC + header.encode() + b"\n" + body)
    fuzz(changed_bytes(valid) | streams | st.builds(a_member, KINDS, NAMES, NAMES), check)


def test_a_list_of_files_changes_none(tmp_path: Path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "link").symlink_to(tmp_path)
    for place in (tmp_path / "other", target / "file"):
        place.write_text("1234567")
        os.utime(place, ns=(5, 5))
        place.chmod(0o640)

    def check(lines: bytes) -> None:
        with contextlib.suppress(carry.CarryError):
            known = carry.known(io.BytesIO(lines), {"items": lines.count(b"\n"), carry.LISTED: True}, str(target))
            assert 0 <= known.bytes <= (7 + holes.LONGEST_LINE) * len(known.same)
        assert (tmp_path / "other").stat().st_mode & 0o777 == 0o640

    listed = [["top"], ["top/link"], ["top/link/other", 7, 5, 0o777, AGE, 7], ["top/file", 7, 5, 0o777, AGE, 7], []]
    valid = b"".join(json.dumps(line).encode() + b"\n" for line in listed)
    assert len(carry.known(io.BytesIO(valid), {"items": 5, carry.LISTED: True}, str(target)).same) == 1
    entries = st.lists(NAMES.map(lambda name: [name]) | NAMES.map(lambda name: [name, 7, 5, 0o777, AGE, 7]), max_size=6)
    fuzz(
        changed_bytes(valid) | entries.map(lambda those: b"".join(json.dumps(one).encode() + b"\n" for one in those)),
        check,
    )


AGE = 10**18
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
NAMES = st.sampled_from(["top", "top/a", "top/../x", "/x", "../x", "", ".", "top/a/b", "top//", "x" * 300]) | st.text(
    max_size=9
)


def a_member(kind: bytes, name: str, link: str) -> bytes:
    """Build a stream of two members, the second below the first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogatepass") as archive:
        for one in (name, f"{name}/b"):
            info = tarfile.TarInfo(one)
            info.type, info.linkname = kind, link
            archive.addfile(info)
    return carry.MAGIC + b'{"items": 2, "files": 2, "bytes": 9, "left_out": [], "unread": []}\n' + out.getvalue()


def remove(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
