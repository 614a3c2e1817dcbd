"""Clusters on this machine whatever settings the user's shell has for AWS, the web, ssh, pip, git and Python."""

from __future__ import annotations

import os

import pytest
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, DEFAULT_S3_CONFIG_VARS
from terminals import a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: settings\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\n"
NOWHERE = "/nonexistent/place"
REFUSES = "http://127.0.0.1:9"
BOTOCORE_ROWS = [*BOTOCORE_DEFAUT_SESSION_VARIABLES.values(), *DEFAULT_S3_CONFIG_VARS.values()]
BOTOCORE = {name for row in BOTOCORE_ROWS for name in ([row[1]] if isinstance(row[1], str) else row[1] or ())}
AWS = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION", "AWS_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL_CLOUDFORMATION", "AWS_CREDENTIAL_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EXECUTION_ENV", "BOTO_CONFIG"),
    *("BOTO_DISABLE_CRT", "BOTOCORE_EXPERIMENTAL__PLUGINS"),
}
MOTO = {"MOTO_S3_CUSTOM_ENDPOINTS", "MOTO_AMIS_PATH", "INITIAL_NO_AUTH_ACTION_COUNT", "S3_UPLOAD_PART_MIN_SIZE"}
PROXIES = {f"{kind}_proxy" for kind in ("http", "https", "all", "ftp")}
OPENSSH = {"SSH_AUTH_SOCK", "SSH_SK_PROVIDER", "SSH_ASKPASS", "SHELL"}
GIT = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_CONFIG_GLOBAL", "GIT_CEILING_DIRECTORIES"}
PIP = {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "PYTHON", "LOG", "CACHE_DIR", "CERT", "INDEX_URL")}
HOSTILE = {
    **dict.fromkeys(BOTOCORE | AWS | MOTO, "broken"),
    **dict.fromkeys(PROXIES | {name.upper() for name in PROXIES}, REFUSES),
    **dict.fromkeys(OPENSSH | GIT | PIP, NOWHERE),
    **dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR"), NOWHERE),
    "PIP_REQUIRE_VIRTUALENV": "1",
    "PIP_USER": "1",
    "PIP_NO_DEPS": "1",
    "PIP_QUIET": "3",
    "SSH_ASKPASS_REQUIRE": "force",
    "DISPLAY": ":77",
    "TERM": "nonsense",
    "COLUMNS": "5",
    "CDPATH": "/",
    "LC_ALL": "POSIX",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LANGUAGE": "de",
    "TZ": "Nowhere/Else",
    "PYTHONWARNINGS": "error",
    "PYTHONOPTIMIZE": "2",
    "PYTHONHASHSEED": "0",
    "POSIXLY_CORRECT": "1",
    "TAR_OPTIONS": "--nonsense",
    "GREP_OPTIONS": "-v",
    "BASH_ENV": NOWHERE,
    "ENV": NOWHERE,
}


@pytest.fixture
def home(tmp_path):
    """A home whose settings no program can read."""
    for name, text in ((".aws/config", "[profile broken\n=\n"), (".ssh/config", "Nonsense yes\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitconfig").write_text("[nonsense\n")
    (tmp_path / ".netrc").write_text("nonsense\n")
    return tmp_path


@pytest.fixture(params=[0o077, 0o000], ids=oct)
def umask(request):
    """The shell's umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def lives(terminal):
    """Bring a cluster up, use it, and take it down."""
    (terminal.directory / os.fsdecode(b"caf\xe9.txt")).write_text("read")
    terminal.phalanx("up")
    done = terminal.phalanx("run", "--launcher", "exec", "-n", "2", "--", "sh", "-c", "cat caf*")
    assert sorted(done.stdout.splitlines()) == ["[0] read", "[1] read"]
    terminal.phalanx("local", "status")
    processes = terminal.local_cloud_processes()
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)


def test_no_setting_of_the_shell_matters(monkeypatch, home):
    with a_terminal(SPEC) as terminal:
        for name, value in HOSTILE.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(home))
        lives(terminal)


def test_neither_a_home_is_needed_nor_a_certain_umask(monkeypatch, umask):
    with a_terminal(SPEC) as terminal:
        monkeypatch.delenv("HOME", raising=False)
        lives(terminal)
