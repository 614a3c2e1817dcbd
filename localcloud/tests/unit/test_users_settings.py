"""Which of the user's settings the server forgets."""

from __future__ import annotations

import os
import re
from pathlib import Path

import moto
import pytest
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, DEFAULT_S3_CONFIG_VARS

from localcloud import __main__
from localcloud.api.moto_setup import SERVICES

ROWS = (*BOTOCORE_DEFAUT_SESSION_VARIABLES.values(), *DEFAULT_S3_CONFIG_VARS.values())
# From botocore's table and from the source of moto's services: which variables they read.
BOTOCORE = {name for row in ROWS for name in ([row[1]] if isinstance(row[1], str) else row[1] or ())}
_READ = re.compile(r"""environ(?:\.get\(|\[)\s*['"]([A-Z0-9_]+)['"]""")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The process's variables, as they are afterwards again."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/home/user/broken")
    return monkeypatch


def of_moto() -> set[str]:
    root = Path(moto.__file__).parent
    files = [root / "settings.py", *(path for name in SERVICES for path in (root / name).rglob("*.py"))]
    return {name for path in files for name in _READ.findall(path.read_text())}


def test_nothing_that_botocore_or_moto_reads_is_left(settings: pytest.MonkeyPatch) -> None:
    read = BOTOCORE | of_moto()
    assert len(read) > 80
    for name in read:
        settings.setenv(name, "broken")
    __main__.forget_users_settings()
    assert {name: os.environ[name] for name in read if name in os.environ} == {
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def test_what_leads_nodes_to_the_outside_stays(settings: pytest.MonkeyPatch) -> None:
    kept = dict.fromkeys(("https_proxy", "NO_PROXY", "PIP_INDEX_URL", "REQUESTS_CA_BUNDLE", "PATH", "HOME"), "kept")
    for name, value in kept.items():
        settings.setenv(name, value)
    __main__.forget_users_settings()
    assert {name: os.environ.get(name) for name in kept} == kept
