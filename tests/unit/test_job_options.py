"""Options of `phalanx run` that are fields of a job."""

from __future__ import annotations

import click
import pytest

from phalanx.cli.job_options import Duration, env_file_option
from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("0", 0)])
def test_a_time_has_a_unit_or_is_in_seconds(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "-5", "1.5", "5x", "5 s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


LINES = """\ufeff# of the team
export LR=0.1
EMPTY=
 SPACED = a b \t
QUOTED="two words"
SINGLE='$HOME is kept'
URL=https://x/?a=b#c
"""
READ = {"LR": "0.1", "EMPTY": "", "SPACED": "a b", "QUOTED": "two words", "SINGLE": "$HOME is kept"}


def read(path, text: bytes, *options: str):
    path.write_bytes(text)
    made = env_file_option(click.command("x")(lambda env_file: env_file))
    return made.main(["--env-file", str(path), *options], standalone_mode=False)


def test_a_file_has_variables_as_shells_and_other_tools_write_them(tmp_path):
    assert read(tmp_path / "a", LINES.encode()) == {**READ, "URL": "https://x/?a=b#c"}
    assert read(tmp_path / "a", b"A=1\r\nB=2\r\nA=3") == {"A": "3", "B": "2"}
    odd = "a\u2028b\u0085c\x0bd\x0ce\x1cf"
    assert read(tmp_path / "a", f"A={odd}\nB='{odd}'\n".encode()) == {"A": odd, "B": odd}
    (tmp_path / "b").write_text("A=4")
    assert read(tmp_path / "a", b"A=1\nB=2", "--env-file", str(tmp_path / "b")) == {"A": "4", "B": "2"}


@pytest.mark.parametrize("text", [b"secret", b"A=1\nmy secret=1", b"A=\xff", b"A=" + b"x" * (1 << 20)])
def test_a_file_of_another_kind_is_refused_and_not_shown(tmp_path, text):
    with pytest.raises(click.BadParameter, match=str(tmp_path)) as refused:
        read(tmp_path / "a", text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["x" * (1 << 20), "\u20ac" * (1 << 19)])
def test_a_large_file_is_named_so_whatever_its_characters(tmp_path, text):
    with pytest.raises(click.BadParameter, match="larger than 1024 KiB"):
        read(tmp_path / "a", f"A={text}".encode())


def test_of_a_file_without_an_end_no_more_than_that_is_read():
    made = env_file_option(click.command("x")(lambda env_file: env_file))
    with pytest.raises(click.BadParameter, match="larger than 1024 KiB"):
        made.main(["--env-file", "/dev/zero"], standalone_mode=False)


@pytest.mark.parametrize("grace_s", [-1, 601])
def test_the_grace_has_a_limit(grace_s):
    with pytest.raises(JobError):
        JobSpec(("true",), grace_s=grace_s)


def test_a_link_leads_to_another_file_of_the_repository_or_is_the_user_s_own(tmp_path, monkeypatch):
    (tmp_path / "all.env").write_text("A=1")
    (tmp_path / "code/.git").mkdir(parents=True)
    (tmp_path / "code/sub").mkdir()
    (tmp_path / "code/all.env").write_text("A=2")
    (tmp_path / "code/sub/in").symlink_to("../all.env")
    (tmp_path / "code/out").symlink_to("../all.env")
    (tmp_path / "mine").symlink_to("all.env")
    monkeypatch.chdir(tmp_path / "code/sub")
    made = env_file_option(click.command("x")(lambda env_file: env_file))
    for name, found in {"in": "2", "../sub/in": "2", "../../mine": "1"}.items():
        assert made.main(["--env-file", name], standalone_mode=False) == {"A": found}
    with pytest.raises(click.BadParameter, match="leads out"):
        made.main(["--env-file", "../out"], standalone_mode=False)
