"""ssh's ProxyCommand for nodes without a public address: a session of AWS Systems Manager, by the AWS CLI.

    python -IS session_manager.py REGION INSTANCE PORT

It runs before every ssh, so it imports nothing of phalanx. Its arguments are no secrets: the AWS CLI finds the user's
credentials itself. The shape is AWS's own (docs/aws-behaviour.md 2.54).
"""

from __future__ import annotations

import os
import re
import shutil
import sys

DOCUMENT = "AWS-StartSSHSession"
_PROGRAMS = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html",
}


def argv(region: str, instance: str, port: str) -> list[str]:
    """Return the command that connects its standard input and output to a port of the instance."""
    place = ["--region", region, "--target", instance]
    return ["aws", "ssm", "start-session", *place, "--document-name", DOCUMENT, "--parameters", f"portNumber={port}"]


def missing() -> tuple[str, str]:
    """Return the first program that this machine lacks, and where to find it; ("", "") if it has all."""
    return next(((name, where) for name, where in _PROGRAMS.items() if shutil.which(name) is None), ("", ""))


def lacks(program: str) -> str:
    return f"the command `{program}` is not installed, and ssh reaches this cluster through AWS Systems Manager"


def require_programs() -> None:
    """Raise ClusterError if the AWS CLI or its plug-in for sessions is missing."""
    program, where = missing()
    if program:
        from phalanx.errors import ClusterError  # here: as a program, this file imports nothing of phalanx

        raise ClusterError(lacks(program), f"Install it: {where}", code="no-program")


def _report(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1


def main() -> int:
    place = os.environ.get("PHALANX_PROXY_ERRORS")
    if place:
        # ssh gives a proxy no stderr when the connection is to persist.
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND), 2)
    if len(sys.argv) != 4 or not re.fullmatch(r"m?i-[0-9a-f]+", sys.argv[2]):
        return _report("usage: session_manager.py REGION INSTANCE PORT")
    program, where = missing()
    if program:
        return _report(f"phalanx: {lacks(program)}; install it: {where}")
    command = argv(*sys.argv[1:])
    return os.execvp(command[0], command)


if __name__ == "__main__":
    raise SystemExit(main())
