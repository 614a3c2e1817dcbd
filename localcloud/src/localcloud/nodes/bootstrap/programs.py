"""The command lines of cfn-init, cfn-signal, cfn-get-metadata and cfn-hup."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap import hup, web
from localcloud.nodes.bootstrap.build import INIT, build
from localcloud.nodes.bootstrap.downloads import endpoint_here
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.signing import Keys
from localcloud.nodes.bootstrap.stacks import CloudFormation, region_of

_WEB = ("http://", "https://")
_REGION = "us-east-1"


def main(arguments: list[str], endpoint: str) -> int:
    """Run the program whose name comes first; return its exit status."""
    name, *rest = arguments
    try:
        PROGRAMS[name](rest, endpoint_here(endpoint))
    except (FailedError, OSError) as failure:
        print(f"Error: {failure}" if name != "cfn-signal" else str(failure), file=sys.stderr)
        return 1
    return 0


def cfn_init(arguments: list[str], endpoint: str) -> None:
    parser = _parser("cfn-init", with_resource=True)
    parser.add_argument("-c", "--configsets", default="default")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("file", nargs="?", help="metadata as JSON; - is the standard input")
    given = parser.parse_args(arguments)
    if bool(given.file) == bool(given.stack or given.resource) or (given.stack is None) != (given.resource is None):
        parser.error("give either --stack and --resource, or a file with metadata")
    metadata = _of_file(given.file) if given.file else _service(given, endpoint).metadata(given.stack, given.resource)
    if not metadata.get(INIT):
        print(f"Could not find '{INIT}' key in the metadata.", file=sys.stderr)
        return
    try:
        build(metadata, given.configsets.split(","), endpoint, given.verbose)
    except FailedError as failure:
        raise FailedError(f"occurred during build: {failure}") from None


def _of_file(name: str) -> dict[str, Any]:
    try:
        found = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except ValueError as error:
        raise FailedError(f"decoding JSON from {name}: {error}") from None
    if not isinstance(found, dict):
        raise FailedError(f"{name} contains no object")
    return found


def cfn_signal(arguments: list[str], endpoint: str) -> None:
    parser = _parser("cfn-signal", with_resource=False)
    parser.add_argument("--stack")
    parser.add_argument("--resource")
    parser.add_argument("-s", "--success", choices=("true", "false"), default="true")
    parser.add_argument("-e", "--exit-code", type=int, default=0)
    parser.add_argument("-i", "--id")
    parser.add_argument("-r", "--reason", default="")
    parser.add_argument("-d", "--data", default="")
    parser.add_argument("handle", nargs="?", metavar="WaitConditionHandle URL")
    given = parser.parse_args(arguments)
    if bool(given.handle) == bool(given.resource):
        parser.error("give either the URL of a wait condition's handle, or --stack and --resource")
    status = "FAILURE" if given.exit_code or given.success == "false" else "SUCCESS"
    unique_id = given.id or _instance_id()
    if given.handle:
        _signal_handle(given, status, unique_id)
    elif not given.stack:
        parser.error("--stack is missing")
    else:
        _service(given, endpoint).signal(given.stack, given.resource, unique_id, status)


def _signal_handle(given: argparse.Namespace, status: str, unique_id: str) -> None:
    reason = given.reason or ("" if status == "SUCCESS" else "Configuration failed.")
    body = {"Status": status, "Reason": reason, "Data": given.data, "UniqueId": unique_id}
    # The address is signed for an empty content type.
    web.request("PUT", _handle(given.handle), json.dumps(body).encode(), {"Content-Type": ""})
    print(f"CloudFormation signaled successfully with {status}.")


def _handle(given: str) -> str:
    """Return the address, which a template may have encoded to get it through a shell."""
    try:
        url = given if given.startswith(_WEB) else base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        url = ""
    if not url.startswith(_WEB):
        raise FailedError(f"Error: Invalid WaitConditionHandle URL specified: {given}")
    return url


def _instance_id() -> str:
    try:
        return web.metadata("meta-data/instance-id")
    except FailedError:
        return socket.getfqdn()


def cfn_get_metadata(arguments: list[str], endpoint: str) -> None:
    parser = _parser("cfn-get-metadata", with_resource=True)
    parser.add_argument("-k", "--key", default="")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args(arguments)
    if not given.stack or not given.resource:
        parser.error("give --stack and --resource")
    found = hup.extracted(_service(given, endpoint).metadata(given.stack, given.resource), given.key)
    if not found:
        raise FailedError(f"{given.key} is not present in the metadata for {given.resource}")
    print(found if isinstance(found, str) else json.dumps(found, indent=4))


def cfn_hup(arguments: list[str], endpoint: str) -> None:
    parser = argparse.ArgumentParser(prog="cfn-hup")
    parser.add_argument("-c", "--config", default="/etc/cfn")
    parser.add_argument("--no-daemon", action="store_true", help="look once")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(filename="/var/log/cfn-hup.log", level=logging.INFO, format="%(asctime)s %(message)s")
    settings = hup.read(Path(given.config))
    keys = web.keys_of_role(settings.role) if settings.role else None
    service = CloudFormation(endpoint, settings.region, keys)
    (hup.look if given.no_daemon else hup.watch)(settings, service)


def _parser(name: str, *, with_resource: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name)
    if with_resource:
        parser.add_argument("-s", "--stack")
        parser.add_argument("-r", "--resource")
    parser.add_argument(*(["-u"] if with_resource else []), "--url", default="")
    parser.add_argument("--region", default="")
    parser.add_argument("-f", "--credential-file", type=Path)
    parser.add_argument("--role")
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    for option in ("--http-proxy", "--https-proxy"):
        parser.add_argument(option)
    return parser


def _service(given: argparse.Namespace, endpoint: str) -> CloudFormation:
    region = given.region or region_of(given.url) or _REGION
    return CloudFormation(endpoint, region, _keys(given))


def _keys(given: argparse.Namespace) -> Keys | None:
    if given.credential_file:
        lines = given.credential_file.read_text().splitlines()
        found = dict(line.strip().split("=", 1) for line in lines if "=" in line)
        return Keys(found.get("AWSAccessKeyId", ""), found.get("AWSSecretKey", ""))
    if given.role:
        return web.keys_of_role(given.role)
    return Keys(given.access_key, given.secret_key or "") if given.access_key else None


PROGRAMS: dict[str, Callable[[list[str], str], None]] = {
    "cfn-init": cfn_init,
    "cfn-signal": cfn_signal,
    "cfn-get-metadata": cfn_get_metadata,
    "cfn-hup": cfn_hup,
}
