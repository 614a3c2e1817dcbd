"""Recordings, made of an AWS that is not ours and of the local cloud: compared, they show the stand-in's faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import comparing
import other_programs
import pytest
import yaml
from benchmarks import recording
from botocore.config import Config
from local_clouds import endpoint
from terminals import a_terminal

from phalanx.aws import transcript

pytestmark = [pytest.mark.long, pytest.mark.cluster]

DECIDED = yaml.safe_load((Path(__file__).parent / "decided.yaml").read_text())["decided"]
CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, parameter_validation=False)


def record(url: str, keys: tuple[str, str], path: Path, monkeypatch) -> list[recording.Entry]:
    """Make every request of the judges with clients that record, and return the recording."""
    monkeypatch.setenv(transcript.VARIABLE, str(path))
    monkeypatch.setenv(transcript.WITH_ANSWERS, "1")
    made: dict[str, Any] = {}

    def client(service: str) -> Any:
        if service not in made:
            places = {"endpoint_url": url, "region_name": "us-east-1", "config": CONFIG}
            made[service] = boto3.client(service, aws_access_key_id=keys[0], aws_secret_access_key=keys[1], **places)
            transcript.attach(made[service])
        return made[service]

    comparing.answers(client)
    return recording.read(path)


@contextmanager
def a_local_cloud() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield one that nobody has used."""
    with a_terminal("") as terminal:
        terminal.phalanx("local", "start")
        there = endpoint(terminal)
        yield there["url"], (there["access_key_id"], there["secret_access_key"])


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch) -> Callable[..., list[recording.Entry]]:
    def make(name: str, url: str, keys: tuple[str, str] = ("test", "test")) -> list[recording.Entry]:
        return record(url, keys, tmp_path / name, monkeypatch)

    return make


def test_what_ministack_answers_otherwise_is_found_and_the_local_cloud_equals_itself(tmp_path: Path, recorded):
    with other_programs.ministack(tmp_path) as url:
        theirs = recorded("theirs", url)
    ours = []
    for name in ("ours", "again"):
        with a_local_cloud() as there:
            ours.append(recorded(name, *there))
    assert recording.differences(*ours) == []
    found = recording.differences(theirs, ours[0])
    print(f"JUDGED recordings: {len(theirs)} calls of ministack, {len(found)} differences from the local cloud's")
    print("\n".join(found))
    judged = {row[0].split()[0].lower().replace(".", ":") for row in DECIDED}
    assert found and {one.split(": ")[0].lower() for one in found} <= judged
