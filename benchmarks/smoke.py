"""Try phalanx on the user's own AWS account: `make smoke-aws`, or the same on this machine, with ENDPOINT=local.

Two small nodes come up, say hello over MPI, train with torchrun, lose a worker and get a new one; then everything is
deleted, also after a failure or Ctrl-C. docs/aws-smoke.md is for volunteers.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks import recording, smoke_cost
from benchmarks.__main__ import machine
from benchmarks.measure import PHALANX, ROOT
from benchmarks.smoke_cost import NODES, TYPE
from benchmarks.smoke_report import Report, Step
from phalanx import connection
from phalanx.aws import log_groups, stacks, transcript
from phalanx.aws.aws import Aws
from phalanx.aws.inventory import remains
from phalanx.aws.model import Resource
from phalanx.cluster.cluster_record import BOOT_LOGS
from phalanx.errors import PhalanxError
from phalanx.local.endpoint import NotRunning
from phalanx.state_files import cluster_directory

# The NAT gateway is billed by the hour: the steps and the deletion, which takes some minutes, must fit into one.
STEPS_WITHIN_S = 40 * 60.0
DELETED_WITHIN_S = 25 * 60.0
DELETIONS = 3
REPLACED_WITHIN_S = 15 * 60.0
LOOK_EVERY_S = 5.0
MY_ADDRESS = "https://checkip.amazonaws.com"
# An index of builds for CPUs: 200 MB instead of gigabytes of CUDA.
CPU_BUILDS = ("--build-env", "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu")
WORKER = "deeplearning-worker2"
SPEC = f"""\
name: {{name}}
cloud: {{cloud}}
region: {{region}}
nodes: {NODES}
min: {NODES}
type: {TYPE}
slots: 2
ssh_from: {{ssh_from}}
throughput: bursting
keep: no
"""


class FailedError(Exception):
    """A step did not do what it must do."""


class Smoke:
    """A cluster's life in steps. `project` contains its phalanx.yaml."""

    def __init__(self, cloud: str, region: str, ssh_from: str, project: Path, report: Report) -> None:
        self.name = f"smoke-{secrets.token_hex(3)}"
        self.cloud, self.region, self.project, self.report = cloud, region, project, report
        self._gives_up_at = time.monotonic() + STEPS_WITHIN_S
        values = {"name": self.name, "cloud": cloud, "region": region, "ssh_from": ssh_from}
        (project / "phalanx.yaml").write_text(SPEC.format(**values))

    def api(self) -> Aws:
        """Return the cloud's API with its current address, because a local cloud ends with its last cluster."""
        return connection.connect(self.cloud, self.region)

    def run(self) -> None:
        """Take the steps; the first that fails is the last."""
        for name, step in self._steps():
            if not self._take(name, step):
                return

    def note_interrupt(self) -> None:
        """Record the step that Ctrl-C ended, or did not let begin."""
        taken = {step.name for step in self.report.steps}
        name = next((name for name, _ in self._steps() if name not in taken), "the steps")
        self.report.add(Step(name, 0.0, "interrupted"))

    def _steps(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return (
            (f"{NODES} nodes come up", self._come_up),
            ("hello over MPI", self._say_hello),
            ("training with torchrun", self._train),
            ("a killed worker is replaced", self._lose_a_worker),
            ("hello over MPI with the new worker", self._say_hello),
        )

    def end(self) -> None:
        """Save the boot logs, delete everything, and check that nothing is left."""
        resources = self._resources()
        self._take("boot logs", lambda: self._save_boot_logs(resources))
        self._gives_up_at = time.monotonic() + DELETED_WITHIN_S
        self._take("everything is deleted", self._delete)
        self._take("nothing is left", lambda: self._sweep(resources))

    def phalanx(self, *arguments: str) -> str:
        """Run `phalanx …`, show its output, and return it. Raises FailedError."""
        self.report.say(f"$ phalanx {' '.join(arguments)}")
        # In a session of its own, because Ctrl-C must not reach a deletion.
        process = subprocess.Popen(
            [PHALANX, *arguments],
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        late = threading.Timer(max(1.0, self._gives_up_at - time.monotonic()), _kill, [process])
        # Ctrl-C before it can be cancelled must not keep the program from ending.
        late.daemon = True
        late.start()
        try:
            shown = [self._show(line) for line in process.stdout or ()]
            process.wait()
        except KeyboardInterrupt:
            _interrupt(process)
            raise
        finally:
            late.cancel()
        if process.returncode == -signal.SIGKILL:
            raise FailedError(f"phalanx {arguments[0]} took too long")
        _require(not process.returncode, f"phalanx {arguments[0]} ended with {process.returncode}: {shown[-1:]}")
        return "\n".join(shown)

    def _show(self, line: str) -> str:
        self.report.say(line.rstrip("\n"))
        return line.rstrip("\n")

    def _take(self, name: str, step: Callable[[], None]) -> bool:
        started, problem = time.monotonic(), ""
        try:
            step()
        except (FailedError, PhalanxError) as error:
            problem = str(error)
        self.report.add(Step(name, round(time.monotonic() - started, 1), problem))
        return not problem

    def _come_up(self) -> None:
        self.phalanx("up", "--verbose")

    def _say_hello(self) -> None:
        code = ROOT / "examples" / "hello_mpi"
        ranks = ("-n", str(2 * NODES), "-N", "2", "--directory", str(code))
        printed = self.phalanx("run", "--recipe", "openmpi", "--launcher", "mpi", *ranks, "--", "python", "hello.py")
        _require(f"the sum of 1…{2 * NODES} over all ranks is" in printed, "the ranks did not add up their numbers")

    def _train(self) -> None:
        code = ROOT / "benchmarks" / "smoke_job"
        build = CPU_BUILDS if self.cloud == "aws" else ()
        options = ("--recipe", "torch", *build, "--launcher", "torchrun", "-N", "1", "--directory", str(code))
        printed = self.phalanx("run", *options, "--", "train.py")
        _require(f"{NODES} ranks have the same weights" in printed, "the ranks did not train together")

    def _lose_a_worker(self) -> None:
        lost = self._worker()
        _require(lost is not None, f"there is no {WORKER}")
        self.api().call("ec2", "terminate_instances", InstanceIds=[lost])
        self.report.say(f"terminated {lost}, which was {WORKER}")
        deadline = min(self._gives_up_at, time.monotonic() + REPLACED_WITHIN_S)
        while (found := self._worker()) in (None, lost):
            _require(time.monotonic() < deadline, f"no other instance became {WORKER}")
            time.sleep(LOOK_EVERY_S)
        self.report.say(f"{found} is {WORKER} now")

    def _worker(self) -> str | None:
        """Return the instance that is the worker, if it is ready."""
        nodes = json.loads(self._quietly("nodes", "--json"))
        ready = {node["name"]: node["instance_id"] for node in nodes if node["state"] == "ready"}
        return ready.get(WORKER)

    def _quietly(self, *arguments: str) -> str:
        done = subprocess.run(
            [PHALANX, *arguments], cwd=self.project, capture_output=True, text=True, timeout=120, check=False
        )
        _require(done.returncode == 0, f"phalanx {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def _resources(self) -> list[Resource]:
        """Return what the stack consists of, to check later that it is gone; nothing without a stack."""
        try:
            found = stacks.describe(self.api(), self.name)
            return stacks.resources(self.api(), found.stack_id) if found else []
        except PhalanxError as error:
            self.report.say(f"the stack's resources can't be listed: {error}")
            return []

    def _save_boot_logs(self, resources: list[Resource]) -> None:
        """Save the nodes' logs or, after a failed `up`, those that it saved before it deleted the stack."""
        for resource in resources:
            if resource.resource_type == "AWS::Logs::LogGroup":
                self.report.add_boot_logs(log_groups.read(self.api(), resource.physical_id))
        saved = cluster_directory(self.name) / BOOT_LOGS
        self.report.add_boot_logs({path.stem: path.read_text() for path in saved.glob("*.log")})

    def _delete(self) -> None:
        """Delete everything; try again after a failure, since AWS frees some resources late."""
        for _ in range(DELETIONS - 1):
            with contextlib.suppress(FailedError):
                self._down()
                return
        self._down()

    def _down(self) -> None:
        self.phalanx("down", "--yes", "--keep", "no", "--verbose")

    def _sweep(self, resources: list[Resource]) -> None:
        """Look for remains by the cluster's tag and by the ids of its resources; FailedError names them."""
        try:
            left = remains.find(self.api(), self.name, resources)
        except NotRunning:
            return  # the local cloud ended with its last cluster
        _require(not left, f"delete by hand, because it costs money: {', '.join(left)}")


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise FailedError(problem)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End a command as Ctrl-C would, or kill it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    # The whole session: a child such as ssh would keep the output open.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Interrupts:
    """Ctrl-C, a closed terminal or SIGTERM raises KeyboardInterrupt once; later ones can't stop the deletion."""

    def __init__(self) -> None:
        self.ending = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, *_: object) -> None:
        if not self.ending:
            self.ending = True
            raise KeyboardInterrupt
        # print() may be interrupted, and must not be entered twice.
        os.write(2, b"still deleting: the cluster costs money until it is gone\n")


def carry_out(smoke: Smoke) -> None:
    """Take all steps, and in any case delete everything."""
    interrupts = Interrupts()
    try:
        try:
            smoke.run()
        finally:
            interrupts.ending = True
    except KeyboardInterrupt:
        smoke.note_interrupt()
        smoke.report.say("interrupted; deleting everything")
    finally:
        smoke.end()


def my_network() -> str:
    """Return this machine's public address, as AWS sees it, as a network."""
    try:
        with urllib.request.urlopen(MY_ADDRESS, timeout=10) as answer:
            return f"{answer.read().decode().strip()}/32"
    except OSError as error:
        raise SystemExit(f"{MY_ADDRESS} does not answer ({error}); name your network with --ssh-from") from None


def agrees(smoke: Smoke, assumed: bool) -> bool:
    """Show the account, the plan and the price, and ask whether to go on, unless that is `assumed`."""
    if not assumed and not sys.stdin.isatty():
        raise SystemExit("There is no terminal to ask on; --yes creates the cluster without a question.")
    try:
        _show_what_follows(smoke)
    except (PhalanxError, FailedError) as error:
        raise SystemExit(str(error)) from None
    return assumed or input("Create it, and delete it at the end? [y/N] ").strip().lower() in ("y", "yes")


def _show_what_follows(smoke: Smoke) -> None:
    identity = smoke.api().call("sts", "get_caller_identity")
    say = smoke.report.say
    say(f"account  {identity['Account']}, as {identity['Arn']}")
    say(f"region   {smoke.region}" + ("" if smoke.cloud == "aws" else " of the local cloud, which costs nothing"))
    say(f"cluster  {smoke.name}, for less than an hour; all that it creates has the tag phalanx:cluster")
    smoke.phalanx("plan")
    say("cost     of the whole test, at us-east-1's prices:")
    for line in smoke_cost.lines():
        say(line)
    say(f"If this machine stops meanwhile: `phalanx down -c {smoke.name} --keep no` deletes everything.")


def _recorded(path: Path | None) -> list[recording.Entry]:
    try:
        return recording.read(path) if path else []
    except (OSError, ValueError) as error:
        raise SystemExit(f"--replay: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--endpoint", choices=("aws", "local"), default="aws", help="local: rehearse it on this machine"
    )
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--ssh-from", metavar="NETWORK", help="that may reach the head by ssh; default: this machine")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep every request and the shape of its answer here"
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="compare with what was recorded elsewhere, and print the differences",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build", help="directory for the report")
    arguments = parser.parse_args()
    started = datetime.datetime.now(datetime.timezone.utc)
    report = Report(arguments.output / f"smoke-{arguments.endpoint}-{started:%Y%m%dT%H%M%SZ}")
    os.environ[transcript.VARIABLE] = str(report.api_log)
    if arguments.record or arguments.replay:
        os.environ[transcript.WITH_ANSWERS] = "1"
    recorded = _recorded(arguments.replay)
    ssh_from = arguments.ssh_from or (my_network() if arguments.endpoint == "aws" else "127.0.0.1/32")
    connection.begin(arguments.endpoint)
    with tempfile.TemporaryDirectory(prefix="phx-") as project:
        smoke = Smoke(arguments.endpoint, arguments.region, ssh_from, Path(project), report)
        if not agrees(smoke, arguments.yes):
            smoke.api().site.stop_if_idle()
            raise SystemExit("Nothing was created.")
        carry_out(smoke)
    facts = {"started": started.isoformat(), "machine": machine(), "endpoint": smoke.cloud, "region": smoke.region}
    if arguments.record:
        shutil.copy(report.api_log, arguments.record)
    if arguments.replay:
        differ = recording.differences(recorded, recording.read(report.api_log))
        report.say("\n".join([f"{len(differ)} differences from {arguments.replay}:", *differ]))
    archive = report.close(facts)
    print("\n".join(["", *(step.line() for step in report.steps), f"report: {archive}"]))
    raise SystemExit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
