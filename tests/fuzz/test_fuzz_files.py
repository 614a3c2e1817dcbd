"""Files in a user's directory, which may be a stranger's repository: phalanx.yaml, hosts files, ignore files."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from hypothesis import strategies as st

from fuzz.fuzzing import changed_bytes, changed_text, fuzz
from phalanx.code import ignore_rules
from phalanx.code.ignore_rules import IgnoreRules
from phalanx.errors import SpecError
from phalanx.jobs import hosts_file
from phalanx.node.roster import Node, Roster
from phalanx.spec.spec import KEYS
from phalanx.spec.spec_init import init_text
from phalanx.spec.spec_load import load

NODES = tuple(
    Node(f"deeplearning-worker{n}", f"i-{n}", f"10.0.1.{n}", f"ip-10-0-1-{n}", "", "", 0, 1, n == 1, "", "")
    for n in range(1, 9)
)
ROSTER = Roster("demo", 1, 8, 1, NODES)

# What YAML reads as something else than plain text.
ODD = st.sampled_from(
    ["", "yes", "~", "1", "-1", "1e9", ".nan", "0x1f", "[1]", "{a: b}", "!!binary aa", "!!int x", "'x'", "9" * 30]
) | st.text(max_size=12)


def test_a_spec_is_read_or_its_mistakes_are_reported(tmp_path: Path):
    file = tmp_path / "phalanx.yaml"

    def check(content: bytes) -> None:
        file.write_bytes(content)
        with contextlib.suppress(SpecError):
            load(file)

    bomb = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(99))
    corpus = [
        b"a: " + b"[" * 600,
        b"- " * 600,
        b"? " * 600,
        bomb.encode(),
        b"nodes: " + b"9" * 5000,
        b"a: !!timestamp 9-9-9",
        b"<<: *a",
    ]
    documents = changed_bytes(init_text("demo").encode(), b"name: x\nboot: |\n  echo\nnodes: 4\n")
    fuzz(documents | st.dictionaries(st.sampled_from([*KEYS, "nope"]), ODD, max_size=6).map(lines), check, corpus)


def lines(entries: dict[str, str]) -> bytes:
    return "".join(f"{key}: {value}\n" for key, value in entries.items()).encode(errors="surrogatepass")


def test_a_hosts_file_is_read_or_its_mistakes_are_reported():
    def check(text: str) -> None:
        with contextlib.suppress(SpecError):
            assert set(hosts_file.parse(text, ROSTER, "hosts")) <= {node.name for node in NODES}

    fuzz(
        changed_text("deeplearning-worker1:22\n10.0.1.2 slots=8 # x\n"),
        check,
        ["\n".join(f"host{n}" for n in range(20_000))],
    )


PIECES = st.lists(
    st.sampled_from(
        ["*", "**", "/", "?", "a", "b", "[a-b]", "[!", "[", "]", "\\", "!", "#", " ", "[[:alpha:]]", "[z-a]", "é"]
    ),
    max_size=30,
)
PATHS = st.builds("".join, st.lists(st.sampled_from(["a", "b", "/", "aaaaaaaaaaaa", "é", "."]), max_size=60))


def test_a_pattern_of_an_ignore_file_is_one_and_is_quick():
    def check(both: tuple[str, str]) -> None:
        pattern = ignore_rules.parse(both[0])
        if pattern:
            re.compile(pattern.expression, re.DOTALL).fullmatch(both[1])

    stars = ("*a" * 25, "a" * 250 + "b")
    deep = ("**/a/" * 25 + "b", "a/" * 100 + "c")
    fuzz(
        st.tuples(PIECES.map("".join), PATHS),
        check,
        [stars, deep, ("a*" * 30 + "/x", "a" * 255)],
    )


def test_an_ignore_file_of_any_bytes_is_rules(tmp_path: Path):
    def check(content: bytes) -> None:
        (tmp_path / ".gitignore").write_bytes(content)
        rules = IgnoreRules().within(str(tmp_path), "", [".gitignore"])
        for name in ("a", "a/b", "ab.py", "*"):
            rules.excluded_by(name, is_directory=False)

    fuzz(changed_bytes(b"*.pyc\n!keep\n/build/\n**/x/**\n[a-z]?\\ \n"), check, [b"*\n" * 2000])
