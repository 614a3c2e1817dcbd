"""Copying files home and to the shared directory, with a fake head on this machine."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from error_codes import raises_code
from fake_nodes import FakeCluster

from phalanx import guest_file
from phalanx.cli import put as cli_put
from phalanx.cluster.stage_data import within
from phalanx.jobs import toolbox
from phalanx.jobs.job import Job
from phalanx.jobs.transfer import TransferError, get, get_each, put, shared_path, source_path
from phalanx.runner.files import carry, unchanged
from phalanx.spec.spec_data import places

ODD_NAME = os.fsdecode(b"\xff odd 'name'")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return FakeCluster(tmp_path)


@pytest.fixture
def job(cluster):
    job = Job(cluster, "261121-0001")
    work = Path(job.directory, "work")
    (work / "checkpoints/old").mkdir(parents=True)
    (work / "checkpoints/last.pt").write_bytes(b"\0\1" * 100_000)
    (work / "checkpoints/old/first.pt").write_text("first")
    (work / "checkpoints/best.pt").symlink_to("last.pt")
    (work / "checkpoints/elsewhere").symlink_to("/etc/passwd")
    (work / ODD_NAME).write_text("odd")
    return job


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def received(stream, place):
    """Receive a stream whose sender waits for no answer."""
    header = carry.read_header(stream)
    return carry.receive(stream, header, str(place), known=carry.known(stream, header, str(place)))


def test_a_file_comes_home_under_its_own_name_or_another(cluster, job, tmp_path):
    moved = []
    copied = get(cluster, "checkpoints/last.pt", job=job, progress=moved.append)
    assert copied.place == str(tmp_path / "last.pt")
    assert (tmp_path / "last.pt").read_bytes() == b"\0\1" * 100_000
    assert (moved[-1].bytes, moved[-1].total_bytes, copied.bytes, copied.files) == (200_000, 200_000, 200_000, 1)
    assert get(cluster, "checkpoints/last.pt", tmp_path / "mine.pt", job).place == str(tmp_path / "mine.pt")
    (tmp_path / "into").mkdir()
    assert get(cluster, "checkpoints/best.pt", tmp_path / "into", job).place == str(tmp_path / "into/best.pt")
    assert not (tmp_path / "into/best.pt").is_symlink()


def test_a_directory_comes_home_with_what_belongs_to_it(cluster, job, tmp_path):
    copied = get(cluster, "checkpoints", job=job)
    assert copied.left_out == ("elsewhere",)
    assert (tmp_path / "checkpoints/old/first.pt").read_text() == "first"
    assert (tmp_path / "checkpoints/best.pt").readlink() == Path("last.pt")
    assert names(tmp_path / "checkpoints") == ["best.pt", "last.pt", "old"]
    (tmp_path / "checkpoints/mine").write_text("stays")
    get(cluster, "checkpoints", job=job)
    assert (tmp_path / "checkpoints/mine").read_text() == "stays"


def test_the_whole_work_directory_and_odd_names_come(cluster, job, tmp_path):
    get(cluster, ".", tmp_path / "all", job)
    assert ODD_NAME in names(tmp_path / "all")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Have files' modes count, also for root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_what_can_t_be_read_is_named_and_the_rest_comes(open_to_all, tmp_path):
    source = open_to_all / "from"
    (source / "locked").mkdir(parents=True)
    for name in ("locked/x", "secret", "removed", "plain"):
        (source / name).write_text(name)
    for name in ("locked", "secret"):
        (source / name).chmod(0)
    stream = io.BytesIO()
    with as_nobody():
        load = carry.survey(str(source))
    (source / "removed").unlink()
    carry.offer(stream, load)
    assert [name.partition(":")[0] for name in carry.send(stream, load)] == ["removed"]
    stream.seek(0)
    assert [name.partition(":")[0] for name in load.unread] == ["locked", "secret"]
    assert [name.partition(":")[0] for name in received(stream, tmp_path / "to")] == ["removed"]
    assert names(tmp_path / "to") == ["plain"]


def test_a_file_that_goes_while_it_is_copied_is_named(cluster, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).write_text(name)
    survey = carry.survey

    def and_then_it_is_gone(path):
        load = survey(path)
        (tmp_path / "data/a").unlink()
        return load

    monkeypatch.setattr(carry, "survey", and_then_it_is_gone)
    copied = put(cluster, tmp_path / "data")
    assert [name.partition(":")[0] for name in copied.unread] == ["a"]
    assert names(Path(cluster.shared, "data")) == ["b"]
    monkeypatch.setattr(cli_put, "load_cluster", lambda *_: cluster)
    (tmp_path / "data/a").write_text("a")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli_put.command, ["data"], standalone_mode=False).return_value == 1
    monkeypatch.setattr(carry, "survey", survey)
    assert CliRunner().invoke(cli_put.command, ["data"], standalone_mode=False).return_value == 0


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_what_is_no_file_is_no_success(cluster, job, tmp_path, kind):
    for place in (tmp_path / "odd", Path(job.directory, "work/odd")):
        os.mknod(place, kind | 0o600)
    with pytest.raises(TransferError, match="neither a file nor a directory"):
        put(cluster, tmp_path / "odd")
    with pytest.raises(TransferError, match="neither a file nor a directory"):
        get(cluster, "odd", tmp_path / "home", job)


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_what_is_no_file_in_a_directory_is_missing_and_the_rest_comes(cluster, job, tmp_path, monkeypatch, kind):
    for place in (tmp_path / "data", Path(job.directory, "work/data")):
        (place / "below").mkdir(parents=True)
        os.mknod(place / "below/odd", kind | 0o600)
        (place / "plain").touch()
        (place / "link").symlink_to("/etc/passwd")
    for copied in (put(cluster, tmp_path / "data"), get(cluster, "data", tmp_path / "home", job)):
        assert [name.partition(":")[0] for name in copied.unread] == ["below/odd"]
        assert copied.left_out == ("link",)
    for there in (Path(cluster.shared, "data"), tmp_path / "home"):
        assert names(there) == ["below", "plain"]
    monkeypatch.setattr(cli_put, "load_cluster", lambda *_: cluster)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli_put.command, ["data"], standalone_mode=False).return_value == 1


def test_a_missing_path_is_reported_with_what_is_there(cluster, job):
    with raises_code("no-file", "work/chekpoints (job 261121-0001)") as caught:
        get(cluster, "chekpoints", job=job)
    assert "work contains" in caught.value.hint
    assert "checkpoints/" in caught.value.hint


@pytest.mark.parametrize("path", ["../../../../etc", "checkpoints/../../../x", "/etc/passwd", "/../etc"])
def test_paths_that_leave_are_refused(cluster, job, path):
    with pytest.raises(TransferError, match="is outside of"):
        source_path(cluster, path, job)


def test_a_link_out_of_the_shared_directory_is_refused(cluster, job):
    with raises_code("not-copied", "/etc/passwd"):
        get(cluster, "checkpoints/elsewhere", job=job)


def test_an_absolute_path_needs_no_job(cluster, job, tmp_path):
    assert get(cluster, f"{job.directory}/work/checkpoints/old", job=None).place == str(tmp_path / "old")
    with pytest.raises(TransferError, match="relative to which job"):
        get(cluster, "old", job=None)


def test_a_destination_in_a_missing_directory_is_reported(cluster, job, tmp_path):
    with pytest.raises(TransferError, match="there is no directory"):
        get(cluster, "checkpoints", tmp_path / "no/where", job)


def test_a_stream_that_breaks_leaves_no_file(cluster, job, tmp_path, monkeypatch):
    whole = toolbox.command
    cut = "dd bs=1 count=100000 status=none; echo cut >&2"
    monkeypatch.setattr(toolbox, "command", lambda *arguments: f"{whole(*arguments)} | {cut}")
    with raises_code("incomplete-copy", "cut"):
        get(cluster, "checkpoints/last.pt", job=job)
    assert not [name for name in names(tmp_path) if "last" in name]


def test_data_go_to_the_shared_directory_and_into_what_is_there(cluster, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("a")
    (tmp_path / "data/run.sh").write_text("b")
    (tmp_path / "data/run.sh").chmod(0o755)
    assert put(cluster, tmp_path / "data").place == f"{cluster.shared}/data"
    assert os.access(f"{cluster.shared}/data/run.sh", os.X_OK)
    (tmp_path / "data/a").write_text("newer")
    put(cluster, tmp_path / "data")
    assert Path(cluster.shared, "data/a").read_text() == "newer"
    assert put(cluster, tmp_path / "data/a", "sets/one/").place == f"{cluster.shared}/sets/one/a"
    assert put(cluster, tmp_path / "data/a", "sets/two").place == f"{cluster.shared}/sets/two"


@pytest.fixture
def tree(tmp_path):
    """A directory with three files that were changed long ago; `age` makes further ones so."""
    root = tmp_path / "data"
    (root / "deep" / ODD_NAME).mkdir(parents=True)
    for name in ("a", "deep/b", f"deep/{ODD_NAME}/c"):
        (root / name).write_bytes(b"x" * 1000)
    (root / "deep/link").symlink_to("b")
    age(root)
    return root


def age(root, seconds=3600.123456789):
    for path in (root, *root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            at_ns = int((time.time() - seconds) * 1e9)
            os.utime(path, ns=(at_ns, at_ns))


def test_the_same_copy_again_sends_only_what_changed(cluster, tree, tmp_path):
    def copy():
        done = put(cluster, tree)
        return done.files, done.bytes, done.unchanged

    there = Path(cluster.shared, "data")
    assert (copy(), copy()) == ((3, 3000, 0), (0, 0, 3))
    before = (tree / "a").stat()
    (tree / "a").write_bytes(b"y" * 1000)
    (there / "deep/b").unlink()
    age(tree / "deep", 7200)  # c: touched, as far as anybody can see
    (tree / "new").write_text("new")
    assert copy() == (4, 3003, 0)
    assert (there / "a").read_bytes() == b"y" * 1000 and (there / "new").read_text() == "new"
    # A job's change is replaced, and a change of the rights alone arrives without the content.
    (there / "a").write_bytes(b"z" * 1000)
    age(tree)
    copy()
    assert (there / "a").read_bytes() == b"y" * 1000
    (tree / "a").chmod(0o751)
    assert (copy(), (there / "a").stat().st_mode & 0o777) == ((0, 0, 4), 0o751)
    assert (there / "a").stat().st_mtime_ns == (tree / "a").stat().st_mtime_ns != before.st_mtime_ns


def test_results_that_are_here_are_not_fetched_again(cluster, job, tmp_path):
    work = Path(job.directory, "work")
    age(work)
    first, again = get(cluster, "checkpoints", job=job), get(cluster, "checkpoints", job=job)
    assert ((first.files, first.unchanged), (again.files, again.bytes, again.unchanged)) == ((2, 0), (0, 0, 2))
    (tmp_path / "checkpoints/last.pt").write_bytes(b"\0\2" * 100_000)
    assert (get(cluster, "checkpoints", job=job).files, get(cluster, "checkpoints/last.pt", job=job).files) == (1, 1)
    assert (tmp_path / "checkpoints/last.pt").read_bytes() == b"\0\1" * 100_000


def test_a_copy_that_was_cut_off_goes_on_where_it_was(cluster, tree, monkeypatch):
    whole = carry.send

    def cut(out, load, progress):
        half = load.without(frozenset({len(load.items) - 1}))
        whole(out, half, progress)
        raise carry.CarryError("cut")

    monkeypatch.setattr(carry, "send", cut)
    with raises_code("not-copied", "cut"):
        put(cluster, tree)
    monkeypatch.setattr(carry, "send", whole)
    done = put(cluster, tree)
    assert (done.files, done.unchanged) == (1, 2)


def test_what_a_killed_copy_left_goes_with_a_later_one(cluster, job, tmp_path, monkeypatch):
    get(cluster, "checkpoints", job=job)
    part = tmp_path / "checkpoints/.phalanx-1234.part"
    part.write_text("half")
    get(cluster, "checkpoints", job=job)
    assert part.exists(), "another copy may write it"
    monkeypatch.setattr(unchanged, "_PART_KEPT_S", -1.0)
    get(cluster, "checkpoints", job=job)
    assert not part.exists() and (tmp_path / "checkpoints/last.pt").exists()


def again(path, target):
    """Copy a file as put and get do; return whether the target had it already."""
    load, stream = carry.survey(str(path)), io.BytesIO()
    carry.offer(stream, load)
    at = stream.tell()
    stream.seek(0)
    header = carry.read_header(stream)
    known = carry.known(stream, header, str(target))
    carry.send(stream, load.without(known.same))
    stream.seek(at)
    carry.receive(stream, header, str(target), known=known)
    assert target.read_bytes() == path.read_bytes()
    return bool(known.same)


@pytest.mark.parametrize(
    "command", ["cp -p other file", "mv other file", "tar -c other | tar -x --transform s/other/file/"]
)
def test_another_content_with_the_same_size_and_time_is_sent(tmp_path, monkeypatch, command):
    monkeypatch.setattr(unchanged, "_STARTED_WITHIN_NS", 0)
    for name in ("file", "other"):
        (tmp_path / name).write_text(f"{name:5}")
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))
    time.sleep(0.05)
    assert [again(tmp_path / "file", tmp_path / "to") for _ in range(2)] == [False, True]
    time.sleep(0.05)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert [again(tmp_path / "file", tmp_path / "to") for _ in range(2)] == [False, True]


DAY_S = 86_400


@pytest.mark.parametrize("off_s", [-3650 * DAY_S, -DAY_S, -60, 60, DAY_S, 3650 * DAY_S])
def test_a_clock_that_is_wrong_changes_nothing(tmp_path, monkeypatch, off_s):
    """The sender's clock is off: all its times are, those of its files included."""
    path, target, off_ns = tmp_path / "file", tmp_path / "to", off_s * 10**9
    look = carry._look

    def by_that_clock(here, name):
        item, *rest = look(here, name)
        return replace(item, changed_ns=item.changed_ns + off_ns, placed_ns=item.placed_ns + off_ns), *rest

    monkeypatch.setattr(carry, "_look", by_that_clock)
    offer, true = carry.offer, time.time_ns

    def offered(stream, load):
        monkeypatch.setattr(time, "time_ns", lambda: true() + off_ns)
        offer(stream, load)
        monkeypatch.setattr(time, "time_ns", true)

    monkeypatch.setattr(carry, "offer", offered)
    monkeypatch.setattr(unchanged, "_STARTED_WITHIN_NS", 0)
    path.write_text("first")
    time.sleep(0.1)
    assert [again(path, target) for _ in range(2)] == [False, True]
    time.sleep(0.1)
    path.write_text("other")
    time.sleep(0.1)
    assert [again(path, target) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("age_ns", [1_000_000, -1_000_000])
@pytest.mark.parametrize("at_ns", [1_764_000_000 * 10**9, 1_764_000_000 * 10**9 + 123_456_789])
def test_a_change_within_the_same_moment_is_sent(tmp_path, monkeypatch, at_ns, age_ns):
    """The time of such a file proves nothing: kernels count in ticks, some file systems in seconds, another clock."""
    monkeypatch.setattr(time, "time_ns", lambda: at_ns + age_ns)
    for text in ("first", "other"):
        (tmp_path / "file").write_text(text)
        os.utime(tmp_path / "file", ns=(at_ns, at_ns))
        assert not again(tmp_path / "file", tmp_path / "to")


@pytest.mark.parametrize("name", ["top/../secret", "top/link/secret", "top/./secret", "/secret", "top//secret", "x"])
def test_a_hostile_head_learns_nothing_of_other_files(tmp_path, name):
    (tmp_path / "here").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "out")
    for place in ("secret", "out/secret", "here/plain"):
        (tmp_path / place).write_text("12345")
        (tmp_path / place).chmod(0o600)
        os.utime(tmp_path / place, (1000, 1000))
    listed = [
        ["top"],
        ["top/link"],
        [name, 5, 1000 * 10**9, 0o777, 10**9, 5],
        ["top/plain", 5, 1000 * 10**9, 0o600, 10**9, 5],
    ]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in listed)
    known = carry.known(io.BytesIO(lines), {"listed": True, "items": 4}, str(tmp_path / "here"))
    assert (known.same, known.bytes, known.answer()) == ({3}, 5, {"same": "0001"})
    assert (tmp_path / "secret").stat().st_mode & 0o777 == (tmp_path / "out/secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    b""" {} [1] ["top",1,2] ["top",1,2,4095,1,1] ["top",1.5,2,3,1,1] [[ ["top",1,2,3,1] ["top",1,2,3,1,-1]""".split(
        b" "
    ),
)
def test_a_list_that_is_none_is_refused(tmp_path, line):
    with pytest.raises(carry.CarryError, match="list of files"):
        carry.known(io.BytesIO(line + b"\n"), {"listed": True, "items": 1}, str(tmp_path))


@pytest.mark.parametrize("said", [[], {}, {"same": 1}, {"same": "11"}, {"same": "2"}, {"same": ["1"]}])
def test_an_answer_that_is_none_is_refused(tmp_path, said):
    (tmp_path / "file").write_text("x")
    load, answer = carry.survey(str(tmp_path / "file")), io.BytesIO()
    carry.say(answer, said)
    answer.seek(0)
    with pytest.raises(carry.CarryError):
        carry.left(answer, load)


@pytest.mark.parametrize("number", ["1", "0000000001", "0" * 9 + "9" * 5000, "-1", "\u0661", "x", ""])
def test_a_beginning_of_a_file_that_is_not_sent_is_ignored(tmp_path, number):
    (tmp_path / "file").write_text("x")
    load, answer = carry.survey(str(tmp_path / "file")), io.BytesIO()
    carry.say(answer, {"same": "", "begun": {number: [1, "x"]}})
    answer.seek(0)
    assert carry.left(answer, load) == load


def test_what_can_t_be_put_is_reported(cluster, tmp_path):
    (tmp_path / "file").write_text("x")
    with raises_code("no-file", "fil") as caught:
        put(cluster, tmp_path / "fil")
    assert "file" in caught.value.hint
    with raises_code("outside-shared"):
        put(cluster, tmp_path / "file", "../x")
    Path(cluster.shared, "out").symlink_to("/")
    with raises_code("not-copied", "not on the shared"):
        put(cluster, tmp_path / "file", "out/tmp/x")
    put(cluster, tmp_path / "file", "plain")
    with pytest.raises(TransferError, match="can't write"):
        put(cluster, tmp_path / "file", "plain/below")


def test_the_place_on_the_shared_directory(cluster):
    assert shared_path(cluster, "") == f"{cluster.shared}/"
    assert shared_path(cluster, "a/b/") == f"{cluster.shared}/a/b/"
    assert shared_path(cluster, f"{cluster.shared}/a") == f"{cluster.shared}/a"


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://my-bucket/pets", "pets/"),
        ("s3://my-bucket/pets/", "pets/"),
        ("s3://my-bucket/pets/cats", "pets/cats"),
        ("s3://whole", ""),
        ("s3://whole/a/b", "a/b"),
    ],
)
def test_jobs_copy_from_s3_what_is_in_an_entry_of_data(url, prefix):
    known = list(places({"pets": "s3://my-bucket/pets", "all": "s3://whole"}))
    assert within(known, url).prefix == prefix
    for elsewhere in ("s3://my-bucket", "s3://my-bucket/petshop", "s3://my-bucket/other", "s3://other/pets"):
        with raises_code("data-denied", elsewhere):
            within(known, elsewhere)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pets", "s3://my-bucket/pets"), "`phalanx data put pets s3://my-bucket/pets` copies to S3"),
        (("s3://my-bucket/pets",), "phalanx put s3://my-bucket/pets SHARED_PATH"),
    ],
)
def test_an_url_alone_or_as_the_destination_is_refused(monkeypatch, arguments, said):
    monkeypatch.setattr(cli_put, "load_cluster", lambda *_: None)
    shown = CliRunner().invoke(cli_put.command, arguments)
    assert (shown.exit_code, said in " ".join(shown.output.split())) == (2, True)


def answered(monkeypatch, *matches):
    """Have the head answer that there is no such file, and that a pattern matches these."""
    header = {"missing": "x", "parent": "/", "holds": [], "matches": matches}
    line = shlex.quote(json.dumps(header))
    give = toolbox.command
    magic = shlex.quote(carry.MAGIC.decode().replace("\0", "\\0"))

    def command(shared, verb, path, *others):
        is_pattern = not set("*?[").isdisjoint(path)
        return f"printf '%b' {magic}; echo {line}" if is_pattern else give(shared, verb, path, *others)

    monkeypatch.setattr(toolbox, "command", command)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("checkpoints/*.pt", "{work}/.envrc"),
        ("checkpoints/*.pt", "{work}/checkpoints/old/first.pt"),
        ("checkpoints/*", "{work}/checkpoints/.envrc"),
        ("checkpoints/*", "{work}/checkpoints/../.envrc"),
        ("checkpoints/*/*", "{work}/checkpoints//.envrc"),
        ("checkpoints/.*", "{work}/checkpoints/.."),
        ("checkpoints/*", "{work}/checkpoints/x\0"),
        ("**/*.pt", "{work}/.hidden/first.pt"),
        ("**", "{work}/.envrc"),
        ("*.pt", "checkpoints.pt"),
        ("**", ""),
        ("*.pt", "/etc/x.pt"),
        ("**/x", "{work}" + "/x" * 20_000),
    ],
)
def test_a_hostile_head_chooses_no_file_that_the_pattern_does_not_match(
    cluster, job, tmp_path, monkeypatch, pattern, match
):
    work = Path(job.directory, "work")
    (work / ".envrc").write_text("hostile")
    (work / "checkpoints/.envrc").write_text("hostile")
    (tmp_path / "home").mkdir()
    answered(monkeypatch, match.format(work=work))
    with raises_code("invalid-answer"):
        list(get_each(cluster, [pattern], str(tmp_path / "home"), job, lambda: lambda _: None))
    assert names(tmp_path / "home") == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("checkpoints/*.pt", ["best.pt", "last.pt"]),
        ("**/*.pt", ["best.pt", "first.pt", "last.pt"]),
        ("checkpoints/**/first.pt", ["first.pt"]),
        ("**/[!x]ld/**", ["old"]),
        ("checkpoints/**", ["checkpoints"]),
        ("checkpoints/o?d/**/**/first.*", ["first.pt"]),
        (".[a-z]*", [".envrc"]),
        ("*odd*", [ODD_NAME]),
    ],
)
def test_what_a_pattern_matches_comes(cluster, job, tmp_path, pattern, found):
    Path(job.directory, "work/.envrc").write_text("mine")
    (tmp_path / "home").mkdir()
    copied = list(get_each(cluster, [pattern], str(tmp_path / "home"), job, lambda: lambda _: None))
    assert names(tmp_path / "home") == found and len(copied) == len(found)


def stream(*members):
    """Build a stream that a hostile head could send."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
    return io.BytesIO(out.getvalue())


@pytest.mark.parametrize(
    "members",
    [
        [("top/../x", tarfile.REGTYPE, "")],
        [("/etc/x", tarfile.REGTYPE, "")],
        [("top", tarfile.DIRTYPE, ""), ("top/l", tarfile.SYMTYPE, "../..")],
        [("top", tarfile.DIRTYPE, ""), ("top/l", tarfile.SYMTYPE, "/etc")],
        [("top", tarfile.LNKTYPE, "/etc/passwd")],
        [("top", tarfile.CHRTYPE, "")],
        [("top", tarfile.SYMTYPE, "top")] * 2 + [("top/x", tarfile.REGTYPE, "")],
    ],
)
def test_nothing_is_written_outside_of_the_destination(members, tmp_path):
    with pytest.raises(carry.CarryError, match=r"refused|symbolic link"):
        carry.receive(stream(*members), {"items": len(members), "bytes": 0}, str(tmp_path / "here"))
    assert [name for name in names(tmp_path) if name != "here"] == []


def test_a_stream_that_ends_between_two_files_is_noticed(tmp_path):
    with pytest.raises(carry.CarryError, match="ended after 1 of 2"):
        carry.receive(stream(("top", tarfile.DIRTYPE, "")), {"items": 2, "bytes": 0}, str(tmp_path / "here"))


def test_a_login_script_s_words_are_skipped():
    assert carry.read_header(io.BytesIO(b"Welcome\n" + carry.MAGIC + b'{"items": 1}\n')) == {"items": 1}
    with pytest.raises(carry.CarryError, match="something else came: b'Welcome"):
        carry.read_header(io.BytesIO(b"Welcome\n"))


def sent_meanwhile(directory, change):
    """Return the stream of a directory, and what it could not read; `change` is called within the first file."""
    load = carry.survey(str(directory))
    stream = io.BytesIO()

    class Out(io.RawIOBase):
        def write(self, data):
            if stream.tell() <= 2 << 20 < stream.tell() + len(data):
                change()
            return stream.write(data)

    carry.offer(stream, load)
    unread = carry.send(Out(), load)
    return io.BytesIO(stream.getvalue()), unread


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(b"a" * (8 << 20))
    (tmp_path / "data/b").write_bytes(b"b")
    (tmp_path / "new").write_bytes(b"new")
    return tmp_path / "data"


@pytest.mark.parametrize("change", [lambda file: (file.parents[1] / "new").replace(file), Path.unlink])
def test_a_file_that_is_replaced_or_removed_while_it_is_copied_is_whole(data, tmp_path, change):
    stream, unread = sent_meanwhile(data, lambda: change(data / "a"))
    assert unread == received(stream, tmp_path / "to") == []
    assert (tmp_path / "to/a").read_bytes() == b"a" * (8 << 20)
    assert (tmp_path / "to/b").read_bytes() == b"b"


@pytest.mark.parametrize(
    ("is_on_fuse", "change"),
    [
        (True, lambda file: (file.parents[1] / "new").replace(file)),
        (True, Path.unlink),
        (False, lambda file: os.truncate(file, 3 << 20)),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_file_that_breaks_off_is_named_and_the_rest_comes(data, tmp_path, monkeypatch, is_on_fuse, change, is_last):
    """FUSE opens it again for each block; no half file replaces what was there."""
    monkeypatch.setattr(guest_file, "_is_served_by_a_process", lambda _: is_on_fuse)
    if is_last:
        (data / "b").unlink()
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a").write_text("older")
    stream, unread = sent_meanwhile(data, lambda: change(data / "a"))
    assert [text.partition(":")[0] for text in unread] == ["a"]
    assert received(stream, tmp_path / "to") == unread
    assert (tmp_path / "to/a").read_text() == "older"
    assert names(tmp_path / "to") == (["a"] if is_last else ["a", "b"])


def test_only_a_file_that_came_can_have_broken_off(tmp_path):
    file, torn = ("top", tarfile.REGTYPE, ""), ("torn", tarfile.REGTYPE, "")
    for members in ([torn], [file, torn, torn]):
        with pytest.raises(carry.CarryError):
            carry.receive(stream(*members), {"items": len(members), "bytes": 0}, str(tmp_path / "here"))
        assert names(tmp_path) == []


MIB = 1 << 20


def sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> Path:
    """Write a file of this size with nothing but these pieces."""
    with path.open("wb") as file:
        for start, data in pieces:
            file.seek(start)
            file.write(data)
        file.truncate(size)
    return path


def used(path: Path) -> int:
    return path.stat().st_blocks * 512


HOLES = {
    "in the middle": (64 * MIB, (0, b"a" * 5000), (40 * MIB, b"b" * 5000), (64 * MIB - 5, b"c" * 5)),
    "at the end": (64 * MIB + 3, (0, b"a" * 5000)),
    "at the start": (64 * MIB, (64 * MIB - 1, b"z")),
    "nothing else": (64 * MIB,),
}


@pytest.mark.parametrize("shape", HOLES)
@pytest.mark.parametrize("knows_holes", [True, False], ids=["knows", "knows-none"])
def test_holes_are_neither_sent_nor_filled(cluster, job, tmp_path, monkeypatch, shape, knows_holes):
    size, *pieces = HOLES[shape]
    source = sparse(tmp_path / "sparse.pt", size, *pieces)
    if not knows_holes:
        monkeypatch.setattr("phalanx.runner.files.holes.pieces", lambda *_: None)
    copied = put(cluster, source)
    there = Path(cluster.shared, "sparse.pt")
    assert there.read_bytes() == source.read_bytes()
    assert used(there) < 4 * MIB
    assert (copied.bytes < 4 * MIB) == knows_holes
    assert put(cluster, source).unchanged == 1
    moved = []
    home = get(cluster, str(there), tmp_path / "home.pt", progress=moved.append)
    assert (tmp_path / "home.pt").read_bytes() == source.read_bytes()
    assert used(tmp_path / "home.pt") < 4 * MIB
    # The head is another process, which always knows.
    assert home.bytes < 4 * MIB
    assert moved[-1].bytes == moved[-1].total_bytes == home.bytes
    assert get(cluster, str(there), tmp_path / "home.pt").unchanged == 1


def test_a_file_whose_holes_were_filled_while_it_is_copied_is_sent_again(cluster, tmp_path, monkeypatch):
    source = sparse(tmp_path / "sparse.pt", 8 * MIB, (0, b"a" * 5000))
    survey = carry.survey

    def and_then_it_is_filled(path):
        load = survey(path)
        source.write_bytes(b"f" * 8 * MIB)
        return load

    monkeypatch.setattr(carry, "survey", and_then_it_is_filled)
    put(cluster, source)
    monkeypatch.setattr(carry, "survey", survey)
    assert put(cluster, source).unchanged == 0
    assert Path(cluster.shared, "sparse.pt").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    "line",
    f"{{}} [8] [8,[[4]]] [8,[[4,4],[2,2]]] [8,[[0,9]]] [8,[[0,-1]]] [true,[]] [8,[[0,4]]] [{1 << 60},[]]".split(),
)
def test_pieces_that_are_none_are_refused(tmp_path, line):
    stream = io.BytesIO()
    carry.say(stream, {"items": 1, "files": 1, "bytes": 100, "left_out": [], "unread": []})
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(carry.TOP)
        info.gname, info.size = "phalanx-pieces", len(line) + 1
        tar.addfile(info, io.BytesIO(line.encode() + b"\n"))
    stream.seek(0)
    with pytest.raises(carry.CarryError, match="pieces of 'top'"):
        carry.receive(stream, carry.read_header(stream), str(tmp_path / "to"))
    assert not list(tmp_path.glob("*to*"))


BIG = 24 * MIB


def cut_copy(source: Path, target: Path, after_bytes: int) -> None:
    """Copy a file as `get` does, over a connection that breaks after so many bytes of its content."""
    load, stream = carry.survey(str(source)), io.BytesIO()
    carry.offer(stream, load)
    stream.seek(0)
    header = carry.read_header(stream)
    known = carry.known(stream, header, str(target))
    body = io.BytesIO()
    carry.send(body, load)
    with pytest.raises(carry.CarryError, match="the stream ended"):
        carry.receive(io.BytesIO(body.getvalue()[: after_bytes + 1024]), header, str(target), known=known)


@pytest.fixture
def big(tmp_path):
    path = tmp_path / "big.pt"
    path.write_bytes(os.urandom(BIG))
    return path


def test_a_large_file_whose_copy_is_cut_off_goes_on_where_it_was(cluster, big, tmp_path):
    target, moved = tmp_path / "here/big.pt", []
    target.parent.mkdir()
    cut_copy(big, target, 16 * MIB)
    assert not target.exists()
    assert [path.stat().st_size for path in target.parent.iterdir()] == [16 * MIB]
    home = tmp_path / "shared/big.pt"
    home.write_bytes(big.read_bytes())
    get(cluster, str(home), target, progress=moved.append)
    assert target.read_bytes() == big.read_bytes()
    assert names(target.parent) == ["big.pt"]
    assert moved[-1].bytes <= 8 * MIB + 1024, "only the rest was sent"


def test_put_goes_on_too(cluster, big, tmp_path):
    cut_copy(big, Path(cluster.shared, "big.pt"), 16 * MIB)
    copied = put(cluster, big)
    assert (copied.files, copied.bytes) == (1, 8 * MIB)
    assert Path(cluster.shared, "big.pt").read_bytes() == big.read_bytes()
    assert names(Path(cluster.shared)) == [".phalanx", "big.pt"]


@pytest.mark.parametrize("where", [0, 16 * MIB - 1])
def test_a_file_that_changed_meanwhile_is_sent_whole(cluster, big, where):
    cut_copy(big, Path(cluster.shared, "big.pt"), 16 * MIB)
    with big.open("r+b") as file:
        file.seek(where)
        file.write(bytes([big.read_bytes()[where] ^ 1]))
    assert put(cluster, big).bytes == BIG
    assert Path(cluster.shared, "big.pt").read_bytes() == big.read_bytes()
    assert names(Path(cluster.shared)) == [".phalanx", "big.pt"]


def test_a_shorter_file_and_one_with_holes_are_sent_whole(cluster, big):
    cut_copy(big, Path(cluster.shared, "big.pt"), 16 * MIB)
    os.truncate(big, 12 * MIB)
    assert put(cluster, big).bytes == 12 * MIB
    assert Path(cluster.shared, "big.pt").read_bytes() == big.read_bytes()
    cut_copy(big, Path(cluster.shared, "other.pt"), 9 * MIB)
    sparse(big, BIG, (0, big.read_bytes()[: 9 * MIB]))
    assert put(cluster, big, "other.pt").bytes > 9 * MIB
    assert Path(cluster.shared, "other.pt").read_bytes() == big.read_bytes()


def test_a_second_cut_goes_on_from_there_and_a_broken_part_is_no_beginning(cluster, big, tmp_path):
    target = Path(cluster.shared, "big.pt")
    cut_copy(big, target, 9 * MIB)
    (part,) = target.parent.glob(".phalanx-*.begun")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert put(cluster, big).bytes in (BIG, BIG - 9 * MIB)
    assert target.read_bytes() == big.read_bytes()


def test_the_rest_of_a_file_that_is_not_here_is_refused(tmp_path):
    (tmp_path / "to").mkdir()
    target = str(tmp_path / "to/file")
    stream = io.BytesIO()
    carry.say(stream, {"items": 1, "files": 1, "bytes": 100, "left_out": [], "unread": []})
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(carry.TOP)
        info.gname, info.size = "phalanx-from 8", 3
        tar.addfile(info, io.BytesIO(b"abc"))
    stream.seek(0)
    with pytest.raises(carry.CarryError, match="was not here"):
        carry.receive(stream, carry.read_header(stream), target)
    assert not list((tmp_path / "to").iterdir())


@pytest.mark.parametrize(
    "begun", [7, {"x": [9, ""]}, {"0": 9}, {"0": [-1, "a"]}, {"0": [True, "a"]}, {"9" * 400: [1, "a"]}, {"0": [1, 2]}]
)
def test_a_beginning_that_is_none_is_not_believed(big, begun):
    load, stream = carry.survey(str(big)), io.BytesIO()
    carry.say(stream, {"same": "", "begun": begun})
    stream.seek(0)
    assert carry.left(stream, load).bytes == BIG


def without_case(monkeypatch):
    """Have this file system take `a` and `A` for one name, as far as a copy can tell."""
    monkeypatch.setattr(unchanged, "ignores_case", lambda _directory: True)


def test_names_that_differ_in_case_only_are_named_where_they_are_one(cluster, job, tmp_path, monkeypatch):
    work = Path(job.directory, "work/run")
    for name in ("Logs/a", "Model.pt", "logs/b", "logs/deep/c", "model.pt", "caf\u00e9", "cafe\u0301", "other"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    without_case(monkeypatch)
    for _ in range(2):
        copied = get(cluster, "run", f"{tmp_path}/", job)
        assert sorted(one.partition(":")[0] for one in copied.unread) == [
            "caf\u00e9",
            "logs",
            "logs/b",
            "logs/deep",
            "logs/deep/c",
            "model.pt",
        ]
        found = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*"))
        assert found == ["Logs", "Logs/a", "Model.pt", "cafe\u0301", "other"]
        assert (tmp_path / "run/Model.pt").read_text() == "Model.pt"


def test_this_file_system_knows_the_difference(tmp_path):
    assert not unchanged.ignores_case(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert not unchanged.ignores_case(str(tmp_path / "missing"))
