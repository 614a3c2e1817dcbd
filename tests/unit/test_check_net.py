"""The verdict on a network: which node or link it names, and what it does not mind."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import JobError
from phalanx.jobs.check_net import Link, Network, problems
from phalanx.jobs.net_plot import svg
from phalanx.jobs.net_result import network
from phalanx.netcheck.__main__ import rounds
from phalanx.netcheck.engines import network_of, network_of_mpi

NODES = ("one", "two", "three", "four")
USUAL = 9.4e9


def measured(**slow: float) -> Network:
    """Return four nodes whose links carry USUAL, but for those of the nodes in `slow`."""
    links = [Link(a, b, min(slow.get(a, USUAL), slow.get(b, USUAL)), 0.0001) for a, b in permutations(NODES, 2)]
    return Network(NODES, links, "gloo", [(4096, 0.001), (1 << 20, 0.01)], transports=dict.fromkeys(NODES, "TCP"))


def with_link(found: Network, sender: str, receiver: str, **changed: Any) -> Network:
    return replace(
        found,
        links=[
            replace(one, **changed) if (one.sender, one.receiver) == (sender, receiver) else one for one in found.links
        ],
    )


def test_equal_links_are_fine():
    assert problems(measured(), {}) == []
    assert problems(measured(two=6e9), {}) == []


def test_a_slow_node_is_named_once_and_its_peers_are_not():
    assert problems(measured(three=1e8), {}) == ["three sends 0.1 Gbit/s, the others 9.4 Gbit/s"]


def test_a_node_that_only_receives_slowly_is_named():
    found = measured()
    for sender in ("one", "three", "four"):
        found = with_link(found, sender, "two", bit_s=1e8)
    assert problems(found, {}) == ["two receives 0.1 Gbit/s, the others 9.4 Gbit/s"]


def test_a_slow_link_between_good_nodes_is_named():
    found = with_link(measured(), "one", "two", bit_s=1e9)
    assert problems(found, {}) == ["one sends 1 Gbit/s to two, but 9.4 Gbit/s to others"]


def test_a_cut_link_is_named_with_its_reason():
    found = with_link(measured(), "four", "one", bit_s=0.0, round_trip_s=0.0, error="timed out")
    assert problems(found, {}) == ["four can't reach one: timed out"]


def test_a_late_node_is_named():
    found = measured()
    for one, other in permutations(NODES, 2):
        if "four" in (one, other):
            found = with_link(found, one, other, round_trip_s=0.005)
    assert problems(found, {}) == ["four answers after 5.00 ms, the others after 0.10 ms"]


@pytest.mark.parametrize(("promised_bit_s", "slow"), [(0.0, False), (0.75e9, False), (5e9, True), (400e9, True)])
def test_a_type_s_promise_counts_as_far_as_it_can_be_checked(promised_bit_s, slow):
    alike = replace(measured(), links=[replace(link, bit_s=1e9) for link in measured().links])
    promises = dict.fromkeys(NODES, promised_bit_s)
    assert len(problems(alike, promises)) == (4 if slow else 0)
    assert problems(measured(), promises) == []


@pytest.mark.parametrize(
    ("transport", "named"),
    [("TCP (Open MPI v4.1.4)", True), ("Libfabric (Open MPI v4.1.4)", False), ("Open MPI v4.1.4", False)],
)
def test_a_node_whose_adapter_mpi_does_not_use_is_named(transport, named):
    found = replace(measured(), engine="mpi", with_efa=frozenset({"two"}), transports=dict.fromkeys(NODES, transport))
    expected = [f"two has an Elastic Fabric Adapter, but MPI uses {transport}"] if named else []
    assert problems(found, {}) == expected


@pytest.mark.parametrize(
    ("components", "network_used"),
    [
        ({"pml_ob1", "btl_self", "btl_tcp", "btl_vader", "mtl_ofi", "mtl_psm2"}, "TCP"),
        ({"pml_cm", "btl_self", "btl_tcp", "btl_vader", "mtl_ofi"}, "Libfabric"),
        ({"pml_cm", "pml_ob1", "btl_tcp", "mtl_ofi"}, ""),
        ({"pml_ucx", "btl_tcp"}, "UCX"),
        ({"pml_ob1", "btl_self", "btl_openib"}, "openib"),
        ({"pml_ob1", "btl_tcp", "btl_openib"}, ""),
        (set(), ""),
    ],
)
def test_open_mpis_network_is_that_of_its_open_components(components, network_used):
    assert network_of_mpi(components) == network_used


@pytest.mark.parametrize(("transport", "named"), [("Socket", True), ("AWS Libfabric", False), ("OFI", False)])
def test_a_node_whose_adapter_nccl_does_not_use_is_named(transport, named):
    found = replace(
        measured(),
        engine="nccl",
        with_efa=frozenset(NODES),
        transports={**dict.fromkeys(NODES, "OFI"), "two": transport},
    )
    expected = [f"two has an Elastic Fabric Adapter, but NCCL uses {transport}"] if named else []
    assert problems(found, {}) == expected
    assert problems(replace(found, with_efa=frozenset()), {}) == []


def test_nccl_s_last_word_on_its_network_counts():
    log = (
        "host:1:1 [0] NCCL INFO NET/OFI Selected Provider is efa\nhost:1:1 [0] NCCL INFO Using network AWS Libfabric\n"
    )
    assert (network_of(log), network_of("")) == ("AWS Libfabric", "unknown")


@settings(deadline=None)
@given(st.integers(2, 40))
def test_every_two_ranks_meet_once_and_each_is_in_one_pair_of_a_round(size):
    found = rounds(size)
    assert sorted(tuple(sorted(pair)) for pairs in found for pair in pairs) == list(combinations(range(size), 2))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in found)


DOCUMENT = {
    "nodes": [{"address": "10.0.0.1", "efa": True}, {"address": "10.0.0.9", "efa": False}],
    "links": [{"from": 0, "to": 1, "bit_s": 1e9, "round_trip_s": 1e-4}, {"from": 1, "to": 0, "error": "timed out"}],
    "sums": [{"engine": "mpi", "transport": "Open MPI", "times": [{"bytes": 4096, "s": 0.001}]}] * 2,
}
LINK, SUM = DOCUMENT["links"][0], DOCUMENT["sums"][0]
SCRIPT = "</text><script>alert(1)</script>"


def read(document: Any, **names: str) -> Network:
    return network(json.dumps(document).encode(), {"10.0.0.1": "head", **names})


def test_a_result_is_read_with_the_nodes_names():
    found = read(DOCUMENT)
    assert (found.nodes, found.engine, found.sums) == (["head", "10.0.0.9"], "mpi", [(4096, 0.001)])
    assert (found.links[1].error, found.with_efa) == ("timed out", {"head"})
    assert found.bus_bit_s(4096, 0.001) == pytest.approx(4096 * 8 / 0.001)
    without = read({**DOCUMENT, "sums": [{"error": "no module named torch"}] * 2})
    assert (without.engine, without.no_engine) == ("", "no module named torch")


def test_a_cluster_of_one_node_can_be_drawn():
    found = read({**DOCUMENT, "nodes": DOCUMENT["nodes"][:1], "links": [], "sums": [SUM]})
    assert problems(found, {}) == []
    ElementTree.fromstring(svg(found))


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, [], {**DOCUMENT, "nodes": []}, {"nodes": 1, "links": 2, "sums": 3}),
        {**DOCUMENT, "nodes": [{"address": SCRIPT, "efa": True}, DOCUMENT["nodes"][1]]},
        {**DOCUMENT, "nodes": [DOCUMENT["nodes"][0]] * 2},
        {**DOCUMENT, "links": []},
        {**DOCUMENT, "links": [LINK, LINK]},
        {**DOCUMENT, "links": [LINK, {**LINK, "from": 0, "to": 0}]},
        {**DOCUMENT, "links": [LINK, {**LINK, "from": -1, "to": 0}]},
        {**DOCUMENT, "links": [LINK, {**LINK, "from": 1, "to": 0, "bit_s": -1e9}]},
        {**DOCUMENT, "links": [LINK, {**LINK, "from": 1, "to": 0, "bit_s": "fast"}]},
        {**DOCUMENT, "sums": [SUM]},
        {**DOCUMENT, "sums": [{**SUM, "engine": SCRIPT}, SUM]},
        {**DOCUMENT, "sums": [{**SUM, "times": []}, SUM]},
        {**DOCUMENT, "sums": [{**SUM, "times": [{"bytes": 4096, "s": 0}]}, SUM]},
        {**DOCUMENT, "sums": [{**SUM, "times": [{"bytes": 0, "s": 0.1}]}, SUM]},
        {**DOCUMENT, "sums": [{**SUM, "transport": 7}, SUM]},
    ],
)
def test_a_result_that_is_none_is_an_error(wrong):
    with pytest.raises(JobError, match="result can't be read"):
        read(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {**DOCUMENT, "nodes": [DOCUMENT["nodes"][0], {"address": "10.0.0.9", "efa": "x"}]},
        {**DOCUMENT, "links": [LINK, {"from": 1, "to": 0}]},
        {**DOCUMENT, "links": [LINK, {"from": 1, "to": 0, "error": 7}]},
        {**DOCUMENT, "links": [LINK, {"from": 1, "to": 0, "bit_s": -1, "round_trip_s": 1}]},
        {**DOCUMENT, "sums": [SUM, {}]},
        {**DOCUMENT, "sums": [SUM, {"error": []}]},
    ],
)
def test_the_node_whose_answer_spoils_a_result_is_named(wrong):
    with pytest.raises(JobError, match=r"the answer of 10\.0\.0\.9: "):
        read(wrong)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"nodes": 1e999}', b"9" * 5000])
def test_a_result_that_is_no_json_is_an_error(text):
    with pytest.raises(JobError, match="result can't be read"):
        network(text, {})


def test_the_drawing_shows_texts_as_they_are():
    found = replace(measured(), nodes=(SCRIPT, *NODES[1:]), engine=SCRIPT, links=[])
    texts = [element.text for element in ElementTree.fromstring(svg(found)).iter() if element.text]
    assert sum(SCRIPT in text for text in texts) == 3


def test_the_drawing_has_every_link_and_size():
    drawn = ElementTree.fromstring(svg(with_link(measured(), "one", "two", error="timed out")))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert (texts.count("9.40"), texts.count("cut"), texts.count("1024 KiB")) == (11, 1, 1)
