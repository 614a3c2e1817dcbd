"""`Cluster.up` in Python on a changed file: with consent it does as `phalanx up` does, else it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.aws.model import StackChange
from phalanx.cluster.cluster_record import Cluster as Record
from phalanx.cluster.update import Proposal
from phalanx.errors import ClusterError

GROUP = StackChange("Modify", "WorkersGroup", "AWS::AutoScaling::AutoScalingGroup", "Conditional", ("Properties",))


@pytest.fixture
def changed(phalanx, cloud) -> Path:
    """A cluster whose file has another type by now."""
    assert phalanx("up") == 0
    cloud.changes = [GROUP]
    path = Path("phalanx.yaml")
    path.write_text(path.read_text() + "idle: 30m\n")
    return path


def test_without_consent_a_changed_file_is_refused_with_what_to_do(changed, cloud):
    import phalanx

    with pytest.raises(ClusterError, match=r"other settings: idle_s: None → 1800") as refused:
        phalanx.Cluster.up(changed)
    assert "change=True" in refused.value.hint
    assert cloud.forgotten == ["changes"] and Record.load("demo").spec["idle_s"] is None


def test_with_consent_it_is_changed_in_place(changed):
    import phalanx

    with phalanx.Cluster.up(changed, change=True) as cluster:
        assert cluster.name == "demo"
    assert Record.load("demo").spec["idle_s"] == 1800, "and the block does not delete what it did not make"


@pytest.mark.parametrize("agrees", [True, False])
def test_a_function_sees_what_would_change_and_decides(changed, agrees):
    import phalanx

    shown: list[Proposal] = []

    def look(proposal: Proposal) -> bool:
        shown.append(proposal)
        return agrees

    if agrees:
        phalanx.Cluster.up(changed, change=look)
    else:
        with pytest.raises(ClusterError, match="other settings"):
            phalanx.Cluster.up(changed, change=look)
    assert shown == [Proposal("demo", {"idle_s": (None, 1800)}, (GROUP,))]
    assert (Record.load("demo").spec["idle_s"] == 1800) == agrees


def test_a_step_prints_as_the_command_line_shows_it(phalanx, cloud, capsys):
    import phalanx as library

    with library.Cluster.up("phalanx.yaml", progress=print):
        shown = capsys.readouterr().out.splitlines()
    assert "CREATE_COMPLETE     demo (CloudFormation::Stack)" in shown
    assert not [line for line in shown if "Event(" in line or "Answered(" in line]
