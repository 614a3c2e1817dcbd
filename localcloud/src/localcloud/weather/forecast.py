"""A forecast: the seed, kinds and speed of the weather. It is a file in the state directory, so it outlives a stop."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# What each kind does at speed 1, with the row of docs/aws-behaviour.md that has its source.
KINDS = {
    "way-out": "an instance with a public address has no way out for up to 180 s: its packets are dropped (11.8)",
    "notifications": "Auto Scaling's notifications arrive up to 60 s late, twice, or never (11.1)",
    "function": "Lambda throttles a function: its event waits 1, 3, 7 … 63 s (11.2)",
    "messages": "SQS delivers messages out of order, up to 10 s late, and some of them twice (11.3)",
    "metadata": "the metadata service has no credentials for up to 120 s after a launch, and refuses requests (11.4)",
    "permissions": "IAM lets a new policy take effect 10 to 60 s after it was attached (11.5)",
    "launches": "a launch fails once: no capacity, a pending verification, or an internal error (11.6)",
    "stalls": "one instance in five stands still for 40 s, within its first ten minutes (11.13)",
    "neighbours": "GuardDuty, or a person, adds an interface and a security group to every second VPC (11.14)",
    "change-sets": "CloudFormation takes 2 to 60 s to make a change set, and does not find it at first (11.21)",
    "packages": "apt of a full operating system can install nothing for the first one to five minutes (11.18)",
    "gpus": "`nvidia-smi` takes 35 to 90 s at first, and one machine in ten has lost a GPU (11.15)",
    "tag-index": "the index of tags shows what is new 10 to 300 s late, and what was deleted for up to an hour (11.19)",
    "throttling": "one in ten calls that list, describe or use the table is throttled (11.7)",
}
# These come only when they are named. An organisation's rules are for good, and fail every cluster; a zone without
# capacity fails each that names no other. While the shared directory is away, jobs wait: the others would meet none.
RULES = {
    "storage": "once in its first ten minutes, the shared directory answers nothing for five (11.17)",
    "elsewhere": "of the zones that offer a type, the first has no capacity for it: us-east-1a (11.16)",
    "explicit-deny": "a service control policy denies ec2:RunInstances (11.9)",
    "tag-policy": "a tag policy forbids a tag that every launch has: that of --tag-key (11.10)",
    "service-linked-role": "Auto Scaling has no role, and nobody may create it (11.11)",
    "disk-key": "disks are encrypted with a key that Auto Scaling may not use (11.12)",
}
# Every possible seed is a different weather; a terminal shows this many digits well.
SEED_MOST = 999_999_999
SPEED_MOST = 100.0
_NAME = "weather.json"


@dataclass(frozen=True)
class Forecast:
    """`speed` divides the weather's own delays, so that a test need not wait for minutes. Raises ValueError.

    `tag_key` is the tag that the organisation's tag policy forbids, for the kind tag-policy.
    """

    seed: int
    kinds: tuple[str, ...] = tuple(KINDS)
    speed: float = 1.0
    tag_key: str = "Name"

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - KINDS.keys() - RULES.keys())
        if unknown:
            raise ValueError(f"unknown weather {', '.join(unknown)}; the kinds are {', '.join((*KINDS, *RULES))}")
        if not 0 <= self.seed <= SEED_MOST:
            raise ValueError(f"the seed is {self.seed}, and may be 0 to {SEED_MOST}")
        if not 1 <= self.speed <= SPEED_MOST:
            raise ValueError(f"the speed is {self.speed:g}, and may be 1 to {SPEED_MOST:g}")

    def write(self, state: Path) -> None:
        """Keep the forecast for the local cloud of this state directory. Atomic."""
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = state / f"{_NAME}.{os.getpid()}"
        beside.write_text(json.dumps(asdict(self)))
        beside.rename(state / _NAME)


def read(state: Path) -> Forecast | None:
    """Return the forecast that was kept here; None without one. Raises ValueError when the file is damaged."""
    try:
        found = json.loads((state / _NAME).read_text())
        return Forecast(int(found["seed"]), tuple(found["kinds"]), float(found["speed"]), str(found["tag_key"]))
    except FileNotFoundError:
        return None
    except (TypeError, KeyError) as error:
        raise ValueError(f"{state / _NAME} is damaged: {error!r}") from error


def keep(state: Path, seed: str, kinds: Sequence[str], speed: float, tag_key: str) -> None:
    """Keep a forecast of these kinds, or of all; remove it if the seed is `off`. Raises ValueError."""
    if seed == "off":
        (state / _NAME).unlink(missing_ok=True)
    elif seed.isdecimal():
        Forecast(int(seed), tuple(kinds) or tuple(KINDS), speed, tag_key).write(state)
    else:
        raise ValueError(f"the seed is '{seed}', and not a number or `off`")
