"""What a valid phalanx.yaml can ask for beyond CloudFormation's and IAM's limits: refused before anything is made."""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, aws_spec, plan, spec
from error_codes import raises_code
from plans import WORST

from phalanx.errors import SpecError
from phalanx.plan.plan import Plan, make_plan
from phalanx.template import LIMIT_BYTES, request, synthesize

LONG = "/".join(["p" * 120] * 4)
LARGE: dict[str, dict[str, Any]] = {
    "tags": {"tags": {f"{n:02}{'k' * 126}": "v" * 256 for n in range(40)}},
    "policies": {"policies": [f"arn:aws:iam::123456789012:policy/{n}{'p' * 511}" for n in range(10)]},
    "ssh_from": {"ssh_from": [f"203.0.{n}.0/24" for n in range(50)]},
}
DATA = {f"d{n}": f"s3://bucket-{n}/{LONG} rw" for n in range(10)}


def largest(**fields: Any) -> Plan:
    """Return a plan with everything that makes a document large, and with these fields."""
    made = {
        one: getattr(WORST.spec, one) for one in ("boot", "disk", "efa", "head", "placement", "permissions_boundary")
    }
    own = {"nodes": 1000, "type": WORST.spec.type, "down_after_s": 7 * 86400, "region": WORST.spec.region, **made}
    return make_plan(aws_spec(**{**own, **fields}), WORST.facts)


def test_a_document_that_no_request_takes_is_refused_with_the_key_that_makes_it_largest():
    together = {name: value for fields in LARGE.values() for name, value in fields.items()}
    with raises_code("document-too-large", "tags: ", "51,200"):
        request(largest(**together))
    del together["tags"]
    request(largest(**together))


def test_the_refusal_says_how_large_it_is_and_how_much_of_that_the_key_is():
    with pytest.raises(SpecError) as refused:
        request(plan(**LARGE["tags"]))
    without, _ = request(plan())
    sizes = [int(size.replace(",", "")) for size in re.findall(r"[0-9,]+[0-9]", refused.value.message)]
    assert sizes[:2] == [len(without.encode()) + sizes[2], LIMIT_BYTES]
    assert refused.value.code == "document-too-large"


def test_a_plan_refuses_it_with_its_line(phalanx, tmp_path):
    tags = "\n".join(f"  t{n}{'k' * 100}: {'v' * 200}" for n in range(40))
    (tmp_path / "phalanx.yaml").write_text(
        f"name: demo\nnodes: 2\ncloud: aws\nssh_from: 203.0.113.7/32\ntags:\n{tags}\n"
    )
    assert phalanx("plan", "--offline") == 2
    phalanx.refused("document-too-large", "phalanx.yaml:5: tags: ")
    assert not phalanx.out
    assert phalanx("template", "--offline") == 0  # the console takes it


@pytest.mark.parametrize("make", [request, synthesize])
def test_data_whose_policy_iam_would_refuse_is_refused(make):
    with raises_code("document-too-large", "data: ", "10,240"):
        make(plan(data=DATA))
    make(plan(data=dict(list(DATA.items())[:5])))


def test_the_largest_policy_of_data_that_is_accepted_is_one_that_iam_takes():
    """Its size is what IAM counts: characters other than white space, with the partition filled in."""

    def document(length: int) -> str:
        data = {f"d{n}": f"s3://bucket-{n}/{'/'.join([LONG[:359], 'q' * length])} rw" for n in range(8)}
        try:
            return synthesize(plan(data=data))
        except SpecError:
            return ""

    lengths = range(1, 128)
    refused = bisect.bisect_left(lengths, True, key=lambda length: not document(length))
    assert 0 < refused < len(lengths)
    (policy,) = json.loads(document(lengths[refused - 1]))["Resources"]["JobRole"]["Properties"]["Policies"]
    counted = json.dumps(policy["PolicyDocument"], separators=(",", ":")).replace("${AWS::Partition}", "aws")
    size = len(counted) - counted.count('{"Fn::Sub":') * len('{"Fn::Sub":}')
    assert 10_000 < size <= 10_240


def test_every_plan_that_is_made_has_parameters_that_cloudformation_takes():
    _, sent = request(largest(ssh_from="203.0.113.7/32", image=f"/{'i' * 1010}", key_pair="k" * 255))
    assert max(len(value.encode()) for value in sent.values()) <= 4096


def test_the_description_of_an_emr_document_is_one_that_cloudformation_takes():
    wanted = {"cloud": "emr", "type": "m5.xlarge", "ssh_from": "203.0.113.0/24"}
    longest = "s3://" + "b" * 63 + "/" + "p" * 443
    made = make_plan(spec(**wanted, emr={"logs": longest}), replace(FACTS, cloud="emr"))
    assert len(json.loads(synthesize(made))["Description"].encode()) <= 1024
    with pytest.raises(SpecError, match="is not a place in S3"):
        spec(**wanted, emr={"logs": longest + "p"})
