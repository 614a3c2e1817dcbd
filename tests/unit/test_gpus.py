"""The GPUs of a node are counted, and fewer than its type has are a failure; stand-ins for them in the local cloud."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localcloud.ec2 import gpus as stand_ins
from localcloud.nodes.machine import Machine
from localcloud.weather.forecast import Forecast
from localcloud.weather.sky import Weather
from phalanx.node import agent as agents
from phalanx.node import command, daemon, head, progress
from phalanx.node.agent import Agent
from phalanx.node.command import CommandError
from phalanx.node.settings import ON_AWS

MACHINE = Machine("i-1", "vpc-1", "10.0.0.0/16", "10.0.1.4", "ip", "p4d.24xlarge", 96, 4096, b"", "us-east-1", "a", ())


def listing(number: int) -> str:
    return stand_ins.equip(MACHINE, "NVIDIA A100", number, Weather()).gpus


@pytest.fixture
def describe(monkeypatch):
    """Describe a p4d.24xlarge on which nvidia-smi says this, in a stack whose type has so many GPUs."""

    def run(answer: str | CommandError, gpus: str, first: CommandError | None = None):
        answers = [first, answer] if first else [answer]

        def smi(argv, _timeout_s) -> str:
            assert argv == ["nvidia-smi", "-L"]
            given = answers.pop(0)
            if isinstance(given, CommandError):
                raise given
            return given

        monkeypatch.setattr(command, "run", smi)
        monkeypatch.setattr(agents.trust, "make_key", lambda *_: "ssh-ed25519 AAAAkey")
        identity = SimpleNamespace(instance_id="i-1", address="10.0.1.4", zone="us-east-1a", type="p4d.24xlarge")
        settings = SimpleNamespace(gpus=gpus, slots=0, head=False, patience=ON_AWS)
        return Agent.describe(SimpleNamespace(identity=identity, settings=settings, root=""))  # type: ignore[arg-type]

    return run


ABSENT = CommandError("nvidia-smi -L", 127, "No such file or directory: 'nvidia-smi'")


@pytest.mark.parametrize("found", [8, 9])
def test_all_gpus_are_counted(describe, found):
    node = describe(listing(found), "p4d.24xlarge=8")
    assert (node.gpus, node.slots) == (found, found)


def test_a_driver_that_is_still_being_loaded_is_waited_for(describe, monkeypatch):
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    loading = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    node = describe(listing(8), "p4d.24xlarge=8", first=CommandError("nvidia-smi -L", 9, loading))
    assert node.gpus == 8


@pytest.mark.parametrize("found", [0, 7])
def test_fewer_than_the_type_has_fail_with_their_number(describe, found):
    with pytest.raises(CommandError) as caught:
        describe(listing(found), "p4d.24xlarge=8")
    assert caught.value.output == f"only {found} of 8 GPUs work:\n{listing(found)}"


def test_a_driver_that_is_missing_or_hangs_is_a_failure_where_the_type_has_gpus(describe):
    with pytest.raises(CommandError, match="No such file"):
        describe(ABSENT, "p4d.24xlarge=8")


@pytest.mark.parametrize("gpus", ["", "g5.xlarge=1"])
def test_of_a_type_that_was_chosen_in_the_console_nothing_is_expected(describe, gpus):
    assert describe(ABSENT, gpus).gpus == 0
    assert describe(listing(1), gpus).gpus == 1


def test_a_head_shows_that_it_lives_while_it_counts_its_gpus(monkeypatch):
    """A driver may take longer to load than `up` waits for a sign of life (phalanx.cluster.head_watch)."""
    steps: list[str] = []

    class Counting:
        def __init__(self, agent) -> None:
            steps.append(f"{agent.step}: counted")
            raise KeyError("ends this test")

    monkeypatch.setattr(progress, "begin", lambda agent: steps.append(f"{agent.step}: begun"))
    monkeypatch.setattr(head, "Head", Counting)
    agent = SimpleNamespace(settings=SimpleNamespace(head=True, metrics="", data=""), step="", settled=False)
    with pytest.raises(KeyError):
        daemon._live(agent, SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    assert steps == ["GPUs: begun", "GPUs: counted"] and agent.settled


def test_stand_ins_are_listed_as_nvidias_are(tmp_path):
    assert stand_ins.count(tmp_path) == 0
    stand_ins.keep(tmp_path, 2)
    assert stand_ins.count(tmp_path) == 2
    assert listing(2) == ("GPU 0: NVIDIA A100 (UUID: GPU-i-1-0)\nGPU 1: NVIDIA A100 (UUID: GPU-i-1-1)\n")


def test_in_bad_weather_they_come_late_and_one_may_be_lost():
    weather = Weather(Forecast(7, ("gpus",)))
    made = [stand_ins.equip(MACHINE, "NVIDIA A100", 8, weather) for _ in range(100)]
    assert {one.gpus.count("GPU ") for one in made} == {7, 8}
    assert all(35 <= one.gpus_after_s <= 90 for one in made)
    assert "GPUs after" in weather.events[-1]
