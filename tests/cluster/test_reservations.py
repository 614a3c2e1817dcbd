"""Clusters in a Capacity Reservation and in a Capacity Block, whose end reaches a job that runs there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from local_clouds import api, break_on_purpose
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: {}\ncloud: local\nnodes: 2\nmin: 2\ntype: {}\nkeep: no\ncapacity: {}\n"
GPUS = "p4d.24xlarge"
# The agent announces the end of a block ten minutes before EC2 clears it, half an hour before its end.
NOTICE_S = 40 * 60
# Until then, the cluster comes up and a job starts.
BEFORE_S = 45
PATIENCE_S = 300.0
SAVES = (
    "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True)); print('ready', flush=True); "
)
JOB = SAVES + "[signal.pause() for _ in range(2)]"


@contextmanager
def a_started_cloud() -> Iterator[Terminal]:
    """Yield a terminal whose local cloud runs, and has no cluster."""
    with a_terminal("") as terminal:
        terminal.phalanx("local", "start")
        yield terminal


def come_up(terminal: Terminal, name: str, kind: str, reservation: str, more: str = "") -> None:
    (terminal.directory / "phalanx.yaml").write_text(SPEC.format(name, kind, reservation) + more)
    terminal.phalanx("up")


def available(ec2: Any, reservation: str) -> int:
    found = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])["CapacityReservations"]
    return found[0]["AvailableInstanceCount"]


def reservations_of_instances(ec2: Any) -> list[tuple[str, str]]:
    """Return the reservation ("" for none) and the zone of all instances that run."""
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    found = [one for r in ec2.describe_instances(Filters=running)["Reservations"] for one in r["Instances"]]
    return sorted((one.get("CapacityReservationId", ""), one["Placement"]["AvailabilityZone"]) for one in found)


def test_a_cluster_in_a_reservation_uses_its_places_alone_and_gives_them_back():
    with a_started_cloud() as terminal:
        ec2 = api(terminal, "ec2")
        place = {
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": "us-east-1b",
            "InstanceMatchCriteria": "targeted",
        }
        made = ec2.create_capacity_reservation(InstanceType="c5.large", InstanceCount=2, **place)
        held = made["CapacityReservation"]["CapacityReservationId"]
        come_up(terminal, "reserved", "c5.large", held)
        assert (reservations_of_instances(ec2), available(ec2, held)) == ([(held, "us-east-1b")] * 2, 0)
        other = terminal.beside("other", SPEC.format("other", "c5.large", held)).phalanx("plan", check=False)
        assert other.returncode and f"capacity: {held} has 0 instances free" in other.stderr
        terminal.phalanx("down", "--yes")
        assert available(ec2, held) == 2
        processes = terminal.local_cloud_processes()
        ec2.cancel_capacity_reservation(CapacityReservationId=held)
        terminal.phalanx("local", "stop")
        assert_nothing_is_left(terminal, processes)


def buy(ec2: Any, lasts_s: float) -> str:
    ends = datetime.now(timezone.utc) + timedelta(seconds=lasts_s)
    asked = {"InstanceType": GPUS, "InstanceCount": 1, "CapacityDurationHours": 24, "EndDateRange": ends}
    offer, *_ = ec2.describe_capacity_block_offerings(**asked)["CapacityBlockOfferings"]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return bought["CapacityReservation"]["CapacityReservationId"]


def wait_for(what: str, condition: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(1)
    return found


def test_the_end_of_a_capacity_block_reaches_a_job_and_ends_it():
    with a_started_cloud() as terminal:
        ec2 = api(terminal, "ec2")
        block = buy(ec2, NOTICE_S + BEFORE_S)
        come_up(terminal, "block", GPUS, block, "slots: 1\nhead:\n  type: m5.large\n")
        assert [one for one, _ in reservations_of_instances(ec2)] == ["", block]
        (terminal.directory / "job.py").write_text(JOB)
        run = ("run", "--detach", "--launcher", "exec", "-n", "1", "--", "python3", "job.py")
        job_id = terminal.phalanx(*run).stdout.strip()
        terminal.wait_until_printed(job_id, "ready")
        terminal.wait_until_printed(job_id, "saved")
        (leaving,) = json.loads(terminal.phalanx("status", "--json").stdout)["leaving"]
        assert leaving["name"] == "deeplearning-worker2"
        assert leaving["reason"].startswith("EC2 clears the Capacity Block at ")
        refused = terminal.phalanx("run", "-n", "1", "--", "true", check=False)
        assert refused.returncode and leaving["reason"] in refused.stderr, refused.stderr
        break_on_purpose(terminal, clear_block={"reservation_id": block})
        state = f"cat /efs/.phalanx/jobs/{job_id}/state.json"
        ended = wait_for(
            "the job's end", lambda: (job := json.loads(terminal.on("head", state)))["ended_at"] and job["message"]
        )
        assert ended.startswith(f"deeplearning-worker2 leaves ({leaving['reason']}): deeplearning-worker2 was lost"), (
            ended
        )
        missing = wait_for(
            "the refused replacement",
            lambda: [
                one["reason"]
                for one in json.loads(terminal.phalanx("status", "--json").stdout)["missing"]
                if "compatible and available capacity" in one["reason"]
            ],
        )
        assert len(missing) == 1
        terminal.phalanx("down", "--yes")
