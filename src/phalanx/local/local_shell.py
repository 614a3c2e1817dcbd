"""ssh, scp and sftp of a shell after `phalanx local env`: they reach instances by their public names and addresses."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from phalanx.errors import LocalCloudError
from phalanx.state_files import write_private

_PROGRAMS = ("ssh", "scp", "sftp")
# The default, sntrup761, costs both sides 0.1 s of CPU, and nothing leaves this machine.
QUICK = "KexAlgorithms ^curve25519-sha256"
# The local cloud makes the connection itself, and its instances come and go at the same addresses.
_HOSTS = """\
Match exec "{dial} '%h'"
    ProxyCommand {dial} %h %p
    ProxyUseFdpass yes
    {quick}
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
Match all
    Include ~/.ssh/config
    Include /etc/ssh/ssh_config
"""


def dial_command(socket: str) -> str:
    """Return the command that asks the local cloud for a connection, as ssh_config wants it."""
    program = find_spec("localcloud.network.dial")
    if program is None or program.origin is None:
        raise LocalCloudError("the local cloud is not installed", "pip install 'phalanx[local]'")
    argv = [sys.executable, "-IS", program.origin, socket]
    return " ".join(shlex.quote(argument).replace("%", "%%") for argument in argv)


def write(directory: Path, socket: str) -> Path:
    """Write the programs into `directory`/bin, and return that. Other hosts are reached as without them."""
    config, place = directory / "ssh_config", directory / "bin"
    write_private(config, _HOSTS.format(dial=dial_command(socket), quick=QUICK), lasts=False)
    place.mkdir(mode=0o700, exist_ok=True)
    for name, found in _found(place).items():
        text = f'#!/bin/sh\nexec {shlex.quote(found)} -F {shlex.quote(str(config))} "$@"\n'
        write_private(place / name, text, lasts=False)
        (place / name).chmod(0o700)
    return place


def _found(place: Path) -> dict[str, str]:
    """Return name → path of this machine's own programs, also if `place` is in PATH already."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = os.pathsep.join(one for one in path if one != str(place))
    return {name: found for name in _PROGRAMS if (found := shutil.which(name, path=others))}
