"""The lines of `localcloud env`, for a shell in which boto3, the AWS CLI, ssh, scp and sftp reach the local cloud."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from localcloud.daemon import endpoint_file

_PROGRAMS = ("ssh", "scp", "sftp")
# The default key exchange, sntrup761, costs both sides 0.1 s of CPU, and nothing leaves this machine.
SSH_OPTIONS = ("ProxyUseFdpass yes", "KexAlgorithms ^curve25519-sha256")
# The local cloud makes the connection itself, and its instances come and go at the same addresses.
_CONFIG = """\
Match exec "{dial} '%h'"
    ProxyCommand {dial} %h %p
    {options}
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
Match all
    Include ~/.ssh/config
    Include /etc/ssh/ssh_config
"""


def dial_command(socket: Path) -> list[str]:
    """Return the command that makes a connection to a node, HOST and PORT being added, for ssh's ProxyUseFdpass."""
    return [sys.executable, "-IS", str(Path(__file__).with_name("dial.py")), str(socket)]


def lines(state: Path, region: str) -> list[str]:
    """Return the lines for a shell. Raises LookupError if no local cloud runs in this directory."""
    if not endpoint_file.is_live(state):
        raise LookupError(f"no local cloud runs in {state}")
    found = endpoint_file.read(state)
    # https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html#EVarSettings
    values = {
        "AWS_ENDPOINT_URL": found["url"],
        "AWS_ACCESS_KEY_ID": found["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": found["secret_access_key"],
        "AWS_DEFAULT_REGION": region,
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    programs = shlex.quote(str(_write_programs(state / "shell", found["dial"])))
    path = f'case ":$PATH:" in *:{programs}:*) ;; *) PATH={programs}:"$PATH" ;; esac'
    return ["unset AWS_PROFILE AWS_SESSION_TOKEN", *exports, path]


def _write_programs(directory: Path, dial: Sequence[str]) -> Path:
    """Write ssh, scp and sftp into `directory`/bin, and return that. Other hosts are reached as without them."""
    config, place = directory / "ssh_config", directory / "bin"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = " ".join(shlex.quote(argument).replace("%", "%%") for argument in dial)
    _write(config, _CONFIG.format(dial=command, options="\n    ".join(SSH_OPTIONS)), 0o600)
    for name, found in _found(place).items():
        text = f'#!/bin/sh\nexec {shlex.quote(found)} -F {shlex.quote(str(config))} "$@"\n'
        _write(place / name, text, 0o700)
    return place


def _write(path: Path, text: str, mode: int) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    beside.replace(path)


def _found(place: Path) -> dict[str, str]:
    """Return name → path of this machine's own programs, also if `place` is in PATH already."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = os.pathsep.join(one for one in path if one != str(place))
    return {name: found for name in _PROGRAMS if (found := shutil.which(name, path=others))}
