"""A cluster whose document no request takes, made and changed through a bucket; nothing of it stays there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from error_codes import assert_refused
from local_clouds import api
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: large\ncloud: local\nnodes: 1\ntype: c5.large\nkeep: no\nbucket: documents\n"
TAGS = {f"{n:02}{'k' * 126}": "v" * 256 for n in range(40)}
START = "from phalanx.local import endpoint; endpoint.begin(); endpoint.wait()"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_terminal(SPEC) as made:
        write(made, TAGS)
        yield made


def write(terminal: Terminal, tags: dict[str, str]) -> None:
    (terminal.directory / "phalanx.yaml").write_text(f"{SPEC}tags: {json.dumps(tags)}\n")


def tags_of(terminal: Terminal) -> dict[str, str]:
    (found,) = api(terminal, "cloudformation").describe_stacks(StackName="large")["Stacks"]
    return {one["Key"]: one["Value"] for one in found["Tags"] if one["Key"] in TAGS}


def objects(terminal: Terminal) -> int:
    return api(terminal, "s3").list_objects_v2(Bucket="documents")["KeyCount"]


def test_it_is_refused_without_the_bucket_and_made_changed_and_deleted_with_it(terminal):
    assert_refused(terminal.phalanx("plan", "--json", check=False), "no-bucket", "bucket: ", "documents")
    environment = {**os.environ, "PHALANX_STATE_DIR": str(terminal.state)}
    subprocess.run([sys.executable, "-c", START], env=environment, check=True, timeout=300)
    api(terminal, "s3").create_bucket(Bucket="documents")
    assert "sends it through the bucket documents" in terminal.phalanx("plan").stdout
    made = terminal.phalanx("up")
    assert "it goes through s3://documents/phalanx/large-" in made.stderr
    assert (tags_of(terminal), objects(terminal)) == (TAGS, 0)
    other = {**TAGS, f"00{'k' * 126}": "changed"}
    write(terminal, other)
    changed = terminal.phalanx("up", "--yes")
    assert "it goes through s3://documents/phalanx/large-" in changed.stderr
    assert (tags_of(terminal), objects(terminal)) == (other, 0)
    processes = terminal.local_cloud_processes()
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)
