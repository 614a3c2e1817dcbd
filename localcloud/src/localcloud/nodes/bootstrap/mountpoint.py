"""mount-s3 of the local image: a bind of the bucket's files plays Mountpoint for S3, whose FUSE needs /dev/fuse.

It asks for credentials and lists the prefix as Mountpoint does, and a process of its stands for the one that serves:
when that ends, so does the mount.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from localcloud.nodes.bootstrap import web
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.signing import Keys, signed

BUCKETS = "/run/efs.host/s3"
AGENT = "mountpoint-s3/1.23.0"
"""The beginning of Mountpoint's User-Agent, by which the local cloud learns which prefixes are mounted."""

_LOOK_S = 1.0
_REFUSED = """\
Error: Failed to create S3 client

Caused by:
    0: initial ListObjectsV2 failed for bucket {bucket} in region {region}
    1: Client error
    2: {reason}
Error: Failed to create mount process"""


def main(arguments: list[str], endpoint: str) -> int:
    """Mount a prefix and return 0, or print why not and return 1."""
    given = _parser().parse_args(arguments)
    prefix = given.prefix
    if prefix and not prefix.endswith("/"):
        print("error: invalid value for '--prefix <PREFIX>': S3 prefixes must end in '/'", file=sys.stderr)
        return 2
    try:
        _list(given.bucket, prefix, given.region, endpoint)
    except (FailedError, OSError) as failure:
        print(_REFUSED.format(bucket=given.bucket, region=given.region, reason=failure), file=sys.stderr)
        return 1
    if not Path(given.directory).is_dir():
        print(f"Error: mount point {given.directory} is not a directory", file=sys.stderr)
        return 1
    try:
        _bind(f"{BUCKETS}/{given.bucket}/{prefix}", given.directory, given.read_only)
    except subprocess.CalledProcessError:
        return 1
    _log(given.log_directory)
    _serve(given.directory)
    where = f"prefix {prefix} of bucket {given.bucket}" if prefix else f"bucket {given.bucket}"
    print(f"{where} is mounted at {given.directory}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("mount-s3", allow_abbrev=False)
    parser.add_argument("bucket")
    parser.add_argument("directory")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("-l", "--log-directory", default="")
    for flag in ("--read-only", "--allow-delete", "--allow-overwrite", "--allow-other"):
        parser.add_argument(flag, action="store_true")
    for name in ("--uid", "--gid", "--max-cache-size"):
        parser.add_argument(name, type=int)
    parser.add_argument("--cache")
    return parser


def _list(bucket: str, prefix: str, region: str, endpoint: str) -> None:
    """Ask for the first object, with the credentials that the environment leads to. Raises FailedError."""
    asked = {"list-type": "2", "max-keys": "1", "prefix": prefix}
    query = urllib.parse.urlencode(sorted(asked.items()), quote_via=urllib.parse.quote)
    url = f"{endpoint}/{bucket}?{query}"
    headers = {"Host": urllib.parse.urlsplit(url).netloc, "User-Agent": AGENT}
    try:
        web.request("GET", url, None, signed(_keys(), "GET", url, b"", f"{region}/s3", headers))
    except FailedError as failure:
        code, _, message = str(failure).partition(": ")
        raise FailedError(f"Forbidden: {message}" if code == "AccessDenied" else str(failure)) from None


def _keys() -> Keys:
    url = os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if not url:
        raise FailedError("No signing credentials available, see CRT debug logs")
    token = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    found = json.loads(web.request("GET", url, None, {"Authorization": token}))
    return Keys(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])


def _bind(source: str, directory: str, is_read_only: bool) -> None:
    subprocess.run(["mount", "--bind", source, directory], check=True)
    options = f"remount,bind,nosuid,nodev{',ro' if is_read_only else ''}"
    subprocess.run(["mount", "-o", options, directory], check=True)


def _log(directory: str) -> None:
    if directory:
        Path(directory).mkdir(0o750, parents=True, exist_ok=True)
        name = time.strftime("mountpoint-s3-%Y-%m-%dT%H-%M-%SZ.log", time.gmtime())
        Path(directory, name).touch(0o640)


def _serve(directory: str) -> None:
    """Leave a process that stands for Mountpoint's, and one that ends the mount with it."""
    sys.stdout.flush()
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 256)
    server = os.fork()
    if not server:
        signal.pause()
        os._exit(0)
    mount = _mount_of(directory)
    while not os.waitpid(server, os.WNOHANG)[0]:
        if _mount_of(directory) != mount:
            os.kill(server, signal.SIGKILL)
            os._exit(0)
        time.sleep(_LOOK_S)
    subprocess.run(["umount", "-l", directory], check=False)
    os._exit(0)


def _mount_of(directory: str) -> str:
    """Return the id of what is mounted there; "" for nothing."""
    # As bytes: the name of a mount may contain what text takes for the end of a line, or for a space.
    table = [line.split(b" ") for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]]
    return next((fields[0].decode() for fields in reversed(table) if fields[4] == os.fsencode(directory)), "")
