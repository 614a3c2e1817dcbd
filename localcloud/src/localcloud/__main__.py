"""`python -m localcloud serve|probe|room|stop|status|image`: how phalanx controls the local cloud."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 with the reason on stderr."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["probe"]:
        from localcloud.daemon import probe

        return probe.main(argv[1:])
    if argv[:1] == ["room"]:
        from localcloud.daemon import room

        return room.main(argv[1:])
    if argv[:1] == ["image"]:
        from localcloud.images import command

        return command.main(argv[1:])
    options = _parser().parse_args(argv)
    return _serve(options) if options.command == "serve" else _control(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcloud", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="start it in the background and return once it answers")
    serve.add_argument(
        "--bind", action="append", default=[], metavar="PATH", help="make PATH visible in nodes, read-only"
    )
    serve.add_argument("--path", default="", metavar="DIRS", help="directories put first in the nodes' PATH")
    serve.add_argument("--images", type=Path, metavar="DIR", help="where `image build` puts images")
    serve.add_argument("--prices", type=Path, metavar="FILE", help="what AWS's price list says of instance types")
    serve.add_argument("--code", metavar="ID", help="which code this is, for those who read the command line")
    serve.add_argument("--mode", choices=("auto", "range", "single", "root"), default="auto")
    stop = commands.add_parser("stop", help="stop it if it has no stacks")
    stop.add_argument("--force", action="store_true", help="stop even with stacks, whose nodes end at once")
    commands.add_parser("image", help="build, list and remove images with a full operating system")
    commands.add_parser("room", help="report as JSON which of this machine's limits are too low for a cluster")
    commands.add_parser("probe", help="report as JSON whether this machine can run it, and what to fix")
    for command in (serve, stop, commands.add_parser("status", help="show stacks, nodes and processes as JSON")):
        command.add_argument("--state", type=Path, required=True, metavar="DIR")
    return parser


def _serve(options: argparse.Namespace) -> int:
    from localcloud.daemon.lifecycle import CannotStart, Options, start

    binds = tuple(Path(path).absolute() for path in options.bind)
    path_dirs = tuple(part for part in options.path.split(":") if part)
    try:
        start(Options(options.state.absolute(), binds, path_dirs, options.mode, options.images, options.prices))
    except CannotStart as reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    return 0


def _control(options: argparse.Namespace) -> int:
    from localcloud.daemon.endpoint_file import ask

    if options.command == "stop":
        answer = ask(options.state, "POST", "stop", {"force": options.force})
    else:
        answer = ask(options.state, "GET", "status")
    if answer is None:
        sys.stderr.write(f"no local cloud answers in {options.state}\n")
        return 1
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return 1 if "message" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
