"""This machine's address: the one that AWS reports, for `ssh_from: auto`, and whether the head's rules contain it."""

from __future__ import annotations

import io
import urllib.request
from dataclasses import replace

import pytest
from error_codes import raises_code

from localcloud.nodes.machine import USER_ADDRESS
from phalanx.aws import own_address
from phalanx.cluster import ssh_access


def answering(monkeypatch, answer: bytes | OSError) -> list[object]:
    """Let every request be answered so; return the handlers of the openers that were made."""
    handlers: list[object] = []

    class Opener:
        def open(self, url, timeout):
            assert url == own_address.URL
            if isinstance(answer, OSError):
                raise answer
            return io.BytesIO(answer)

    def build(*given):
        handlers.extend(given)
        return Opener()

    monkeypatch.setattr(urllib.request, "build_opener", build)
    return handlers


def test_the_address_is_asked_for_without_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    handlers = answering(monkeypatch, b"203.0.113.7\n")
    assert own_address.find() == "203.0.113.7"
    assert [getattr(handler, "proxies", None) for handler in handlers] == [{}]


@pytest.mark.parametrize("answer", [b"<html>log in to the hotel", b"2001:db8::7", b"", OSError("no route to host")])
def test_anything_else_is_no_address(monkeypatch, answer):
    answering(monkeypatch, answer)
    with raises_code("address-unknown", "https://checkip.amazonaws.com/"):
        own_address.find()


RULES = [
    {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "203.0.113.0/24"}]},
    {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
]


def test_an_address_that_no_rule_contains_is_refused_with_those_that_may():
    refused = ssh_access.refusal("demo", ("198.51.100.7",), RULES)
    assert refused is not None
    assert refused.code == "address-not-allowed"
    assert "198.51.100.7" in refused.message and "only 203.0.113.0/24" in refused.message
    assert "`phalanx allow` adds it" in refused.hint
    nobody = ssh_access.refusal("demo", ("198.51.100.7",), [])
    assert nobody is not None and "no address may" in nobody.message


@pytest.mark.parametrize(
    "rules",
    [
        [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "198.51.100.0/24"}]}],
        [{"IpProtocol": "tcp", "FromPort": 0, "ToPort": 1024, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
        [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "PrefixListIds": [{"PrefixListId": "pl-1"}]}],
    ],
)
def test_an_address_that_a_rule_may_contain_is_not_refused(rules):
    assert ssh_access.refusal("demo", ("198.51.100.7",), rules) is None


def test_the_local_cloud_sees_this_machine_at_two_addresses():
    assert own_address.seen("local") == ("127.0.0.1", USER_ADDRESS)
    assert ssh_access.refusal("demo", own_address.seen("local"), RULES) is None


class Group:
    """A cloud with the head's security group, whose rules for ssh are recorded."""

    def __init__(self, *networks: str) -> None:
        self.networks = list(networks)

    def describe_security_groups(self, **_):
        ranges = [{"CidrIp": network} for network in self.networks]
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": ranges}
        return {"SecurityGroups": [{"IpPermissions": [rule]}]}

    def authorize_security_group_ingress(self, IpPermissions, **_):
        self.networks += [block["CidrIp"] for rule in IpPermissions for block in rule["IpRanges"]]


@pytest.fixture
def group(phalanx, cloud, monkeypatch) -> Group:
    phalanx("up")
    stack = next(iter(cloud.stacks.values()))
    stack.state = replace(stack.state, outputs={**stack.state.outputs, "HeadSecurityGroup": "sg-1"})
    made = Group("0.0.0.0/1")
    for name in ("describe_security_groups", "authorize_security_group_ingress"):
        monkeypatch.setattr(cloud, name, getattr(made, name), raising=False)
    return made


def test_allow_refuses_the_network_that_would_make_the_rules_the_whole_internet(phalanx, group):
    assert phalanx("allow", "128.0.0.0/1") == 2
    phalanx.refused("open-to-all", "128.0.0.0/1", "0.0.0.0/1", "`phalanx allow anywhere`")
    assert phalanx("allow", "203.0.113.0/24") == 0
    assert phalanx("allow", "anywhere") == 0
    assert group.networks == ["0.0.0.0/1", "203.0.113.0/24", "0.0.0.0/0"]
    assert phalanx("allow", "128.0.0.0/1") == 0, "the world may already"
