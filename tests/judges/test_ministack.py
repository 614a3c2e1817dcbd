"""ministack, an emulator of AWS without moto, answers as the local cloud does, or it is decided which one is right."""

from __future__ import annotations

from pathlib import Path

import boto3
import comparing
import other_programs
import pytest
import yaml
from botocore.config import Config
from stack_fakes import stacks

pytestmark = pytest.mark.long

DECIDED = yaml.safe_load((Path(__file__).parent / "decided.yaml").read_text())["decided"]
VERDICTS = ("local", "ministack", "unknown")
# Faults of the local cloud that are known: members that it leaves out.
MOST_KNOWN_FAULTS = 1


def test_each_difference_to_ministack_is_decided(tmp_path: Path):
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, parameter_validation=False)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    with other_programs.ministack(tmp_path) as url:
        theirs = comparing.answers(lambda service: boto3.client(service, endpoint_url=url, config=config, **keys))
    with stacks(tmp_path / "state") as cloud:
        ours = comparing.answers(cloud.plain_client)
    found = comparing.differences(theirs, ours)
    verdicts = [row[3] for row in DECIDED]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in VERDICTS)
    print(f"JUDGED ministack: {len(comparing.REQUESTS)} requests, {len(found)} differences; right: {counts}")
    assert [row[:3] for row in DECIDED] == found


def test_each_decision_has_its_source_and_few_are_against_the_local_cloud():
    assert all(row[3] in VERDICTS and row[4] for row in DECIDED)
    assert sum(row[3] == "ministack" for row in DECIDED) <= MOST_KNOWN_FAULTS
