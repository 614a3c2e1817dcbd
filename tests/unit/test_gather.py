"""One command on all nodes in parallel."""

from __future__ import annotations

import json
import re
import time

import pytest
from fake_cloud import roster

from phalanx import cli
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.gather import gather
from phalanx.errors import ClusterError
from phalanx.ssh.remote import Completed, ConnectionLost, Remote


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """A cluster of three nodes, of which worker 2 is slow and fails; yields each node's command and user."""
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Cluster("demo", "aws", "us-east-1", "arn", "54.0.0.1", "/efs", admin_user="ubuntu").save()
    seen: list[tuple[str, str, str]] = []

    def run(remote, command, *, timeout_s, check, input=None):
        seen.append((remote.host, remote.user, command))
        if command == "gone" and remote.host == "deeplearning-worker3":
            raise ConnectionLost("can't log in to deeplearning-worker3: it does not answer")
        if remote.host == "deeplearning-worker2":
            time.sleep(0.05)
            return Completed(3, b"", b"no such thing\n")
        return Completed(0, remote.host.encode() + b"\n", b"")

    monkeypatch.setattr(Cluster, "roster", lambda _: roster(3))
    monkeypatch.setattr(Remote, "run", run)
    return seen


def test_every_node_has_a_verdict_in_the_roster_s_order(asked):
    verdicts = list(gather(Cluster.load("demo"), "gone"))
    assert [(v.node, v.status, v.ok) for v in verdicts] == [
        ("deeplearning-worker1", 0, True),
        ("deeplearning-worker2", 3, False),
        ("deeplearning-worker3", None, False),
    ]
    assert "does not answer" in verdicts[2].error


def test_sudo_goes_through_the_image_s_own_user(asked):
    list(gather(Cluster.load("demo"), "id -u; echo 'x'", nodes=["head"], sudo=True))
    host, user, command = asked[0]
    assert (host, user) == ("deeplearning-worker1", "ubuntu")
    assert command == """sudo -n sh -c 'id -u; echo '"'"'x'"'"''"""


def test_an_unknown_node_is_reported_before_anything_runs(asked):
    with pytest.raises(ClusterError, match="no node 'worker9'"):
        list(gather(Cluster.load("demo"), "true", nodes=["head", "worker9"]))
    assert asked == []


def test_the_command_shows_each_node_s_output_under_its_verdict(asked, capfd):
    assert cli.execute(["exec", "--", "ls", "-l"]) == 1
    out, err = capfd.readouterr()
    assert out == "deeplearning-worker1\ndeeplearning-worker3\n"
    assert "deeplearning-worker2: status 3 after" in err
    assert "no such thing" in err
    assert {command for _, _, command in asked} == {"ls -l"}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["touch", "my file"], "touch 'my file'"),
        (["sh", "-c", "echo one; echo two"], "sh -c 'echo one; echo two'"),
        (["echo", "$HOME", "*", "", "it's"], """echo '$HOME' '*' '' 'it'"'"'s'"""),
        (["cd /tmp && ls *"], "cd /tmp && ls *"),
    ],
)
@pytest.mark.parametrize("verb", [["exec"], ["ssh", "head"]])
def test_several_words_stay_words_and_one_is_a_line_for_the_shell(asked, verb, words, command, monkeypatch):
    """As in `run`. ssh itself joins them, so that its shell would divide them again."""
    monkeypatch.setattr(Remote, "interactive", lambda remote, text: asked.append((remote.host, remote.user, text)))
    cli.execute([*verb, "--", *words])
    assert {command for _, _, command in asked} == {command}


def test_the_time_stands_before_the_reason_that_a_node_did_not_answer(asked, capfd):
    assert cli.execute(["exec", "--", "gone"]) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"deeplearning-worker3: failed after \S+ s: can't log in to deeplearning-worker3: it does not answer", line
    )


def test_the_command_has_json_and_ends_well_when_all_did(asked, capsys):
    assert cli.execute(["exec", "--json", "--node", "head", "--", "true"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["stdout"] == "deeplearning-worker1\n"
    assert cli.execute(["exec"]) == 2
    assert "no command" in capsys.readouterr().err
