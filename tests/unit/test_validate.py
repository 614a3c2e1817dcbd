"""Input from outside is checked before it is used."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest
from rosters import ROSTER, a_node

from phalanx.node import validate
from phalanx.node.roster import Node, Roster
from phalanx.node.validate import Invalid
from phalanx.runner.files.job_status import JobStatus
from phalanx.ssh import head_answers

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG"
CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAx"
GOOD = {
    validate.instance_id: ["i-2", "i-0123456789abcdef0"],
    validate.address: ["10.0.1.12", "0.0.0.0", "255.255.255.255"],
    validate.hostname: ["ip-10-0-1-12", "ip-10-0-1-12.ec2.internal", "i-0123456789abcdef0.us-west-2.compute.internal"],
    validate.node_name: ["deeplearning-worker1", "deeplearning-worker1000"],
    validate.key_line: [KEY, "ecdsa-sha2-nistp256 AAAAE2VjZHNh==", "ssh-rsa AAAAB3Nza+/"],
    validate.certificate_line: [CERTIFICATE],
    validate.instance_type: ["c5.large", "p4d.24xlarge", "u-6tb1.metal", "p5e-gpu.48xlarge"],
}
# The first six were attacks on a head without these checks.
BAD = [
    "../../../../etc/cron.d/x",
    "x,deeplearning-master",
    "ip-10-0-1-12\n@cert-authority * ssh-ed25519 AAAA",
    "not-an-address",
    "-oProxyCommand=id",
    "0\nPermitRootLogin yes",
    *(
        "",
        " ",
        "\n",
        "i-",
        "i-1 ",
        "i-1\n",
        "i-XYZ",
        "i-" + "0" * 18,
        "10.0.1",
        "10.0.1.256",
        "010.0.0.1",
        "10.0.0.1.2",
    ),
    *("١٠.0.0.1", "deeplearning-master", "deeplearning-worker0", "deeplearning-worker01", "deeplearning-worker10000"),
    *(
        "ip-10-0-1-256",
        "ip-10-0-1-12,deeplearning-master",
        "ip-10-0-1-12.",
        "ip-10-0-1-12.-x",
        "localhost",
        "c5",
        "c5.",
    ),
    *(KEY + "\n", KEY + "\n" + KEY, KEY + " a\tb", "ssh-ed25519", "command=x " + KEY, "ssh-ed25519 AAAA$(id)", "AAAA"),
    *(CERTIFICATE + "\n", "ssh-ed25519-cert-v01@example.org AAAAIHNz"),
    *(None, True, 1, 1.0, b"i-1", [], {}, ["i-1"]),
]
NAMES = {check: name for name, check in vars(validate).items() if callable(check) and not isinstance(check, type)}
CHECKS = pytest.mark.parametrize("check", GOOD, ids=NAMES.get)


@CHECKS
def test_what_is_good_comes_back(check):
    assert [check(value) for value in GOOD[check]] == GOOD[check]


@CHECKS
def test_what_is_bad_is_refused(check):
    for value in BAD:
        with pytest.raises(Invalid):
            check(value)


def test_a_comment_of_a_key_is_dropped():
    assert validate.key_line(KEY + " me@here") == KEY
    assert validate.certificate_line(CERTIFICATE + " x") == CERTIFICATE


def test_an_address_lies_inside_its_network():
    for inside in ("10.0.0.0", "10.0.255.255", "10.2.1.7"):
        assert validate.address(inside, "10.0.0.0/16,10.2.1.0/24") == inside
    for outside in ("10.1.0.0", "10.2.2.0", "9.255.255.255", "127.0.0.1"):
        with pytest.raises(Invalid, match="not an address inside"):
            validate.address(outside, "10.0.0.0/16,10.2.1.0/24")
    assert validate.address("1.2.3.4", "1.2.3.4/32") == "1.2.3.4"


def test_counts_are_whole_and_bounded():
    assert [validate.count(0), validate.count(8, 8)] == [0, 8]
    for wrong in (-1, 9, True, 1.0, "1", None):
        with pytest.raises(Invalid):
            validate.count(wrong, 8)


NO_JSON = ["", "{", "{} {}", "[" * 100_000, "9" * 100_000, f'{{"port": {10**20}}}', '{"port": NaN}', "[-Infinity]"]


@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
def test_what_no_cluster_writes_is_refused_wherever_it_is_read(text):
    for read in (validate.parse, validate.roster):
        with pytest.raises(Invalid, match="is not valid JSON"):
            read(text)
    with pytest.raises(head_answers.InvalidAnswerError):
        head_answers.parsed(text)


def test_a_field_that_is_missing_is_named():
    checks = {"port": head_answers.port, "path": head_answers.text}
    assert head_answers.fields({"port": 80, "other": 1}, checks) == {"port": 80}
    with pytest.raises(head_answers.InvalidAnswerError, match="path is missing"):
        head_answers.required({"port": 80}, checks)
    with pytest.raises(Invalid, match="path is missing"):
        validate.fields(checks, {"port": 80})


@pytest.mark.parametrize("check", [lambda value: validate.fields({"x": validate.truth}, value), JobStatus.from_record])
def test_a_value_that_is_nested_too_deep_to_be_shown_is_refused(check):
    value: list = []
    for _ in range(100_000):
        value = [value]
    for item in (value, {"x": value}, dict.fromkeys(("id", "name", "tags"), value)):
        with pytest.raises(Invalid):
            check(item)


def test_reasons_control_no_terminal():
    assert validate.reason("no\x1b[2J capacity\r\nat all\u202e") == "no [2J capacity \nat all "


class TestNode:
    def test_there_and_back(self):
        assert validate.node(a_node(2)._asdict()) == a_node(2)
        own = a_node(2, hostname="i-2.ec2.internal")
        assert validate.node(own._asdict()) == own

    @pytest.mark.parametrize("hostname", ["ip-10-0-1-11", "i-1"])
    def test_a_neighbours_host_name_is_refused(self, hostname):
        with pytest.raises(Invalid, match="host name of"):
            validate.node(a_node(2, hostname=hostname)._asdict())

    @pytest.mark.parametrize("field", a_node(2)._asdict())
    def test_each_field_is_checked_and_named(self, field):
        for wrong in ("0\nPermitRootLogin yes", None, [], -1):
            with pytest.raises(Invalid, match=field):
                validate.node({**a_node(2)._asdict(), field: wrong})
        without = a_node(2)._asdict()
        del without[field]
        with pytest.raises(Invalid, match=field):
            validate.node(without)


def a_real_node(number: int) -> Node:
    """Make a node with keys and an instance id as they are: they hardly compress."""
    chance = random.Random(number)
    keys = [base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + chance.randbytes(32)).decode() for _ in range(2)]
    address = f"10.0.{number // 250}.{number % 250 + 4}"
    return a_node(
        number,
        instance_id=f"i-{chance.getrandbits(68):017x}",
        address=address,
        hostname="ip-" + address.replace(".", "-"),
        host_key=f"ssh-ed25519 {keys[0]}",
        user_key=f"ssh-ed25519 {keys[1]}",
    )


class TestRoster:
    def test_there_and_back(self):
        assert validate.roster(ROSTER.to_json(), "10.0.0.0/16") == ROSTER

    def test_there_and_back_compressed(self):
        assert validate.roster(ROSTER.packed(), "10.0.0.0/16") == ROSTER

    def test_1000_nodes_fit_into_an_item_and_take_few_read_units(self):
        nodes = tuple(a_real_node(number) for number in range(1, 1001))
        roster = Roster("demo", 1, 1000, 1, nodes)
        assert len(roster.packed()) < 24 * 4096
        assert validate.roster(roster.packed(), "10.0.0.0/16") == roster

    @pytest.mark.parametrize("data", [b"", b"{}", zlib.compress(b"\xff"), zlib.compress(b" " * 5_000_000)[:-4]])
    def test_what_is_no_packed_roster_is_refused(self, data):
        with pytest.raises(Invalid):
            validate.roster(data)

    def test_silent_nodes_are_nodes(self):
        silent = ROSTER._replace(silent=(a_node(3),))
        assert validate.roster(silent.to_json(), "10.0.0.0/16") == silent

    @pytest.mark.parametrize("name", Roster._fields)
    def test_a_roster_without_one_of_its_fields_is_refused(self, name):
        data = json.loads(ROSTER.to_json())
        del data[name]
        with pytest.raises(Invalid, match=f"{name} is missing"):
            validate.roster(json.dumps(data))

    def test_unknown_keys_are_passed_over(self):
        data = json.loads(ROSTER.to_json())
        data["nodes"][0]["colour"] = "blue"
        data["lease"] = 12
        assert validate.roster(json.dumps(data)) == ROSTER

    @pytest.mark.parametrize(
        "changes",
        [
            {"nodes": (a_node(1), a_node(1))},
            {"nodes": (a_node(1), a_node(2, address="10.0.1.11", hostname="ip-10-0-1-11"))},
            {"nodes": (a_node(2),)},
            {"nodes": ()},
            {"silent": (a_node(2),)},
            {"silent": (a_node(3, address="8.8.8.8", hostname="ip-8-8-8-8"),)},
            {"nodes": (a_node(1, address="8.8.8.8", hostname="ip-8-8-8-8"), a_node(2))},
            {"revoked": ("ssh-ed25519 AAAA\nmore",)},
            {"cluster": "demo\n"},
            {"generation": -1},
        ],
    )
    def test_what_no_head_writes_is_refused(self, changes):
        with pytest.raises(Invalid):
            validate.roster(ROSTER._replace(**changes).to_json(), "10.0.0.0/16")

    @pytest.mark.parametrize(
        "text",
        ["", "null", "[]", "{}", '{"nodes":[{}],"missing":[],"revoked":[]}', "not json", "[" * 100_000, " " * 500_000],
    )
    def test_what_is_no_roster_is_refused(self, text):
        with pytest.raises(Invalid):
            validate.roster(text)
