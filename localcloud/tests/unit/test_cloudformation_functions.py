"""Intrinsic functions: values, references, and refusals with CloudFormation's messages."""

from __future__ import annotations

import base64
import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.functions import NO_VALUE, Reference, Scope, chosen, references, resolve

SCOPE = Scope(
    pseudo={
        "AWS::Region": "us-east-1",
        "AWS::StackName": "demo",
        "AWS::NoValue": NO_VALUE,
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::Partition": "aws",
    },
    parameters={"Word": "hi", "Words": ["a", "b"], "Empty": "", "Env": "prod"},
    mappings={
        "Agent": {"payload": {"text": "${not a place} {{resolve:no}}", "list": ["x", "y"]}, "us-east-1": {"k": "v"}}
    },
    conditions={
        "Yes": {"Fn::Equals": [{"Ref": "Env"}, "prod"]},
        "No": {"Fn::Not": [{"Condition": "Yes"}]},
    },
    references={"Topic": "arn:topic"},
    attributes={"Topic": {"TopicName": "t", "A.B": "nested"}},
    zones=lambda region: [f"{region}a", f"{region}b"],
    parameter=lambda name: f"value of {name}",
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"Ref": "Word"}, "hi"),
        ({"Ref": "Topic"}, "arn:topic"),
        ({"Ref": "AWS::Region"}, "us-east-1"),
        ({"Fn::GetAtt": ["Topic", "TopicName"]}, "t"),
        ({"Fn::GetAtt": "Topic.TopicName"}, "t"),
        ({"Fn::GetAtt": "Topic.A.B"}, "nested"),
        ({"Fn::Sub": "${Word}-${AWS::Region}-${Topic.TopicName}-${!Literal}-$HOME"}, "hi-us-east-1-t-${Literal}-$HOME"),
        ({"Fn::Sub": ["${Own}/${Word}", {"Own": {"Ref": "Topic"}}]}, "arn:topic/hi"),
        ({"Fn::Sub": ["${Word}", {"Word": "own wins"}]}, "own wins"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Word"}, 3, True]]}, "a-hi-3-true"),
        ({"Fn::Join": [",", {"Ref": "Words"}]}, "a,b"),
        ({"Fn::Select": [1, {"Fn::Split": ["|", "a|b|c"]}]}, "b"),
        ({"Fn::Select": ["0", {"Fn::GetAZs": ""}]}, "us-east-1a"),
        ({"Fn::GetAZs": {"Ref": "AWS::Region"}}, ["us-east-1a", "us-east-1b"]),
        ({"Fn::If": ["Yes", 1, 2]}, 1),
        ({"Fn::If": ["No", 1, {"Ref": "Word"}]}, "hi"),
        ({"Fn::And": [{"Condition": "Yes"}, {"Condition": "Yes"}]}, True),
        ({"Fn::Or": [{"Condition": "No"}, {"Fn::Equals": ["1", 1]}]}, True),
        ({"Fn::Equals": ["true", True]}, True),
        ({"Fn::FindInMap": ["Agent", "payload", "list"]}, ["x", "y"]),
        ({"Fn::FindInMap": ["Agent", {"Ref": "AWS::Region"}, "k"]}, "v"),
        ({"Fn::FindInMap": ["Agent", "payload", "text"]}, "${not a place} {{resolve:no}}"),
        ({"Fn::Base64": {"Fn::Sub": "${Word}\n"}}, base64.b64encode(b"hi\n").decode()),
        ({"Fn::Cidr": ["10.0.0.0/16", 3, 8]}, ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]),
        ("{{resolve:ssm:/a/b:3}}!", "value of /a/b!"),
        ({"keep": {"Ref": "Word"}, "drop": {"Ref": "AWS::NoValue"}}, {"keep": "hi"}),
        ([1, {"Fn::If": ["No", 2, {"Ref": "AWS::NoValue"}]}, 3], [1, 3]),
        ({"Fn::Equals": [{"Ref": "AWS::NoValue"}, ""]}, False),
        ({"Fn::Equals": [{"Ref": "AWS::NoValue"}, {"Ref": "AWS::NoValue"}]}, True),
        ({"StringEquals": {"a": "b"}}, {"StringEquals": {"a": "b"}}),
    ],
)
def test_values(expression, expected):
    assert resolve(expression, SCOPE) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"Ref": "Nobody"}, r"Unresolved resource dependencies \[Nobody\]"),
        ({"Ref": ["Word"]}, "must be of type string"),
        ({"Fn::GetAtt": ["Topic", "Colour"]}, "resource Topic does not support attribute type Colour in Fn::GetAtt"),
        ({"Fn::GetAtt": "Topic"}, "two non-empty parameters"),
        ({"Fn::Sub": {"a": 1}}, "don't specify expected arguments"),
        ({"Fn::Sub": "${Words}"}, "values that are strings"),
        ({"Fn::Join": ["-"]}, "list argument with 2 elements"),
        ({"Fn::Select": [5, ["a"]]}, "nonexistent value at index 5"),
        ({"Fn::If": ["Maybe", 1, 2]}, "Unresolved condition dependency Maybe"),
        ({"Fn::And": [True]}, "at least 2 and at most 10"),
        ({"Fn::FindInMap": ["Agent", "nowhere", "k"]}, "Unable to get mapping for Agent::nowhere::k"),
        ({"Fn::Cidr": ["10.0.0.0/24", 300, 8]}, "can't make 300 blocks"),
        ({"Fn::ImportValue": "shared-vpc"}, "No export named shared-vpc found."),
        ({"Fn::Transform": {"Name": "x"}}, "does not support the function"),
        ("{{resolve:secretsmanager:x}}", "does not support dynamic references to secretsmanager"),
    ],
)
def test_refusals(expression, message):
    with pytest.raises(Refused, match=message):
        resolve(expression, SCOPE)


def test_references_are_found_wherever_they_hide():
    expression = {
        "a": {"Fn::Sub": ["${Own} ${Plain} ${Res.Att} ${!No} ${AWS::Region}", {"Own": {"Ref": "InMap"}}]},
        "b": [{"Fn::If": ["Cond", {"Ref": "Then"}, {"Fn::GetAtt": ["Else", "X"]}]}],
        "c": {"Fn::GetAtt": ["Outer", {"Ref": "Name"}]},
        "d": {"Fn::FindInMap": ["Map", {"Ref": "Key"}, "k"]},
    }
    assert set(references(expression)) == {
        Reference("Ref", "InMap"),
        Reference("Ref", "Plain"),
        Reference("GetAtt", "Res", "Att"),
        Reference("Ref", "AWS::Region"),
        Reference("Condition", "Cond"),
        Reference("Ref", "Then"),
        Reference("GetAtt", "Else", "X"),
        Reference("GetAtt", "Outer"),
        Reference("Ref", "Name"),
        Reference("Ref", "Key"),
    }


def test_only_the_branch_that_holds_is_kept():
    expression = {"p": {"Fn::If": ["Yes", {"Ref": "A"}, {"Fn::If": ["No", {"Ref": "B"}, {"Ref": "C"}]}]}}
    assert chosen(expression, SCOPE) == {"p": {"Ref": "A"}}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="abc $}#é", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "Key"]), inner, max_size=3),
    max_leaves=12,
)
WORDS = st.lists(st.text(alphabet="abcé$!{} ", max_size=6), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(PLAIN)
def test_what_has_no_function_stays_as_it_is(value):
    assert resolve(value, SCOPE) == value
    assert list(references(value)) == []


@settings(max_examples=30, deadline=None)
@given(WORDS)
def test_split_undoes_join(parts):
    assert resolve({"Fn::Split": ["|", {"Fn::Join": ["|", parts]}]}, SCOPE) == parts


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40))
def test_base64_holds_any_text(text):
    assert base64.b64decode(resolve({"Fn::Base64": {"Fn::Join": ["", [text]]}}, SCOPE)).decode() == text


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(["One", "Two", "Three"]), st.text(max_size=10), min_size=1))
def test_sub_puts_in_each_value_once_and_never_looks_into_it(values):
    text = "<" + "><".join(f"${{{name}}}" for name in values) + ">"
    assert resolve({"Fn::Sub": [text, values]}, SCOPE) == "<" + "><".join(values.values()) + ">"


@settings(max_examples=30, deadline=None)
@given(st.integers(16, 24), st.integers(1, 8), st.integers(4, 8))
def test_cidr_blocks_lie_inside_and_apart(prefix, count, bits):
    whole = ipaddress.ip_network(f"10.0.0.0/{prefix}")
    if count > 2 ** (32 - bits - prefix):
        return
    blocks = [ipaddress.ip_network(block) for block in resolve({"Fn::Cidr": [str(whole), count, bits]}, SCOPE)]
    assert len(set(blocks)) == count
    assert all(block.subnet_of(whole) and block.prefixlen == 32 - bits for block in blocks)  # type: ignore[arg-type]
