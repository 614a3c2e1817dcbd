"""How a template is sent: in the request, through a bucket, or not at all."""

from __future__ import annotations

import json
import random

import pytest
from clusters import plan
from fake_cloud import FakeCloud, write_key
from prompts import Prompt

from phalanx import clouds
from phalanx.cluster import bring_up
from phalanx.cluster import cluster_record as store
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.cluster.delivery import bucket_for
from phalanx.cluster.take_down import TakeDown
from phalanx.errors import SpecError
from phalanx.spec.spec import ClusterSpec
from phalanx.ssh.remote import Remote
from phalanx.template import LIMIT_BYTES, synthesize

NOISE = "echo " + random.Random(1).randbytes(30_000).hex()


@pytest.fixture(autouse=True)
def cloud(tmp_path, monkeypatch):
    fake = FakeCloud()
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(clouds, "get", lambda name, region: fake)
    monkeypatch.setattr(Remote, "connect", lambda remote: None)
    monkeypatch.setattr(store, "_generate", write_key)
    return fake


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    return Prompt(tmp_path, monkeypatch, capsys)


def spec(**values):
    return ClusterSpec(**{"name": "demo", "nodes": 2, **values})


def written(tmp_path, **values):
    (tmp_path / "phalanx.yaml").write_text(json.dumps({"name": "demo", "nodes": 2, **values}))


def test_what_fits_goes_inside_the_request_even_where_there_is_a_bucket():
    made = plan(boot="echo hello", bucket="my-bucket")
    assert bucket_for(made, synthesize(made)) is None


def test_what_does_not_fit_goes_through_the_bucket():
    made = plan(boot=NOISE, bucket="my-bucket")
    template = synthesize(made)
    assert LIMIT_BYTES < len(template.encode()) < 1_000_000
    assert bucket_for(made, template) == "my-bucket"


def test_without_a_bucket_it_is_refused_with_its_size_what_makes_it_and_the_ways_out():
    made = plan(boot=NOISE)
    template = synthesize(made)
    size = len(template.encode())
    script = size - len(synthesize(plan()).encode())
    with pytest.raises(SpecError) as caught:
        bucket_for(made, template)
    assert f"boot: the template is {size:,} bytes, {script:,} of them the packed boot script" in str(caught.value)
    assert "51,200" in str(caught.value) and "`bucket:`" in caught.value.hint and "console" in caught.value.hint


def test_plan_refuses_it_with_the_line_of_the_file_and_template_prints_it(phalanx, tmp_path):
    written(tmp_path, boot=NOISE)
    assert phalanx("plan") == 2
    assert "phalanx.yaml:1: boot: the template is" in phalanx.err
    assert phalanx("template") == 0
    assert len(phalanx.out.encode()) > LIMIT_BYTES and json.loads(phalanx.out)["Resources"]


def test_plan_says_that_it_goes_through_the_bucket(phalanx, tmp_path):
    written(tmp_path, boot=NOISE, bucket="my-bucket")
    assert phalanx("plan") == 0
    assert "bytes, sent through your bucket my-bucket and deleted from it afterwards" in phalanx.out
    assert phalanx("plan", "--json") == 0
    assert "my-bucket" in json.loads(phalanx.out)["large_template"]


def test_plan_looks_at_the_bucket_unless_it_is_to_ask_nobody(phalanx, tmp_path, cloud):
    written(tmp_path, boot=NOISE, bucket="their-bucket")
    cloud.unusable_buckets["their-bucket"] = SpecError("bucket: their-bucket belongs to another account")
    assert phalanx("plan") == 2
    assert "phalanx.yaml:1: bucket: their-bucket belongs to another account" in phalanx.err
    assert phalanx("plan", "--offline") == 0


def test_up_says_it_and_sends_it_through_the_bucket(cloud):
    notes = [s.text for s in BringUp(cloud, spec(boot=NOISE, bucket="my-bucket")).steps() if isinstance(s, Note)]
    assert any("through your bucket my-bucket" in text for text in notes)
    assert cloud.sent_through == ["my-bucket"]


def test_up_makes_nothing_where_the_bucket_is_no_good(cloud):
    cloud.unusable_buckets["their-bucket"] = SpecError("bucket: their-bucket belongs to another account")
    with pytest.raises(SpecError, match="another account"):
        list(BringUp(cloud, spec(boot=NOISE, bucket="their-bucket")).steps())
    assert cloud.made == 0


def test_up_and_down_clear_what_a_killed_up_left(cloud, monkeypatch):
    monkeypatch.setattr(bring_up, "synthesize", lambda plan: "{}")
    for _ in range(2):
        list(BringUp(cloud, spec(bucket="my-bucket")).steps())
    assert cloud.cleared == [("my-bucket", "demo")]
    list(TakeDown(cloud, "demo").steps())
    assert cloud.cleared == [("my-bucket", "demo")] * 2


@pytest.mark.parametrize("name", ["a", "Bucket", "my.bucket", "-bucket", "b" * 64, "s3://bucket"])
def test_what_no_bucket_is_called(phalanx, tmp_path, name):
    written(tmp_path, bucket=name)
    assert phalanx("plan", "--offline") == 2
    assert "can't be the name of an S3 bucket" in phalanx.err
