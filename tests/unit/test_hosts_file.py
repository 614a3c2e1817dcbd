"""The lines of a hosts file and their mistakes."""

from __future__ import annotations

import pytest
from error_codes import raises_code
from fake_nodes import roster

from phalanx.errors import SpecError
from phalanx.jobs.hosts_file import load, parse
from phalanx.node.roster import Missing

ROSTER = roster(nodes=3, slots=2)._replace(missing=(Missing("deeplearning-worker4", "InsufficientInstanceCapacity"),))


@pytest.mark.parametrize(
    "text",
    [
        "deeplearning-worker3\ndeeplearning-worker1\n",
        "10.0.1.3\n10.0.1.1",
        "ip-10-0-1-3\ndeeplearning-master\n",
        "# ours\n\n10.0.1.3:22  # the last\n\n  deeplearning-worker1 slots=2\n",
    ],
)
def test_names_and_addresses_are_nodes_in_the_files_order(text):
    assert parse(text, ROSTER, "hosts") == ("deeplearning-worker3", "deeplearning-worker1")


def test_all_mistakes_are_reported_at_once_with_their_lines():
    text = "10.0.1.2\n\ndeeplearning-worker2\n10.0.1.9\ndeeplearnin-worker3\ndeeplearning-worker4\n10.0.1.2\n"
    with pytest.raises(SpecError) as caught:
        parse(text, ROSTER, "hosts")
    assert (
        [one.message for one in caught.value.mistakes]
        == caught.value.message.splitlines()
        == [
            "hosts:3: deeplearning-worker2 is already in line 1",
            "hosts:4: 10.0.1.9 is not a node of cluster fake; did you mean 10.0.1.3?",
            "hosts:5: deeplearnin-worker3 is not a node of cluster fake; did you mean deeplearning-worker3?",
            "hosts:6: deeplearning-worker4 is missing: InsufficientInstanceCapacity",
            "hosts:7: 10.0.1.2 (deeplearning-worker2) is already in line 1",
        ]
    )


def test_a_silent_node_is_no_host():
    silent = ROSTER._replace(nodes=ROSTER.nodes[:2], silent=ROSTER.nodes[2:])
    with pytest.raises(SpecError, match="hosts:1: deeplearning-worker3 is silent"):
        parse("deeplearning-worker3\n", silent, "hosts")


@pytest.mark.parametrize("text", ["", "\n\n", "# nobody\n"])
def test_a_file_without_hosts_is_refused(text):
    with raises_code("hosts-file", "hosts: "):
        parse(text, ROSTER, "hosts")


def test_a_missing_file_is_reported(tmp_path):
    with raises_code("cannot-read"):
        load(tmp_path / "hosts", ROSTER)
