"""The weather's decisions: a seed repeats them, whatever the order of threads, and its delays can be divided."""

from __future__ import annotations

import pytest

from localcloud.weather import forecast
from localcloud.weather.forecast import KINDS, RULES, Forecast
from localcloud.weather.sky import Weather
from phalanx.cli.weather import weather as command
from phalanx.local import endpoint
from phalanx.local.this_machine import LocalAws, ThisMachine
from phalanx.node.settings import ON_AWS, Patience
from phalanx.spec.spec import ClusterSpec


def delays_s(weather: Weather, subjects: list[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for subject in subjects:
        draw = weather.draw("messages", subject)
        assert draw
        found.setdefault(subject, []).append(draw.seconds(0, 10))
    return found


def test_a_seed_repeats_its_weather_whatever_the_order_of_the_others():
    first = delays_s(Weather(Forecast(7)), ["a", "b", "a", "b"])
    assert delays_s(Weather(Forecast(7)), ["b", "b", "a", "a"]) == first
    assert delays_s(Weather(Forecast(8)), ["a", "b", "a", "b"]) != first
    assert len({*first["a"], *first["b"]}) == 4


def test_speed_divides_the_delays_and_changes_nothing_else():
    slow, fast = Weather(Forecast(7)).draw("messages", "a"), Weather(Forecast(7, speed=10)).draw("messages", "a")
    assert slow
    assert fast
    assert slow.seconds(0, 10) == pytest.approx(10 * fast.seconds(0, 10))
    assert slow.choice("abcdefgh") == fast.choice("abcdefgh")


def test_speed_divides_delays_of_awss_own():
    assert (Weather().scaled(60), Weather(Forecast(7, speed=10)).scaled(60)) == (60, 6)


@pytest.mark.parametrize(("speed", "call_s"), [(1, 60), (10, 6)])
def test_speed_divides_the_times_of_agents_of_a_cluster_that_comes_up_then(monkeypatch, speed, call_s):
    monkeypatch.setattr(endpoint, "weather_speed", lambda: speed)
    facts = ThisMachine(LocalAws("us-east-1")).facts(ClusterSpec(name="demo", nodes=1), "")
    assert facts.patience.call_s == call_s
    assert facts.patience == Patience(*(wait_s / speed for wait_s in ON_AWS))


def test_an_instance_is_known_by_its_group_and_its_place_there():
    weather = Weather(Forecast(7))
    weather.christen("i-0123456789abcdef0", "demo-workers")
    weather.christen("i-0fedcba987654321f", "demo-workers")
    assert weather.name("ROLE:i-0fedcba987654321f") == "ROLE:demo-workers#2"
    assert weather.name("demo-HeadRole-9h4PlvQShkK6") == "demo-HeadRole"


def test_only_the_kinds_of_the_forecast_strike_and_none_without_one():
    weather = Weather()
    assert [kind for kind in KINDS if weather.draw(kind, "a")] == []
    weather.change(Forecast(7, ("launches",)))
    assert [kind for kind in KINDS if weather.draw(kind, "a")] == ["launches"]


def test_the_help_names_each_kind_that_does_not_come_by_itself():
    text = command.help or ""
    assert [kind for kind in RULES if kind not in text] == []
    assert f"{len(KINDS)} kinds" in text


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"kinds": ("hail",)}, "unknown weather hail; the kinds are way-out, "),
        ({"seed": -1}, "the seed is -1"),
        ({"speed": 0.5}, "the speed is 0.5, and may be 1 to 100"),
    ],
)
def test_a_forecast_that_can_not_be_is_refused(mistake, message):
    with pytest.raises(ValueError, match=message):
        Forecast(**{"seed": 7, **mistake})


def test_a_forecast_is_kept_until_it_is_removed(tmp_path):
    assert forecast.read(tmp_path) is None
    Forecast(7, ("launches",), 10).write(tmp_path)
    assert forecast.read(tmp_path) == Forecast(7, ("launches",), 10)
    (tmp_path / "weather.json").write_text("[]")
    with pytest.raises(ValueError, match="damaged"):
        forecast.read(tmp_path)
    for _ in range(2):
        forecast.keep(tmp_path, "off", (), 1, "")
    assert forecast.read(tmp_path) is None
