"""Every program that the source starts is installed after `make setup` on a minimal Debian."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from localcloud.nodes.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
# Programs of Debian's essential packages and those of priority "required", which mmdebstrap's minbase installs.
MINIMAL = """
apt-config apt-get awk bash cat chgrp chmod chown chroot cp cut date dirname dpkg-deb env expand find getent grep
groupadd hostname id kill ldconfig ln ls md5sum mkdir mkfifo mktemp mount nologin nproc pivot_root printf realpath rm
sed seq setpriv setsid sh sha256sum sleep sort su tail tar tee timeout touch tr true umount uname unshare useradd
userdel usermod xargs yes
"""
# What README's two commands require, and what .venv contains.
GIVEN = "git make python3 update-ca-certificates python phalanx torchrun"
# Started or looked for only if installed; the last is a test's name for `sleep`.
ASKED_FOR = "cc chromedriver crond mmdebstrap npm sudo systemctl test_hydra_proxy"
SHELL = """
break case cd command continue declare do done echo elif else esac eval exec exit export fi for if in local mapfile
pwd read return set shift then trap until wait while
"""
# Other programs of packages that setup detects by one program.
BESIDE = {"ssh": "scp ssh-add ssh-agent ssh-keygen ssh-keyscan", "ps": "pgrep pkill", "newuidmap": "newgidmap"}
# Developers' machines have these and a minimal Debian lacks them; searched in all strings of tests, where shells run.
TEMPTING = """
bc cc curl dig gcc ifconfig jq killall less lsof man nc netstat nslookup ping pstree socat strace sudo telnet traceroute
tree unzip vi vim wget xxd xz zip zstd
"""
POSITION = r"(?:^|[|&;(){`']|\$\(|\b(?:then|do|else|if|while|until|exec|!)\s)[ \t]*(?:\w+=\S*[ \t]+)*"
# What a shell reads as words: comments, strings (but not commands within them), arrays.
NOISE = (
    # A script for another system, which has its own packages.
    (r"(?ms)<<'COMPILE'$.*?^COMPILE$", ""),
    (r"(?m)^ *#.*$| # .*$", ""),
    (r"\\\n", " "),
    (r"'[^']*'", "''"),
    (r'"[^"]*"', lambda text: " ".join(re.findall(r"\$\([\w-]+", text[0])) or '""'),
    (r"=\([^)]*\)", "="),
    (r" in [^;\n]*", " in"),
)
# In Python: literal lists where a process is started, and programs named by their paths.
STARTED = re.compile(
    r'(?:\bsubprocess\.\w+\(\s*|\bos\.\w*(?:exec|spawn)\w*\(\s*"[^"]*",\s*)\["([^"]+)"'
    r'|"(/(?:usr/)?s?bin/[\w-]+)"'
)


def set_up() -> set[str]:
    """Return the programs that setup checks, for which it installs packages."""
    named = re.findall(r"command -v (\S+) .*\|\| echo [a-z]", (ROOT / "scripts/setup").read_text())
    return {*named, *(word for name in named for word in BESIDE.get(name, "").split())}


def own() -> set[str]:
    return {name for programs in PROGRAMS.values() for name in programs}


def there() -> set[str]:
    return {*f"{MINIMAL} {GIVEN} {ASKED_FOR} {SHELL}".split(), *set_up(), *own()}


def python_files() -> list[Path]:
    """List all Python files, except those that start the batch systems from scripts/schedulers."""
    files = [
        path
        for part in ("src", "localcloud", "tests", "benchmarks", "examples")
        for path in (ROOT / part).rglob("*.py")
    ]
    return [path for path in files if not path.is_relative_to(ROOT / "tests/cluster/schedulers")]


def commands(shell: str) -> set[str]:
    """Return a script's words in the position of a command, except its own functions."""
    for noise, instead in NOISE:
        shell = re.sub(noise, instead, shell)
    return set(re.findall(rf"{POSITION}([a-z][\w.-]+)(?=[\s;)]|$)", shell, re.M)) - set(
        re.findall(r"(?m)^(\w+)\(\)", shell)
    )


def test_programs_that_python_starts_are_there():
    found = {
        (path.name, "".join(match.groups("")).rpartition("/")[2])
        for path in python_files()
        for match in STARTED.finditer(path.read_text())
    }
    assert len(found) > 40
    assert {(file, program) for file, program in found if program not in there()} == set()


def test_programs_that_scripts_start_are_there():
    scripts = {path.name: path.read_text() for path in (ROOT / "scripts").iterdir() if path.is_file()}
    recipes = re.findall(r"(?m)^\t@?(.*)$", (ROOT / "Makefile").read_text())
    texts = {**scripts, "Makefile": "\n".join(recipes), **{n: t for some in PROGRAMS.values() for n, t in some.items()}}
    shell = {name: text for name, text in texts.items() if "python" not in text.partition("\n")[0]}
    assert {name: left for name, text in shell.items() if (left := commands(text) - there())} == {}


def test_tests_type_no_program_that_a_minimal_system_lacks():
    lacking = "|".join(set(TEMPTING.split()) - set_up() - own())
    typed = re.compile(rf"{POSITION}({lacking}) ", re.M)
    found = {
        (path.name, match[1])
        for part in ("tests", "localcloud/tests")
        for path in (ROOT / part).rglob("test_*.py")
        if path != Path(__file__) and re.search(rf"\b({lacking}) ", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in typed.finditer(node.value)
    }
    assert found == set()
