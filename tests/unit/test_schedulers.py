"""Batch schedulers: the requests, and the meaning of their answers. No scheduler runs here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import pytest
from error_codes import raises_code
from fake_nodes import roster

from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec
from phalanx.launchers import load as load_launcher
from phalanx.runner.batch.allocation import request_for
from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, Request, count_here, granted_gpus, shown
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.process import PreparedJob, Process, RefusedError
from phalanx.runner.starter.attend import assignments, environment
from phalanx.schedulers import SCHEDULERS, load, sge, slurm

EVEN = Request("J1", "/efs/.phalanx/jobs/J1", "slurm", processes=6, nodes=3, per_node=2)
ANYWHERE = Request("J1", "/efs/.phalanx/jobs/J1", "slurm", 4, 2, 2, anywhere=True, options=("--partition", "gpu"))


@pytest.fixture(autouse=True)
def as_a_file(monkeypatch):
    """Pretend to run from a zipapp, because a runner starts others from its own file."""
    monkeypatch.setattr(sys, "argv", [__file__])


def planned(*ranks: dict[str, int]) -> Sequence[Process]:
    return [Process(str(number), next(iter(one)), ("x",), ("x",), one) for number, one in enumerate(ranks)]


def job(**fields: int) -> JobRecord:
    return JobRecord(("x",), id="J1", via="slurm", **fields)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_has_what_the_protocol_says(name):
    scheduler = load(name)
    assert name == scheduler.NAME
    assert scheduler.SUMMARY
    for part in ("HIDDEN", "SHOWN", "NODE_INDEX", "GPUS", "submit", "status", "cancel"):
        assert hasattr(scheduler, part)


def test_what_is_asked_for_follows_from_what_the_launcher_plans():
    even = request_for(job(), "/d", "slurm", planned({"a": 1}, {"b": 1}, {"c": 1}))
    assert (even.processes, even.nodes, even.per_node, even.anywhere) == (3, 3, 1, False)
    alone = request_for(job(processes=3), "/d", "slurm", planned({"a": 2, "b": 1}))
    assert (alone.processes, alone.anywhere) == (3, True)


def test_rays_nodes_are_asked_for_by_their_cpus():
    description = PreparedJob(("x",), "ray", id="J1", directory="/d", per_node=3)
    plan = load_launcher("ray").processes(description, roster(nodes=2, slots=4))
    asked = request_for(job(per_node=3), "/d", "slurm", plan)
    assert (asked.processes, asked.nodes, asked.per_node, asked.anywhere) == (6, 2, 3, False)


def test_sbatch_is_asked_for_a_shape_only_where_there_is_one():
    assert slurm.arguments(EVEN)[-3:] == ["--ntasks=6", "--nodes=3", "--ntasks-per-node=2"]
    arguments = slurm.arguments(ANYWHERE)
    assert arguments[-3:] == ["--ntasks=4", "--partition", "gpu"]
    assert not [word for word in arguments if word.startswith("--nodes")]


def test_a_limit_is_passed_on_with_time_for_two_graces():
    asked = request_for(job(time_s=3600, grace_s=60), "/d", "slurm", planned({"a": 1}))
    assert asked.limit_s == 3600 + 120 + 180
    assert "--time=65" in slurm.arguments(asked)
    assert sge.arguments(asked, "two")[-2:] == ["-l", "h_rt=3900"]
    assert not [word for word in slurm.arguments(EVEN) if word.startswith("--time")]


def test_srun_starts_one_starter_on_each_node_with_all_that_is_granted_there():
    srun = slurm.script(EVEN).splitlines()[-1]
    assert "--ntasks" not in srun and "--cpu-bind=none" in srun
    started = shlex.split(srun)[-1]
    assert started.startswith("[ \"$SLURM_LOCALID\" != 0 ] || exec '/usr/bin/python3' '-IS' '-c' ")
    assert "runner.pyz' 'attend' 'slurm' '/efs/.phalanx/jobs/J1' \"$SLURM_JOB_ID\"" in started


@pytest.mark.parametrize(
    ("text", "phase", "killed", "retryable", "description"),
    [
        ("JobId=4 JobState=PENDING Reason=Resources", QUEUED, False, False, "Resources"),
        ("JobId=4 JobState=PENDING Reason=None", QUEUED, False, False, ""),
        ("JobId=4 JobState=RUNNING Reason=None", HELD, False, False, "RUNNING"),
        ("JobId=4 JobState=COMPLETING Reason=None", HELD, False, False, "COMPLETING"),
        ("JobId=4 JobState=COMPLETED Reason=None", ENDED, False, False, "COMPLETED"),
        ("JobId=4 JobState=FAILED Reason=NonZeroExitCode", ENDED, False, False, "FAILED, NonZeroExitCode"),
        ("JobId=4 JobState=CANCELLED Reason=None", ENDED, True, False, "CANCELLED"),
        ("JobId=4 JobState=TIMEOUT Reason=TimeLimit", ENDED, True, False, "TIMEOUT, TimeLimit"),
        ("JobId=4 JobState=PREEMPTED Reason=None", ENDED, True, True, "PREEMPTED"),
        ("JobId=4 JobState=NODE_FAIL Reason=NodeDown", ENDED, True, True, "NODE_FAIL, NodeDown"),
    ],
)
def test_the_answer_of_scontrol_is_read(text, phase, killed, retryable, description):
    found = slurm.read_status(text)
    assert (found.phase, found.killed, found.retryable, found.description) == (phase, killed, retryable, description)


@pytest.mark.parametrize("text", ["", "\n", "JobId=4", "JobId=4 JobState=HALF_WAY Reason=None"])
def test_an_answer_without_a_state_ends_no_job(text):
    with raises_code("scheduler", "slurm", "no state", kind=RefusedError):
        slurm.read_status(text)


def test_a_job_that_slurm_has_forgotten_has_ended():
    def call(argv: Sequence[str], _: str) -> str:
        raise RefusedError("slurm refused: slurm_load_jobs error: Invalid job id specified")

    assert slurm.status("4", call).phase == ENDED


def test_processes_of_a_node_are_read_from_slurms_short_form():
    assert [count_here("2(x3),1", index) for index in range(4)] == [2, 2, 2, 1]
    assert count_here("5", 3) == 5
    assert shown("http://head:8088/ws/v1/cluster/apps/application_1_0002") == "application_1_0002"


@pytest.mark.parametrize(
    ("found", "names", "gpus"),
    [
        ({}, slurm.GPUS, None),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "6,7"}, slurm.GPUS, ["2", "3"]),
        ({"SLURM_JOB_GPUS": "6,7"}, slurm.GPUS, ["6", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, slurm.GPUS, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f1a-22,MIG-1c"}, slurm.GPUS, ["GPU-8f1a-22", "MIG-1c"]),
        ({"SGE_HGR_gpu": "gpu1 gpu3", "CUDA_VISIBLE_DEVICES": "0"}, sge.GPUS, ["1", "3"]),
    ],
)
def test_the_gpus_of_a_grant_are_read_from_what_the_scheduler_sets(found, names, gpus):
    assert granted_gpus(found, names) == gpus


def test_a_nodes_one_starter_has_all_that_is_granted_there_and_nothing_of_another_host():
    assert "unset SLURM_CPUS_PER_TASK" in slurm.script(EVEN) and "SLURM_GPUS_PER_TASK" in slurm.script(EVEN)
    assert (
        "env -u SGE_HGR_gpu -u SGE_HGR_GPU -u SGE_HGR_gpus -u CUDA_VISIBLE_DEVICES qrsh -inherit -noshell"
        in sge.script(EVEN)
    )


ENVIRONMENTS = {
    "smp": {"allocation_rule": "$pe_slots", "control_slaves": "FALSE"},
    "two": {"allocation_rule": "2", "control_slaves": "TRUE"},
    "orte": {"allocation_rule": "$fill_up", "control_slaves": "TRUE"},
}


def test_the_parallel_environment_is_the_one_that_places_the_job_as_meant():
    assert sge.choose(EVEN, ENVIRONMENTS) == "two"
    assert sge.choose(ANYWHERE, ENVIRONMENTS) == "orte"
    with pytest.raises(RefusedError, match=r"it has: smp \(\$pe_slots\)"):
        sge.choose(EVEN, {"smp": ENVIRONMENTS["smp"]})


def test_qsub_takes_a_parallel_environment_that_the_user_names():
    assert "-pe" not in sge.arguments(ANYWHERE, None)
    assert sge.arguments(EVEN, "two")[-3:] == ["-pe", "two", "6"]


@pytest.mark.parametrize(
    ("state", "phase"), [("qw", QUEUED), ("hqw", QUEUED), ("r", HELD), ("t", HELD), ("dr", HELD), ("Eqw", QUEUED)]
)
def test_what_qstat_says_of_a_job(state, phase):
    job = f"<job_list><JB_job_number>7</JB_job_number><state>{state}</state></job_list>"
    text = f"<job_info><queue_info>{job}</queue_info></job_info>"
    assert sge.read_status(text, "7").phase == phase
    assert sge.read_status(text, "8").phase == ENDED


def test_what_qacct_says_of_a_job():
    assert not sge.account("jobnumber 7\nfailed       0\nexit_status  0\n").killed
    limit = sge.account("failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n")
    assert limit.killed and "h_rt" in limit.description
    assert "deleted" in sge.account("failed       100 : assumedly after job\n").description


def test_processes_see_the_nodes_contract_and_not_what_leads_engines_to_the_scheduler():
    found = {"SLURM_NODELIST": "a,b", "SLURM_JOB_ID": "4", "PMI_RANK": "0", "HOME": "/home/p", "PATH": "/bin"}
    kept = environment(found, slurm.HIDDEN, slurm.SHOWN, {"PATH": "/opt/bin"})
    assert kept == {"SLURM_JOB_ID": "4", "HOME": "/home/p", "PATH": "/opt/bin"}
    assert assignments(['A="1 2"\n', "# B=3\n", "A=4\n"]) == {"A": "4"}


def test_options_that_contradict_are_refused_before_anything_starts():
    with pytest.raises(JobError, match="slurm decides how many"):
        JobSpec(command=("true",), via="slurm", nodes_min=2, nodes_max=3)
    with pytest.raises(JobError, match="slurm decides the nodes"):
        JobSpec(command=("true",), via="slurm", hosts=("deeplearning-worker2",))
    with pytest.raises(JobError, match="--via-option needs --via"):
        JobSpec(command=("true",), via_options=("-p", "gpu"))
