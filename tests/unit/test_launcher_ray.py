"""A Ray cluster for the time of a job: which processes the launcher describes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
from fake_nodes import roster

from phalanx.launchers import load, ray_nodes
from phalanx.runner.process import PreparedJob

JOB = PreparedJob(("python", "t.py"), "ray", id="1", directory="/efs/.phalanx/jobs/1", first_port=21000, token="s3cret")


def flags(process) -> dict[str, str]:
    return dict(word.lstrip("-").partition("=")[::2] for word in process.argv if word.startswith("--"))


def test_the_command_is_the_driver_and_all_else_serves_it():
    driver, *services = load("ray").processes(JOB, roster(nodes=3, slots=4))
    assert driver.argv == ("/efs/.phalanx/jobs/1/driver", *JOB.keeper("PHALANX_RANK"))
    assert "\npython3 /efs/.phalanx/jobs/1/ray_nodes.py 3 && " in driver.files["driver"]
    assert (driver.service, driver.ranks, driver.env["PHALANX_RANK"]) == (False, {"deeplearning-worker1": 1}, "0")
    assert [(s.label, s.service, sum(s.ranks.values())) for s in services] == [
        (f"ray@deeplearning-worker{number}", True, 0) for number in (1, 2, 3)
    ]


def test_all_meet_at_the_heads_port_and_offer_as_many_cpus_as_asked():
    driver, head, *others = load("ray").processes(replace(JOB, processes=5), roster(nodes=3, slots=4))
    assert "--head" in head.argv
    assert flags(head)["port"] == "21000"
    assert [flags(other)["address"] for other in others] == [driver.env["RAY_ADDRESS"]]
    assert driver.env["RAY_ADDRESS"].endswith(":21000")
    assert [flags(service)["num-cpus"] for service in (head, *others)] == ["4", "1"]
    assert set(head.ports) == {21000, 21001}


def test_ray_gets_the_gpus_and_assigns_them_to_tasks():
    nodes = roster(nodes=2, slots=8)
    nodes = nodes._replace(nodes=tuple(node._replace(gpus=8) for node in nodes.nodes))
    _, *services = load("ray").processes(JOB, nodes)
    assert [flags(service)["num-gpus"] for service in services] == ["8", "8"]
    assert not any("CUDA_VISIBLE_DEVICES" in service.env for service in services)


def test_joining_requires_the_jobs_token_which_is_only_in_a_file():
    found = load("ray").processes(JOB, roster(2, 2))
    path = {process.env["RAY_AUTH_TOKEN_PATH"] for process in found}
    assert path == {"/efs/.phalanx/jobs/1/ray-token"}
    assert found[0].files["ray-token"] == "s3cret"
    assert not any("s3cret" in word for p in found for word in (*p.argv, *p.env.values(), repr(JOB)))


def test_rays_advice_is_left_out_but_its_errors_are_not():
    _, service, *_ = load("ray").processes(JOB, roster(2, 2))
    shown = (
        "2026-11-21 11:40:12,361\tINFO scripts.py:1 -- Next steps\n\nTraceback\n2026-11-21 11:40:12,407\tWARNING x\n"
    )
    assert re.sub(service.harmless, "", shown, flags=re.MULTILINE) == "Traceback\n2026-11-21 11:40:12,407\tWARNING x\n"


def test_nodes_that_do_not_join_are_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ray_nodes.py", "3"])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.4:21000")
    monkeypatch.setattr(ray_nodes, "_nodes", lambda _: 2)
    monkeypatch.setattr(ray_nodes, "_TIMEOUT_S", -1.0)
    with pytest.raises(SystemExit, match=r"2 of 3 nodes have joined the Ray cluster[^@]*\[ray@NODE\]"):
        ray_nodes.main()
