"""phalanx local weather: make the local cloud as unkind as AWS can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from localcloud.weather import forecast
from localcloud.weather.forecast import KINDS, RULES, Forecast
from localcloud.weather.sky import Weather
from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.options import debug_option, json_option
from phalanx.errors import LocalCloudError, SpecError


@click.command("weather")
@click.argument("seed", required=False, metavar="[SEED|off]")
@click.option(
    "--only", multiple=True, type=click.Choice([*KINDS, *RULES]), metavar="KIND", help="Only this. Repeatable."
)
@click.option("--speed", type=float, default=1.0, help="Divide the weather's delays by this (1 to 100).")
@json_option
@debug_option
def weather(seed: str | None, only: tuple[str, ...], speed: float, as_json: bool) -> None:
    """Set or show the weather: delays, duplicates, refusals and throttling at the scale that AWS has them.

    The same SEED brings the same weather. It stays until `off`, also for local clouds that start later.

    Without --only, the 12 kinds come together in which clusters come up and run. Of these, packages strikes only
    nodes with the image of a full operating system, and gpus those whose type has GPUs. Six more come only when
    --only names them. Under explicit-deny, tag-policy, service-linked-role and disk-key, an organisation's rules, no
    cluster comes up; under elsewhere, only one with another zone in `zones`. During storage, jobs wait, so that the
    other kinds would meet none.

    \b
    Examples:
      phalanx local weather 7
      phalanx local weather 7 --only metadata --only launches --speed 10
      phalanx local weather off
      phalanx local weather
    """
    from phalanx.local import endpoint

    if seed is not None:
        _keep(endpoint.state(), None if seed == "off" else _forecast(seed, only, speed))
        endpoint.renew_weather()
    answer = endpoint.weather() or _kept(endpoint.state())
    print_json(answer) if as_json else _print(answer)


def _keep(state: Path, wanted: Forecast | None) -> None:
    forecast.remove(state) if wanted is None else wanted.write(state)


def _kept(state: Path) -> dict[str, Any]:
    """Return the weather that a local cloud would have."""
    try:
        return Weather(forecast.read(state)).describe()
    except ValueError as error:
        raise LocalCloudError(str(error), "`phalanx local weather off` removes it.") from error


def _forecast(seed: str, only: tuple[str, ...], speed: float) -> Forecast:
    if not seed.isdecimal():
        raise SpecError(f"the seed is '{seed}'", "It is a number, or `off`.")
    try:
        return Forecast(int(seed), only or tuple(KINDS), speed)
    except ValueError as error:
        raise SpecError(f"there is no such weather: {error}", "See `phalanx local weather --help`.") from error


def _print(answer: dict[str, Any]) -> None:
    known = {**KINDS, **RULES}
    if answer["seed"] is None:
        say("The weather is calm. `phalanx local weather SEED` changes it, to all kinds or to those that --only names:")
    else:
        say(f"The weather of seed {answer['seed']}, at speed {answer['speed']:g}:")
    print_table(["KIND", "WHAT HAPPENS"], [[kind, known[kind]] for kind in answer["kinds"] or known])
    for event in answer["events"]:
        say(event)
