"""Files copied from a cluster or to it: nothing is written outside the chosen place, whatever its name."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: files\ncloud: local\nnodes: 1\nmin: 1\ntype: c5.large\nshared: /efs\nkeep: no\n"
MAGIC = b"\0phalanx-carry-1\n"
LINKS = """
import os
os.makedirs("out/a/b/c")
os.symlink("../../..", "out/a/b/c/top")
for count in range(1, 9):
    os.symlink("a/b/c/top" + "/.." * count + "/etc/passwd", f"out/away{count}")
os.symlink("a/b/c/top/../..", "out/up")
os.symlink("a/b", "out/within")
os.symlink("../b/c", "out/a/b/too")
os.symlink("/etc/passwd", "out/absolute")
os.mkfifo("out/pipe")
"""
ODD_NAMES = ("-rf", "--", "line\nbreak", "\udcff\udcfe", " ", "\x1b]0;x\x07", "...", "x" * 255)
DEPTH = 700


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """700 nested directories with a file in the last."""
    (tmp_path / "deep" / "/".join("d" * DEPTH)).mkdir(parents=True)
    (tmp_path / "deep" / "/".join("d" * DEPTH) / "file").write_text("found")
    return tmp_path / "deep"


def test_links_that_are_copied_home_lead_nowhere_else(terminal, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/links.py").write_text(LINKS)
    terminal.phalanx("run", "--launcher", "exec", "--directory", str(tmp_path / "code"), "--", "python3", "links.py")
    job = json.loads(terminal.phalanx("jobs", "--json").stdout)[0]["id"]
    done = terminal.phalanx("get", job, "out", str(tmp_path / "home"), check=False)
    assert done.returncode == 1 and "not copied: pipe: " in done.stderr
    home = tmp_path / "home"
    for path in home.rglob("*"):
        assert path.resolve().is_relative_to(home), f"{path} leads to {path.resolve()}"
    assert (home / "within").readlink() == Path("a/b")
    assert (home / "a/b/too").readlink() == Path("../b/c")


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Make a stream that ends as a whole one does: what came before that is kept."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in (*members, member("unread", content=b"[]")):
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, content: bytes = b""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(content)
    return info, content


def with_size(name: str, kind: bytes, size: int) -> bytes:
    """Make only a header, which announces this many bytes."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


TOP, LINK, FILE = member("top", tarfile.DIRTYPE), tarfile.SYMTYPE, b"evil"
STREAMS = {
    "a way up": tar(TOP, member("top/../evil", content=FILE)),
    "another root": tar(member("/tmp/phalanx-evil", content=FILE)),
    "no top": tar(member("evil", content=FILE)),
    "a link up": tar(TOP, member("top/l", LINK, ".."), member("top/l/evil", content=FILE)),
    "a link at the top": tar(member("top", LINK, ".."), member("top/evil", content=FILE)),
    "a link through a link": tar(
        TOP, member("top/a", tarfile.DIRTYPE), member("top/a/l", LINK, ".."), member("top/m", LINK, "a/l/../evil")
    ),
    "a file through a link": tar(
        TOP, member("top/a", tarfile.DIRTYPE), member("top/l", LINK, "a"), member("top/l/x", content=FILE)
    ),
    "an absolute link": tar(TOP, member("top/l", LINK, "/etc/passwd")),
    "a hard link": tar(TOP, member("top/l", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": tar(TOP, member("top/null", tarfile.CHRTYPE)),
    "a pipe": tar(TOP, member("top/pipe", tarfile.FIFOTYPE)),
    "holes of a terabyte": tar(TOP)[:512] + with_size("top/holes", tarfile.GNUTYPE_SPARSE, 0),
    "more than was announced": tar(TOP, member("top/much", content=b"x" * 100_000)),
    "a name of a gigabyte": with_size("././@LongLink", tarfile.GNUTYPE_LONGNAME, 1 << 30),
    "names of names": with_size("././@LongLink", tarfile.GNUTYPE_LONGNAME, 0) * 3000,
    "a size below nothing": with_size("top", tarfile.REGTYPE, -512),
    "a path of 3000 directories": tar(member("top" + "/d" * 3000, content=FILE)),
    "what is missing, twice": tar(TOP, *(member("unread", content=b'["a"]') for _ in range(2))),
    "more is missing than was announced": tar(TOP, member("unread", content=json.dumps(["a"] * 50).encode())),
    "what is missing is a number": tar(TOP, member("unread", content=b"7")),
    "what is missing is deep": tar(TOP, member("unread", content=b"[" * 100_000)),
    "half a file that never came": tar(TOP, member("torn", content=b'["a"]')),
    "two lists of half a file": tar(TOP, member("top/a"), *(member("torn", content=b'["a"]') for _ in range(2))),
    "noise": os.urandom(4096),
}
HEADERS = {
    "no header": b"[]",
    "a header of other types": b'{"items": "x", "files": [], "bytes": {}, "left_out": 5}',
    "a deep header": b"[" * 100_000,
    "an error of other types": b'{"missing": 5, "holds": 7, "parent": []}',
    "no end": b"x" * 70_000,
}


def answer_all_with(terminal: Terminal, content: bytes) -> None:
    """Make the job user's shell on the head print this, whatever phalanx asks it to run."""
    shared = next((terminal.state / "local/efs").glob("fs-*/"))
    (shared / "answer").write_bytes(content)
    (shared / "answer").chmod(0o644)
    shadow = "exec() { command cat /efs/answer; }"
    terminal.phalanx("ssh", "--admin", "--", f"echo '{shadow}' | sudo tee /home/phalanx/.bashrc >/dev/null")


@pytest.fixture
def liar(terminal: Terminal) -> Iterator[Terminal]:
    yield terminal
    terminal.phalanx("ssh", "--admin", "--", "echo true | sudo tee /home/phalanx/.bashrc >/dev/null")


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_the_head_forged_leaves_nothing_elsewhere(liar, tmp_path, stream):
    header = {"items": 9, "files": 9, "bytes": 1000, "left_out": [], "unread": []}
    answer_all_with(liar, MAGIC + json.dumps(header).encode() + b"\n" + stream)
    (tmp_path / "in").mkdir()
    done = liar.phalanx("get", "/efs/x", str(tmp_path / "in" / "home"), check=False, timeout_s=600)
    assert done.returncode == 1, done
    assert done.stderr.startswith("error: "), done.stderr[-2000:]
    assert "This is an unexpected error" not in done.stderr, done.stderr[-2000:]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    found = list((tmp_path / "in").rglob("*"))
    assert all(path.resolve().is_relative_to(tmp_path / "in" / "home") for path in found), found
    assert all(stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) for path in found)
    assert sum(path.lstat().st_size for path in found if path.is_file()) <= 1000
    assert not Path("/tmp/phalanx-evil").exists()


def test_a_forged_file_gets_no_rights_of_another(liar, tmp_path):
    header = {"items": 1, "files": 1, "bytes": 4, "left_out": [], "unread": []}
    stream = tar(member("top", mode=0o6777, content=FILE))
    answer_all_with(liar, MAGIC + json.dumps(header).encode() + b"\n" + stream)
    liar.phalanx("get", "/efs/x", str(tmp_path / "x"))
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) & 0o7000 == 0


def test_a_list_that_the_head_forged_touches_no_file_elsewhere(liar, tmp_path):
    """It may guess the size and the time of a file that a link leads to, and would learn that, and set its mode."""
    (tmp_path / "in/home/x").mkdir(parents=True)
    (tmp_path / "in/home/x/link").symlink_to(tmp_path)
    for place in (tmp_path / "secret", tmp_path / "in/home/x/own"):
        place.write_text("12345")
        place.chmod(0o600)
        os.utime(place, (1000, 1000))
    names = ("top/link/secret", "top/../../../secret", "/secret", "top/own")
    listed = [["top"], ["top/link"], *([name, 5, 1000 * 10**9, 0o644, 10**18, 5] for name in names)]
    header = {"items": len(listed), "files": 4, "bytes": 20, "left_out": [], "unread": [], "listed": True}
    lines = (json.dumps(line).encode() + b"\n" for line in (header, *listed))
    answer_all_with(liar, MAGIC + b"".join(lines) + tar(TOP))
    liar.phalanx("get", "/efs/x", str(tmp_path / "in/home"), check=False)
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "secret", tmp_path / "in/home/x/own")]
    assert modes == [0o600, 0o644]


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_an_invalid_header_is_reported_in_a_sentence(liar, tmp_path, header):
    answer_all_with(liar, MAGIC + header + b"\n")
    done = liar.phalanx("get", "/efs/x", str(tmp_path / "x"), check=False, timeout_s=600)
    assert done.returncode in (1, 6), done
    assert "This is an unexpected error" not in done.stderr, done.stderr[-2000:]
    assert not (tmp_path / "x").exists()


def test_deep_directories_are_copied_both_ways(terminal, deep, tmp_path):
    place = "/".join("d" * DEPTH)
    terminal.phalanx("put", str(deep))
    terminal.phalanx("get", "/efs/deep", str(tmp_path / "back"))
    assert (tmp_path / "back" / place / "file").read_text() == "found"
    done = terminal.phalanx("run", "--launcher", "exec", "--directory", str(deep), "--", "cat", f"{place}/file")
    assert done.stdout == "[0] found\n"


def test_what_the_head_may_not_read_is_named_and_the_rest_comes_home(terminal, tmp_path):
    (tmp_path / "code").mkdir()
    script = "mkdir out out/locked; echo a > out/plain; echo b > out/secret; chmod 0 out/locked out/secret"
    terminal.phalanx(
        "run", "--launcher", "exec", "-n", "1", "--directory", str(tmp_path / "code"), "--", "sh", "-c", script
    )
    done = terminal.phalanx("get", "out", str(tmp_path / "home"), check=False)
    assert done.returncode == 1
    assert all(name in done.stderr for name in ("locked: ", "secret: ")), done.stderr
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["plain"]


def test_odd_names_are_copied_both_ways(terminal, tmp_path):
    there, back = tmp_path / "names", tmp_path / "back"
    there.mkdir()
    for name in ODD_NAMES:
        (there / name).write_text("odd")
    (there / "away").symlink_to("/etc/passwd")
    os.mkfifo(there / "pipe")
    put = terminal.phalanx("put", str(there), check=False)
    assert put.returncode == 1 and "not copied: pipe: " in put.stderr
    terminal.phalanx("get", "/efs/names", str(back))
    assert {path.name: path.read_text() for path in back.iterdir()} == dict.fromkeys(ODD_NAMES, "odd")
    for name in ODD_NAMES[:3]:
        terminal.phalanx("put", "--", str(there / name))
        terminal.phalanx("get", "--", f"/efs/{name}", str(tmp_path / name))
        assert (tmp_path / name).read_text() == "odd"
