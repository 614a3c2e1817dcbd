"""The order in which CloudFormation creates and deletes the document's resources."""

import graphlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from plans import default_document

# What is made once there are nodes to limit, and what notifies a person of it.
LIMITS = ("HeadLease", "WorkersLease", "MailSubscription")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return default_document()


def test_references_have_no_cycle_and_no_loose_end(document):
    names = document["Resources"]
    graph = {name: set(references(resource)) for name, resource in names.items()}
    known = {*names, *document["Parameters"], *document["Conditions"]}
    assert {name for found in graph.values() for name in found} <= known
    graphlib.TopologicalSorter(graph).prepare()


def references(part: Any) -> Iterator[str]:
    """Yield the logical ids to which a part of the document refers."""
    if isinstance(part, list):
        for item in part:
            yield from references(item)
    elif isinstance(part, dict):
        yield from _named_by(part)
        for key, value in part.items():
            if key != "Fn::FindInMap":
                yield from references(value)


def _named_by(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("Ref"), str) and not part["Ref"].startswith("AWS::"):
        yield part["Ref"]
    if "Fn::GetAtt" in part:
        yield part["Fn::GetAtt"][0]
    if "DependsOn" in part:
        yield from [part["DependsOn"]] if isinstance(part["DependsOn"], str) else part["DependsOn"]
    if "Fn::Sub" in part:
        text, own = part["Fn::Sub"] if isinstance(part["Fn::Sub"], list) else (part["Fn::Sub"], {})
        found = (name.split(".")[0] for name in re.findall(r"\$\{([^!:}]+)\}", text))
        yield from (name for name in found if name not in own)


def closure(document: dict[str, Any], start: str) -> set[str]:
    """Return everything that must exist before `start` is created."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(references(document["Resources"][waiting.pop()])) & set(document["Resources"]) - found
        found |= new
        waiting += new
    return found


def test_the_heads_group_comes_last(document):
    missing = set(document["Resources"]) - closure(document, "HeadGroup") - {"HeadGroup", "Ready1", *LIMITS}
    assert missing == set()


def test_ready_is_beside_the_heads_group(document):
    """So a head that can't be launched fails the stack at once; and its clock starts when the head can boot."""
    before = closure(document, "Ready1")
    assert "HeadGroup" not in before
    assert {"WorkersGroup", "Function", "FunctionPermission", "MountTarget", "PublicRoute", "HeadQueuePolicy"} <= before
    assert document["Resources"]["Ready1"]["Properties"] | {"Handle": None} == {
        "Handle": None,
        "Timeout": "3300",
        "Count": 1,
    }


def test_workers_go_before_what_their_shutdown_needs(document):
    """A deletion runs in reverse order: an NFS mount that does not answer would delay every worker."""
    needed = {"MountTarget", "StorageSecurityGroup", "PrivateRoute", "PrivateSubnetRoutes", "NodesFromNodes"}
    assert needed <= closure(document, "WorkersGroup")


def test_public_addresses_go_before_their_gateway(document):
    assert "GatewayAttachment" in closure(document, "HeadAddress")
    assert "GatewayAttachment" in closure(document, "NatGateway")
