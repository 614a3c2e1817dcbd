"""`localcloud COMMAND`, or `python -m localcloud COMMAND`: docs/interface.md describes each.

Commands for programs answer with JSON on standard output. Exit status: 0, or 1 with the reason on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_PREFIXES = ("AWS_", "BOTO", "MOTO_", "TEST_PROXY_MODE", "TEST_SERVER_MODE")
# Other variables of moto. All change what the server answers.
_OF_MOTO = frozenset(
    {
        *("INITIAL_NO_AUTH_ACTION_COUNT", "TESTS_SKIP_REQUIRES_DOCKER", "DEFAULT_CONTAINER_REGISTRY"),
        *(
            "S3_IGNORE_SUBDOMAIN_BUCKETNAME",
            "S3_UPLOAD_PART_MIN_SIZE",
            "SF_EXECUTION_HISTORY_TYPE",
            "VALIDATE_LAMBDA_S3",
        ),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
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
    return _COMMANDS[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcloud", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    in_a_directory = [
        _serve_parser(commands),
        _stop_parser(commands),
        commands.add_parser("status", help="show stacks, nodes and processes as JSON"),
        _env_parser(commands),
        _weather_parser(commands),
        _gpus_parser(commands),
        _account_parser(commands),
        commands.add_parser("file-systems", help="list the file systems that outlive it as JSON"),
    ]
    for command in in_a_directory:
        command.add_argument("--state", type=Path, required=True, metavar="DIR", help="its directory")
    commands.add_parser("image", help="build, list and remove images with a full operating system")
    commands.add_parser("room", help="report as JSON which of this machine's limits are too low for more nodes")
    commands.add_parser("probe", help="report as JSON whether this machine can run it, and what to fix")
    commands.add_parser("version", help="show the version, and which code it is, as JSON")
    return parser


def _serve_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    serve = commands.add_parser("serve", help="start it in the background and return once it answers")
    serve.add_argument(
        "--bind", action="append", default=[], metavar="PATH", help="make PATH visible in nodes, read-only"
    )
    serve.add_argument("--path", default="", metavar="DIRS", help="directories put first in the nodes' PATH")
    serve.add_argument("--images", type=Path, metavar="DIR", help="where `image build` puts images")
    serve.add_argument("--prices", type=Path, metavar="FILE", help="what AWS's price list says of instance types")
    serve.add_argument("--mode", choices=("auto", "range", "single", "root"), default="auto")
    return serve


def _stop_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    stop = commands.add_parser("stop", help="stop it if it has no stacks, and wait until its process has ended")
    stop.add_argument("--force", action="store_true", help="stop even with stacks, whose nodes end at once")
    return stop


def _env_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    env = commands.add_parser("env", help="print shell commands that point boto3, the AWS CLI and ssh at it")
    env.add_argument("--region", default="us-east-1", help="the region for the clients (default: us-east-1)")
    return env


def _weather_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    weather = commands.add_parser("weather", help="set or show the weather as JSON, also while it does not run")
    weather.add_argument("seed", nargs="?", metavar="SEED", help="a number, or `off`")
    weather.add_argument("--only", action="append", default=[], metavar="KIND", help="only this kind; repeatable")
    weather.add_argument("--speed", type=float, default=1.0, help="divide the weather's delays by this (1 to 100)")
    weather.add_argument("--tag-key", default="Name", metavar="KEY", help="the tag that a tag policy forbids")
    return weather


def _gpus_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    gpus = commands.add_parser("gpus", help="set or show how many stand-ins for GPUs a new node has, as JSON")
    gpus.add_argument("number", nargs="?", type=int, metavar="NUMBER")
    return gpus


def _account_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    account = commands.add_parser("account", help="set or show whose account it plays, as JSON")
    account.add_argument("profile", nargs="?", metavar="PROFILE")
    return account


def _serve(options: argparse.Namespace) -> int:
    from localcloud.daemon.lifecycle import CannotStart, Options, start

    forget_users_settings()
    binds = tuple(Path(path).absolute() for path in options.bind)
    path_dirs = tuple(part for part in options.path.split(":") if part)
    try:
        start(Options(options.state.absolute(), binds, path_dirs, options.mode, options.images, options.prices))
    except CannotStart as reason:
        return _refuse(str(reason))
    return 0


def forget_users_settings() -> None:
    """Drop the user's settings from this process: botocore and moto, which the server consists of, would read them.

    Proxies, pip's settings and certificates stay, because nodes reach the outside as this machine does.
    """
    for name in [name for name in os.environ if name.startswith(_PREFIXES) or name in _OF_MOTO]:
        del os.environ[name]
    os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)


def _stop(options: argparse.Namespace) -> int:
    from localcloud.daemon.lifecycle import CannotStop, stop

    try:
        answer = stop(options.state.absolute(), options.force)
    except CannotStop as reason:
        return _refuse(str(reason))
    return _print(answer, failed=not answer["stopped"] and bool(answer["stacks"]))


def _status(options: argparse.Namespace) -> int:
    from localcloud.daemon.endpoint_file import ask

    answer = ask(options.state, "GET", "status")
    if answer is None:
        return _refuse(f"no local cloud answers in {options.state}")
    return _print(answer, failed="message" in answer)


def _env(options: argparse.Namespace) -> int:
    from localcloud.network import shell

    try:
        lines = shell.lines(options.state.absolute(), options.region)
    except LookupError as reason:
        return _refuse(str(reason))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _weather(options: argparse.Namespace) -> int:
    from localcloud.daemon.endpoint_file import ask
    from localcloud.weather import forecast
    from localcloud.weather.sky import Weather

    state = options.state.absolute()
    try:
        if options.seed is not None:
            forecast.keep(state, options.seed, options.only, options.speed, options.tag_key)
            ask(state, "POST", "weather")
        answer = ask(state, "GET", "weather") or Weather(forecast.read(state)).describe()
    except ValueError as error:
        return _refuse(str(error))
    return _print({**answer, "known": {**forecast.KINDS, **forecast.RULES}})


def _gpus(options: argparse.Namespace) -> int:
    from localcloud.ec2 import gpus

    try:
        if options.number is not None:
            gpus.keep(options.state.absolute(), options.number)
        return _print({"gpus": gpus.count(options.state)})
    except ValueError as error:
        return _refuse(str(error))


def _account(options: argparse.Namespace) -> int:
    from localcloud import accounts
    from localcloud.daemon import endpoint_file

    state = options.state.absolute()
    if options.profile is not None and endpoint_file.is_live(state):
        return _refuse("the account can't change while the local cloud runs: stop it first")
    try:
        if options.profile is not None:
            accounts.keep(state, options.profile)
        return _print({**accounts.describe(accounts.read(state)), "known": accounts.PROFILES})
    except ValueError as error:
        return _refuse(str(error))


def _file_systems(options: argparse.Namespace) -> int:
    from localcloud.storage import file_system_records

    return _print(file_system_records.kept(options.state.absolute()))


def _version(_options: argparse.Namespace) -> int:
    import localcloud

    return _print({"version": localcloud.__version__, "code": localcloud.code()})


def _print(answer: object, failed: bool = False) -> int:
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return int(failed)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 1


_COMMANDS = {
    "serve": _serve,
    "stop": _stop,
    "status": _status,
    "env": _env,
    "weather": _weather,
    "gpus": _gpus,
    "account": _account,
    "file-systems": _file_systems,
    "version": _version,
}


if __name__ == "__main__":
    sys.exit(main())
