"""The AWS CLI as a client of a local cloud. It starts once, and a fork of it runs each command: that takes 0.1 s."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[2] / "requirements/aws-cli.lock"
# In a directory of its own, kept between runs of the tests: it needs other versions than those in .venv.
INSTALLED = Path(sys.prefix) / f"aws-cli-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
SERVER = """
import functools, io, itertools, json, socket, socketserver, sys, time
from contextlib import redirect_stderr, redirect_stdout, suppress
from awscli.clidriver import create_clidriver
from botocore.loaders import JSONFileLoader

# Each process would parse the model of its service.
parsed = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
JSONFileLoader.load_file = lambda _, path: parsed(path)

# Its waiters look every 5 or 30 seconds, and not for ever: here they look sooner at first.
looks = itertools.count()
sleep, time.sleep = time.sleep, lambda s: sleep(min(s, 1) if next(looks) < 20 else s)

class Commands(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    max_children = 100
    create = staticmethod(create_clidriver().session.create_client)

    def verify_request(self, request, _address):
        with suppress(Exception):
            _, _, service, *_ = json.loads(request.recv(1 << 20, socket.MSG_PEEK))
            self.parse(service)
        return True

    @functools.cache
    def parse(self, service):
        self.create(service, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")

class Command(socketserver.StreamRequestHandler):
    def handle(self):
        driver, out, err = create_clidriver(), io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                status = driver.main(json.loads(self.rfile.readline()))
            except SystemExit as end:
                status = end.code
        self.wfile.write(json.dumps([status, out.getvalue(), err.getvalue()]).encode())

with Commands(sys.argv[1], Command) as server:
    print("ready", flush=True)
    server.serve_forever()
"""


class RefusedByCliError(AssertionError):
    """A command failed; the message is what it printed."""


@dataclass(frozen=True)
class AwsCli:
    """Runs commands such as `aws cloudformation deploy …`."""

    address: str
    endpoint: str
    # A line that defines `aws` in a shell, for commands that start programs of the user's, such as ssh.
    defined = f'aws() {{ PYTHONPATH={shlex.quote(str(INSTALLED))} {shlex.quote(sys.executable)} -m awscli "$@"; }}'

    def __call__(self, *arguments: str) -> Any:
        """Run a command; return its JSON, or its text. Raises RefusedByCliError."""
        # Version 1 ignores AWS_ENDPOINT_URL for SQS.
        command = ("--endpoint-url", self.endpoint, *arguments)
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(self.address)
            channel.sendall(json.dumps(command).encode() + b"\n")
            status, out, err = json.loads(channel.makefile("rb").read())
        if status:
            raise RefusedByCliError(f"aws {' '.join(arguments[:4])} → {status}\n{err}{out}")
        return json.loads(out) if out.startswith(("{", "[")) else out


@contextmanager
def aws_cli(endpoint: dict[str, Any], directory: Path) -> Iterator[AwsCli]:
    """Start the AWS CLI for the local cloud whose endpoint.json this is; install it first if it is missing."""
    install()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": str(INSTALLED),
        "AWS_ACCESS_KEY_ID": endpoint["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": endpoint["secret_access_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_PAGER": "",
    }
    address = str(directory / "aws.sock")
    command = [sys.executable, "-c", SERVER, address]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        try:
            yield AwsCli(address, endpoint["url"])
        finally:
            process.kill()


def install() -> None:
    """Install it if it is missing: for minutes, so before a local cloud starts, which stops while nobody uses it."""
    if INSTALLED.exists():
        return
    half = INSTALLED.with_suffix(f".{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--require-hashes", "--no-deps", "--target", half, "--requirement", LOCK], check=True)
    try:
        half.rename(INSTALLED)
    except OSError:
        # Another process of the tests was quicker, and may use it by now.
        shutil.rmtree(half)
