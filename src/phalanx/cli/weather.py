"""phalanx local weather: make the local cloud as unkind as AWS can be."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.options import debug_option, json_option
from phalanx.errors import LocalCloudError, SpecError
from phalanx.local import endpoint
from phalanx.spec.own_tags import CLUSTER_TAG


def _kinds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in endpoint.weather()["known"] if kind.startswith(incomplete)]


@click.command("weather")
@click.argument("seed", required=False, metavar="[SEED|off]")
@click.option("--only", multiple=True, metavar="KIND", shell_complete=_kinds, help="Only this kind. Repeatable.")
@click.option("--speed", type=float, default=1.0, help="Divide the weather's delays by this (1 to 100).")
@json_option
@debug_option
def weather(seed: str | None, only: tuple[str, ...], speed: float, as_json: bool) -> None:
    """Set or show the weather: delays, duplicates, refusals and throttling, as often and as long as on AWS.

    The same SEED brings the same weather. It stays until `off`, also for local clouds that start later.

    Without --only, 14 kinds are on, in which clusters come up and run. Of these, packages affects only nodes with
    the image of a full operating system, and gpus only types with GPUs. Six more kinds are on only if --only names
    them. With explicit-deny, tag-policy, service-linked-role and disk-key, an organisation's rules, no cluster
    comes up. With elsewhere, only a cluster with another zone in `zones` does. With storage, jobs wait until the
    shared directory answers.

    \b
    Examples:
      phalanx local weather 7
      phalanx local weather 7 --only metadata --only launches --speed 10
      phalanx local weather off
      phalanx local weather
    """
    kinds = [word for kind in only for word in ("--only", kind)]
    settings = [] if seed is None else [seed, *kinds, "--speed", f"{speed:g}", "--tag-key", CLUSTER_TAG]
    try:
        answer = endpoint.weather(*settings)
    except LocalCloudError as error:
        if not settings:
            raise LocalCloudError(error.message, "`phalanx local weather off` removes it.", code=error.code) from error
        raise SpecError(
            f"there is no such weather: {error.message}", "See `phalanx local weather --help`.", code="no-weather"
        ) from error
    known = answer.pop("known")
    print_json(answer) if as_json else _print(answer, known)


def _print(answer: dict[str, Any], known: dict[str, str]) -> None:
    if answer["seed"] is None:
        say("The weather is calm. `phalanx local weather SEED` changes it, to all kinds or to those that --only names:")
    else:
        say(f"The weather of seed {answer['seed']}, at speed {answer['speed']:g}:")
    print_table(["KIND", "WHAT HAPPENS"], [[kind, known[kind]] for kind in answer["kinds"] or known])
    for event in answer["events"]:
        say(event)
