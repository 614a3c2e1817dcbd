"""How the launchers tensorflow, jax and deepspeed describe each process and its peers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby

import pytest
from error_codes import raises_code
from fake_nodes import roster

from phalanx.launchers import load
from phalanx.runner.process import PreparedJob, Process, RefusedError

JOB = PreparedJob(("python", "t.py"), "", id="1", directory="/efs/.phalanx/jobs/1", first_port=21000)
PLAIN = roster(nodes=3, slots=2)


def with_gpus(*gpus: int):
    several = roster(nodes=len(gpus), slots=1)
    nodes = tuple(node._replace(gpus=count, slots=count) for node, count in zip(several.nodes, gpus, strict=True))
    return several._replace(nodes=nodes)


def planned(launcher: str, nodes=PLAIN, **changes) -> list[Process]:
    return list(load(launcher).processes(replace(JOB, launcher=launcher, **changes), nodes))


def config(process: Process) -> dict:
    return json.loads(process.env["TF_CONFIG"])


def test_tensorflow_without_servers_is_workers_that_know_all_addresses():
    workers = planned("tensorflow", per_node=1)
    assert [worker.name for worker in workers] == ["worker 0", "worker 1", "worker 2"]
    addresses = ["deeplearning-worker1:21000", "deeplearning-worker2:21001", "deeplearning-worker3:21002"]
    assert config(workers[2]) == {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 2}}
    assert [worker.ports for worker in workers] == [(21000,), (21001,), (21002,)]
    assert all(worker.is_rank and not worker.service and worker.argv == JOB.command for worker in workers)


def test_tensorflow_runs_one_worker_per_slot_and_as_many_as_n_says():
    assert [worker.node[-1] for worker in planned("tensorflow")] == ["1", "1", "2", "2", "3", "3"]
    assert [worker.node[-1] for worker in planned("tensorflow", processes=3)] == ["1", "1", "2"]


def test_tensorflow_with_servers_is_trained_by_a_chief_that_all_others_serve():
    tasks = planned("tensorflow", per_node=1, options={"ps": "4"})
    assert [task.name for task in tasks if not task.service] == ["chief 0"]
    assert [task.node[-1] for task in tasks if task.role == "ps"] == ["1", "2", "3", "1"]
    cluster = config(tasks[0])["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 3, "ps": 4}
    assert len({address for addresses in cluster.values() for address in addresses}) == 8
    for kind, task in ((config(task)["task"]["type"], task) for task in tasks):
        index = config(task)["task"]["index"]
        assert (kind, f"{task.node}:{task.ports[0]}") == (task.role, cluster[kind][index])


def test_tf1_flags_describe_each_task_and_its_workers_end_by_themselves():
    tasks = planned("tensorflow", per_node=1, options={"tf-style": "flags", "ps": "1"})
    servers, workers = "deeplearning-worker1:21003", "deeplearning-worker1:21000,deeplearning-worker2:21001"
    assert tasks[1].argv == (
        *JOB.command,
        f"--ps_hosts={servers}",
        f"--worker_hosts={workers},deeplearning-worker3:21002",
        "--job_name=worker",
        "--task_index=1",
    )
    assert [(kind, [task.service for task in same]) for kind, same in groupby(tasks, lambda task: task.role)] == [
        ("worker", [False] * 3),
        ("ps", [True]),
    ]
    assert all("TF_CONFIG" not in task.env for task in tasks)


def test_tf1_flags_have_one_server_per_node_by_default():
    tasks = planned("tensorflow", options={"tf-style": "flags"})
    assert [task.node[-1] for task in tasks if task.role == "ps"] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tf-style": "tf3"}, "config, flags"), ({"ps": "0"}, "1 or more"), ({"ps": "x"}, "--ps is 'x'")],
)
def test_tensorflow_refuses_options_that_it_cant_read(options, message):
    with pytest.raises(RefusedError, match=message):
        planned("tensorflow", options=options)


def test_each_worker_sees_its_own_gpu_and_those_that_train_nothing_see_none():
    tasks = planned("tensorflow", with_gpus(2, 2), options={"ps": "1"})
    assert [(task.role, task.env["CUDA_VISIBLE_DEVICES"]) for task in tasks] == [
        ("chief", ""),
        *(("worker", number) for number in "0101"),
        ("ps", ""),
    ]
    assert all("CUDA_VISIBLE_DEVICES" not in task.env for task in planned("tensorflow"))


def test_fewer_processes_than_gpus_share_them_evenly():
    workers = planned("tensorflow", with_gpus(8, 8), per_node=2)
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0,1,2,3", "4,5,6,7"] * 2
    assert [process.env["JAX_LOCAL_DEVICE_IDS"] for process in planned("jax", with_gpus(4), per_node=1)] == ["0,1,2,3"]


def test_what_a_batch_scheduler_granted_of_the_gpus_is_what_is_seen():
    granted = {"devices": {"deeplearning-worker1": ("2", "3"), "deeplearning-worker2": ("GPU-a", "GPU-b")}}
    workers = planned("tensorflow", with_gpus(2, 2), **granted)
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["2", "3", "GPU-a", "GPU-b"]
    workers = [one for one in planned("dmlc", with_gpus(2, 2), per_node=1, **granted) if one.role == "worker"]
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["2,3", "GPU-a,GPU-b"]
    # JAX counts among the GPUs in CUDA_VISIBLE_DEVICES, which the scheduler has set.
    assert [process.env["JAX_LOCAL_DEVICE_IDS"] for process in planned("jax", with_gpus(2, 2), **granted)] == [*"0101"]


@pytest.mark.parametrize("launcher", ["tensorflow", "jax", "deepspeed"])
def test_nodes_with_different_gpus_need_a_number_per_node(launcher):
    mixed = with_gpus(4, 8, 4)
    with pytest.raises(RefusedError, match="deeplearning-worker2 has 8, deeplearning-worker1 has 4"):
        planned(launcher, mixed)
    assert sum(sum(process.ranks.values()) for process in planned(launcher, mixed, per_node=4)) == 12


@pytest.mark.parametrize("launcher", ["tensorflow", "jax", "deepspeed"])
def test_more_processes_than_gpus_are_refused(launcher):
    nodes = with_gpus(2, 2)
    crowded = nodes._replace(nodes=tuple(node._replace(slots=4) for node in nodes.nodes))
    with raises_code("too-few-gpus", "deeplearning-worker1", "4 processes", "2 GPUs", kind=RefusedError):
        planned(launcher, crowded)


def test_jax_finds_coordinator_count_and_number_in_what_it_reads_by_itself():
    first, second, *_, last = planned("jax")
    assert [process.ports for process in (first, second)] == [(21000,), ()]
    names = ("JAX_COORDINATOR_ADDRESS", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    assert [last.env[name] for name in names] == ["deeplearning-worker1:21000", "6", "5", "1"]
    assert (last.env["JAX_NUM_PROCESSES"], last.env["JAX_PROCESS_ID"]) == ("6", "5")
    assert "JAX_LOCAL_DEVICE_IDS" not in last.env


def test_deepspeed_starts_on_each_node_with_hostfile_and_its_number():
    first, second, third = planned("deepspeed", processes=5)
    assert third.argv == (
        "deepspeed",
        "--no_ssh",
        "--hostfile=/efs/.phalanx/jobs/1/hostfile",
        "--node_rank=2",
        "--master_addr=deeplearning-worker1",
        "--master_port=21000",
        "--no_python",
        "/efs/.phalanx/jobs/1/rank",
    )
    assert [process.ranks for process in (first, second, third)] == [
        {"deeplearning-worker1": 2},
        {"deeplearning-worker2": 2},
        {"deeplearning-worker3": 1},
    ]
    assert third.files["hostfile"].splitlines()[2] == "deeplearning-worker3 slots=1"
    assert (first.ports, second.ports) == ((21000,), ())


def test_flags_for_deepspeed_with_an_open_quote_are_refused():
    with raises_code("bad-words", "--deepspeed-flags '--x \"a'", kind=RefusedError):
        planned("deepspeed", options={"deepspeed-flags": '--x "a'})


def test_deepspeed_uses_the_cpu_where_there_are_no_gpus_and_takes_flags_of_its_own():
    assert planned("deepspeed")[0].env == {"DS_ACCELERATOR": "cpu"}
    assert planned("deepspeed", env={"DS_ACCELERATOR": "xpu"})[0].env == {}
    [alone] = planned("deepspeed", with_gpus(2), options={"deepspeed-flags": "--no_local_rank --log_level=error"})
    assert alone.env == {}
    assert alone.argv[-4:-1] == ("--no_local_rank", "--log_level=error", "--no_python")


def test_deepspeed_refuses_variables_that_it_sets_itself():
    with pytest.raises(RefusedError, match="WORLD_SIZE can't be set"):
        planned("deepspeed", env={"WORLD_SIZE": "3"})
