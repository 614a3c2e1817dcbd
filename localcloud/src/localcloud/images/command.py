"""`python -m localcloud image build|list|show|rm`: prints progress to stderr, and what there is as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from localcloud.images import build, distributions, store

_DELETE_FIRST = "Delete their stacks first."


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status: 0, 1 with the reason as `message`, or 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        _print({"build": _build, "list": _list, "show": _show, "rm": _remove}[options.command](options))
    except build.CannotBuild as reason:
        _print({"message": str(reason)})
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcloud image", description=__doc__)
    parser.add_argument("--images", type=Path, required=True, metavar="DIR")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("build", "rm"):
        commands.add_parser(command).add_argument("name", choices=list(distributions.DISTRIBUTIONS))
    commands.add_parser("list")
    show = commands.add_parser("show", help="print the versions of an image's packages")
    show.add_argument("name")
    show.add_argument("--manifest", metavar="PATH", help="print this JSON file of the image instead, if it has it")
    return parser


def _build(options: argparse.Namespace) -> object:
    _require_unused(options)
    return asdict(build.build(options.images.absolute(), options.name, _note))


def _list(options: argparse.Namespace) -> object:
    return [asdict(image) for image in store.images(options.images.absolute())]


def _show(options: argparse.Namespace) -> object:
    image = store.find(options.images.absolute(), options.name)
    if image is None:
        raise build.CannotBuild(f"there is no image {options.name}")
    return store.contents(Path(image.path) / store.TREE, options.manifest)


def _remove(options: argparse.Namespace) -> object:
    path = options.images.absolute() / options.name
    removed = path.exists()
    if removed:
        _require_unused(options)
        store.remove(path)
    return {"name": options.name, "removed": removed}


def _require_unused(options: argparse.Namespace) -> None:
    """Raise CannotBuild if nodes run from an image: their disks are layers above its files."""
    users = store.users(options.images.absolute() / options.name)
    if users:
        raise build.CannotBuild(f"{options.name} is in use by {', '.join(users)}\n{_DELETE_FIRST}")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
