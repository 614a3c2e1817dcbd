"""phalanx.yaml has one schema: the fields of ClusterSpec. Check, JSON Schema, `init` and the reference page follow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_codes import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from phalanx import cli
from phalanx.errors import SpecError
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec import KEYS, Key
from phalanx.spec.spec_init import init_text
from phalanx.spec.spec_key import REFUSED
from phalanx.spec.spec_load import load
from phalanx.spec.spec_rules import one_of
from phalanx.spec.spec_schema import json_schema

ROOT = Path(__file__).parents[2]
SCHEMA = Draft202012Validator(json_schema())
FILES = sorted((ROOT / "examples").rglob("phalanx.yaml")) + sorted((ROOT / "benchmarks").rglob("phalanx.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("README.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S))
]


class Yaml12(yaml.SafeLoader):
    """As editors read it: in YAML 1.2 only true and false are truth values."""


Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def complaints(text: str) -> list[str]:
    return [error.message for error in SCHEMA.iter_errors(yaml.load(text, Yaml12))]


def test_the_command_prints_a_schema_of_the_draft_it_names(capsys):
    assert cli.execute(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json_schema()
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"].endswith("/draft/2020-12/schema")


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_every_key_has_its_meaning_an_example_and_what_holds_without_it(key):
    entry = json_schema()["properties"][key.name]
    assert entry["description"].startswith(key.help)
    assert key.help.endswith(".")
    assert key.rule.allowed
    assert SCHEMA.is_valid({"name": "demo", "nodes": 4, key.name: key.example})
    assert entry.get("default") == key.written_default


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_init_writes_is_valid_and_so_are_its_comments(cloud, tmp_path):
    text = init_text("demo", cloud).replace("ssh_from:   ", "ssh_from: anywhere")
    assert complaints(text) == []
    everything = re.sub(r"^# (?=[a-z_]+:|  )", "", text, flags=re.M)
    (tmp_path / "phalanx.yaml").write_text(everything)
    assert load(tmp_path / "phalanx.yaml").capacity == KEYS["capacity"].example
    assert complaints(everything) == []


@pytest.mark.parametrize("text", BLOCKS)
def test_every_block_in_the_docs_is_valid(text, tmp_path):
    """A block of some keys is part of a file."""
    goes_with = {"emr": "cloud: local-emr", "lustre": "storage: lustre"}
    given = ("name: demo", "nodes: 4", *filter(None, [goes_with.get(text.partition(":")[0])]))
    whole = "".join(f"{line}\n" for line in given if line[:5] not in text) + text
    (tmp_path / "phalanx.yaml").write_text(whole)
    load(tmp_path / "phalanx.yaml")
    assert complaints(whole) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_file_of_the_examples_is_valid(path):
    load(path)
    assert complaints(path.read_text()) == []


def test_on_aws_the_schema_wants_ssh_from_too():
    assert complaints("name: demo\nnodes: 2\ncloud: aws\n") == ["'ssh_from' is a required property"]


@pytest.mark.parametrize("cloud", ["emr", "local-emr"])
def test_with_emr_the_schema_wants_its_keys_too(cloud):
    assert complaints(f"name: demo\nnodes: 2\ncloud: {cloud}\nssh_from: anywhere\n") == ["'emr' is a required property"]


def test_the_schema_knows_what_is_missing_and_what_is_no_key():
    assert sorted(complaints("nodse: 2\n")) == [
        "'name' is a required property",
        "'nodes' is a required property",
        "Additional properties are not allowed ('nodse' was unexpected)",
    ]


WRONG = {
    "name": st.from_regex(r"\A[0-9_.-][a-z0-9-]{0,9}\Z"),
    "cloud": st.from_regex(r"\A[a-z]{1,8}\Z").filter(lambda word: word not in CLOUDS),
    "region": st.from_regex(r"\A[a-z]{2}-[a-z]{3,4}-[0-9]{2}\Z"),
    "nodes": st.integers(max_value=0) | st.integers(min_value=1001),
    "min": st.integers(max_value=0) | st.integers(min_value=1001),
    "type": st.from_regex(r"\A[a-z0-9]{1,9}\Z"),
    "image": st.from_regex(r"\Aami-[0-9a-f]{1,7}\Z"),
    "shared": st.from_regex(r"\A([a-z]{1,5}|/(usr|etc|nix|mnt/yarn|opt/phalanx)(/[a-z]{1,4})?|/efs/\.\.?/b)\Z"),
    "slots": st.integers(max_value=0) | st.integers(min_value=1025),
    "ssh_from": st.from_regex(r"\A[a-z:]{1,9}\Z").filter(lambda word: word not in ("auto", "anywhere")),
    "key_pair": st.from_regex(r"\A [a-z]{0,5}\Z"),
    "node_timeout": st.from_regex(r"\A([0-9]{1,4}|[0-9]{1,3} ?(min|sec|w))\Z"),
    "file_system": st.from_regex(r"\Afs-[g-z]{8}\Z"),
    "keep": st.from_regex(r"\A[a-z]{4,6}\Z"),
    "disk": st.dictionaries(st.sampled_from(["size_gib", "iops", "throughput_mib_s"]), st.just(0), min_size=1)
    | st.just({"speed": 1}),
    "head": st.just({"type": "large"}) | st.just({"trains": "no"}),
    "capacity": st.from_regex(r"\A(cr-[g-z]{8}|[a-c]{1,9})\Z"),
    "placement": st.from_regex(r"\A[*!]{1,9}\Z"),
    "efa": st.from_regex(r"\A[a-z]{4,6}\Z"),
    "policies": st.lists(st.from_regex(r"\Aarn:aws:iam::[b-z]{1,3}:policy/x\Z"), min_size=1),
    "data": st.dictionaries(st.just("a"), st.from_regex(r"\A(s3:/|http://)[a-z]{3,5}\Z"), min_size=1),
    "bucket": st.from_regex(r"\A([A-Z]{1,9}|s3://[a-z]{3,9}/|[a-z]{1,2}|[a-z]{3}\.\.[a-z])\Z"),
    "permissions_boundary": st.from_regex(r"\A[a-zA-Z]{1,9}\Z"),
    "tags": st.dictionaries(
        st.sampled_from(["Name", "aws:x", "AWS:x", "phalanx:cluster", "a*b"]), st.just("x"), min_size=1
    ),
}
OF_ANOTHER_KIND = {
    "string": [4, 1.5, True, ["a"], {"a": "b"}],
    "integer": ["many", "4", 1.5, True, [4]],
    "array": ["a", 4, True, {"a": "b"}, [4], [["a"]], []],
    "text or list": [4, 1.5, True, {"a": "b"}, [4], [["a"]], []],
    "object": ["a", 4, True, ["a"], {}, {"a": 4}, {"a": {"b": "c"}}],
}


def is_valid(tmp_path_factory, document: dict[str, Any]) -> bool:
    """JSON is YAML."""
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    # A file that is cut and written again waits for the disk.
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(document))
    try:
        load(path)
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("name", WRONG)
def test_a_random_wrong_value_is_refused_by_both(name, tmp_path_factory):
    @settings(max_examples=10, deadline=None, database=None)
    @given(WRONG[name])
    def check(value):
        document = {"name": "demo", "nodes": 4, name: value}
        assert not SCHEMA.is_valid(document)
        assert not is_valid(tmp_path_factory, document)

    check()


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_a_value_of_another_kind_is_refused_by_both(key, tmp_path_factory):
    for value in OF_ANOTHER_KIND[json_schema()["properties"][key.name].get("type", "text or list")]:
        document = {"name": "demo", "nodes": 4, key.name: value}
        assert not SCHEMA.is_valid(document), value
        assert not is_valid(tmp_path_factory, document), value


@settings(max_examples=150, deadline=None, database=None)
@given(name=st.sampled_from([*KEYS]), value=st.text("aA1/-._: ~", max_size=12) | st.integers(-1, 1100))
def test_the_schema_refuses_nothing_that_is_accepted(tmp_path_factory, name, value):
    document = {"name": "demo", "nodes": 1000, name: value}
    if is_valid(tmp_path_factory, document):
        assert list(SCHEMA.iter_errors(document)) == []


def test_a_new_key_is_one_line(monkeypatch, tmp_path):
    """All that knows of keys learns of it from the one definition."""
    rule = one_of(lambda: ("on-demand", "spot"), "'{}' is no way to buy")
    key = Key("market", "market", "on-demand", "How machines are bought.", rule, "spot", REFUSED, "", None, None)
    monkeypatch.setitem(KEYS, "market", key)
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\nmarket: spto\n")
    with raises_code("unknown-choice", ":3: ", "market: ", "'spto'", "spot"):
        load(tmp_path / "phalanx.yaml")
    assert json_schema()["properties"]["market"]["enum"] == ["on-demand", "spot"]
