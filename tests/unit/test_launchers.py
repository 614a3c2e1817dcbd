"""Launchers describe processes and start none: which processes each describes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_codes import raises_code
from fake_nodes import roster

from phalanx.jobs.environments import recipe
from phalanx.launchers import LAUNCHERS, load
from phalanx.launchers.options import OPTIONS
from phalanx.runner.process import FIRST_PORT, PORTS, PreparedJob, RefusedError, planned, with_recipes

JOB = PreparedJob(("python", "t.py"), "exec", id="1", directory="/efs/.phalanx/jobs/1", master_port=29500)
ROSTER = roster(nodes=3, slots=4)


def ranks(launcher: str, **changes) -> dict[str, int]:
    """Map node numbers to numbers of processes."""
    total: dict[str, int] = {}
    for process in load(launcher).processes(replace(JOB, launcher=launcher, **changes), ROSTER):
        for node, count in process.ranks.items():
            total[node[-1]] = total.get(node[-1], 0) + count
    return {node: count for node, count in total.items() if count}


@pytest.mark.parametrize(
    ("launcher", "asked", "placed"),
    [
        ("mpi", {}, {"1": 4, "2": 4, "3": 4}),
        ("torchrun", {}, {"1": 4, "2": 4, "3": 4}),
        ("exec", {}, {"1": 1, "2": 1, "3": 1}),
        ("mpi", {"processes": 5}, {"1": 4, "2": 1}),
        ("mpi", {"per_node": 2}, {"1": 2, "2": 2, "3": 2}),
        ("exec", {"per_node": 2}, {"1": 2, "2": 2, "3": 2}),
        ("torchrun", {"processes": 4, "per_node": 2}, {"1": 2, "2": 2}),
        ("dmlc", {}, {"1": 4, "2": 4, "3": 4}),
        ("dmlc", {"processes": 5}, {"1": 2, "2": 2, "3": 1}),
        ("dmlc", {"processes": 2}, {"1": 1, "2": 1}),
        ("exec", {"processes": 3, "per_node": 1}, {"1": 1, "2": 1, "3": 1}),
    ],
)
def test_processes_go_where_n_and_per_node_say(launcher, asked, placed):
    assert ranks(launcher, **asked) == placed


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"processes": 13}, "13 processes were requested; 3 nodes have room for 12"),
        ({"per_node": 5}, "deeplearning-worker1 has 4 slots"),
        ({"processes": 4, "per_node": 1}, r"3 nodes at 1 per node \(-N\) have room for 3"),
    ],
)
def test_more_processes_than_slots_are_refused_with_the_numbers(launcher, asked, message):
    with pytest.raises(RefusedError, match=message):
        ranks(launcher, **asked)


def test_an_unknown_launcher_is_refused_with_the_known_ones():
    with raises_code("no-launcher", "mpi, ray, dmlc, torchrun, exec", kind=RefusedError):
        load("mpx")


def test_exec_numbers_ranks_densely_and_names_the_first_node():
    processes = load("exec").processes(replace(JOB, processes=5), ROSTER)
    last = processes[-1]
    assert [process.env["RANK"] for process in processes] == ["0", "1", "2", "3", "4"]
    assert last.node == "deeplearning-worker2"
    assert last.env == {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "deeplearning-worker1",
        "MASTER_PORT": "29500",
    }


def test_exec_leaves_local_rank_to_programs_that_start_others_on_their_node():
    # Lightning concludes from LOCAL_RANK that all ranks were started for it, and waits for them forever.
    alone = load("exec").processes(JOB, ROSTER)
    assert [process.env.get("LOCAL_RANK") for process in alone] == [None] * 3
    asked_for = load("exec").processes(replace(JOB, per_node=1), ROSTER)
    assert [process.env["LOCAL_RANK"] for process in asked_for] == ["0"] * 3


def test_torchrun_meets_on_the_first_node():
    first, *_, last = load("torchrun").processes(JOB, ROSTER)
    assert first.argv[:7] == (
        *("torchrun", "--nnodes=3", "--node-rank=0", "--nproc-per-node=4"),
        *("--master-addr=deeplearning-worker1", "--master-port=29500", "--no-python"),
    )
    assert last.argv[2] == "--node-rank=2"
    assert last.argv[-2:] == ("=python", "=t.py")


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (("t.py", "-x"), ("python3", "t.py", "-x")),
        (("-m", "pkg.train", "-x"), ("python3", "-m", "pkg.train", "-x")),
        (("bash", "t.sh"), ("bash", "t.sh")),
    ],
)
def test_torchrun_takes_a_script_or_module_as_torchrun_itself_does(command, run):
    assert load("torchrun").processes(replace(JOB, command=command), ROSTER)[0].command == run


@pytest.mark.parametrize(
    ("engine", "hostfile", "argv"),
    [
        ("mpiexec (OpenRTE) 4.1.4", "deeplearning-worker1 slots=4\ndeeplearning-worker2 slots=1\n", "--hostfile"),
        ("HYDRA build details:\n Version: 5.0.2", "deeplearning-worker1:4\ndeeplearning-worker2:1\n", "-f"),
        ("", "deeplearning-worker1 slots=4\ndeeplearning-worker2 slots=1\n", "--hostfile"),
    ],
)
def test_mpi_speaks_to_the_engine_that_is_there(engine, hostfile, argv):
    [mpiexec] = load("mpi").processes(replace(JOB, processes=5, engine=engine), ROSTER)
    assert mpiexec.files["hostfile"] == hostfile
    assert mpiexec.argv[:5] == ("mpiexec", argv, "/efs/.phalanx/jobs/1/hostfile", "-n", "5")
    assert mpiexec.argv[-2:] == ("=python", "=t.py")


def test_no_variable_of_the_user_is_in_an_argument():
    for launcher in LAUNCHERS:
        for process in load(launcher).processes(replace(JOB, env={"TOKEN": "s3cret"}), ROSTER):
            assert "s3cret" not in " ".join(process.argv)


def test_accelerate_joins_the_ranks_on_nodes_without_gpus_too():
    """Without the variable, Accelerate and transformers' Trainer train alone in each process there."""
    name = "ACCELERATE_USE_CPU"
    for options in ({}, {"nodes_min": 1, "nodes_max": 2}):
        assert load("torchrun").processes(replace(JOB, **options), ROSTER)[0].env[name] == "true"
    chosen = replace(JOB, env={name: "false"})
    assert name not in load("torchrun").processes(chosen, ROSTER)[0].env
    with_gpus = ROSTER._replace(nodes=tuple(node._replace(gpus=node.slots) for node in ROSTER.nodes))
    assert name not in load("torchrun").processes(JOB, with_gpus)[0].env


def test_an_elastic_torchrun_meets_where_the_head_is_and_takes_no_more_than_asked():
    first, last = load("torchrun").processes(replace(JOB, nodes_min=1, nodes_max=2, restarts=5), ROSTER)
    assert "--nnodes=1:2" in last.argv
    assert "--max-restarts=5" in last.argv
    assert f"--rdzv-endpoint={first.node}:29500" in last.argv
    assert [flag.endswith("is_host=true") for p in (first, last) for flag in p.argv if "rdzv-conf" in flag] == [
        True,
        False,
    ]
    assert last.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@pytest.mark.parametrize(
    ("launcher", "fewest", "message"), [("torchrun", 4, "there are 3"), ("mpi", 2, "can't continue with fewer nodes")]
)
def test_what_can_not_be_elastic_is_refused(launcher, fewest, message):
    with pytest.raises(RefusedError, match=message):
        ranks(launcher, nodes_min=fewest, nodes_max=8)


def test_dmlc_gives_every_process_its_role_and_addresses():
    job = replace(
        JOB, per_node=1, options={"servers": "2"}, role_env={"server": {"OMP_NUM_THREADS": "1"}}, first_port=20500
    )
    scheduler, *others = planned(load("dmlc"), job, ROSTER)
    assert [process.name for process in others] == ["server 0", "server 1", "worker 0", "worker 1", "worker 2"]
    assert [process.service for process in (scheduler, *others)] == [True] * 3 + [False] * 3
    assert scheduler.env == {
        "DMLC_ROLE": "scheduler",
        "DMLC_PS_ROOT_URI": "10.0.1.1",
        "DMLC_PS_ROOT_PORT": "20500",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "2",
        "DMLC_TASK_ID": "0",
        "DMLC_NODE_HOST": "10.0.1.1",
    }
    assert (scheduler.name, scheduler.node, scheduler.ports) == ("scheduler", "deeplearning-worker1", (20500,))
    server, worker = others[1], others[-1]
    assert (server.env["DMLC_ROLE"], server.env["DMLC_NODE_HOST"]) == ("server", "10.0.1.2")
    assert (server.env.get("OMP_NUM_THREADS"), worker.env.get("OMP_NUM_THREADS")) == ("1", None)
    assert worker.argv == JOB.command


def test_dmlc_leaves_the_address_to_the_interface_that_the_user_names():
    for process in load("dmlc").processes(replace(JOB, env={"DMLC_INTERFACE": "eth1"}), ROSTER):
        assert "DMLC_NODE_HOST" not in process.env


@pytest.mark.parametrize(("per_node", "seen"), [(1, ["0,1,2,3"]), (2, ["0,1", "2,3"]), (4, ["0", "1", "2", "3"])])
def test_dmlc_workers_of_one_node_share_its_gpus(per_node, seen):
    node = ROSTER.nodes[0]._replace(gpus=4)
    processes = load("dmlc").processes(replace(JOB, per_node=per_node), ROSTER._replace(nodes=(node,)))
    assert [p.env.get("CUDA_VISIBLE_DEVICES") for p in processes if p.role == "worker"] == seen


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_option_is_for_the_launchers_that_take_it(launcher):
    assert set(load(launcher).OPTIONS) <= set(OPTIONS)
    for name in set(OPTIONS) - set(load(launcher).OPTIONS):
        with raises_code("unknown-option", f"--{name}", launcher, kind=RefusedError):
            planned(load(launcher), replace(JOB, launcher=launcher, options={name: "1"}), ROSTER)


def test_a_job_with_hosts_has_those_nodes_in_their_order():
    job = replace(JOB, per_node=1, hosts=("deeplearning-worker3", "10.0.1.1"))
    assert [process.node[-1] for process in planned(load("exec"), job, ROSTER)] == ["3", "1"]
    with raises_code("no-node", "worker7", kind=RefusedError):
        planned(load("exec"), replace(job, hosts=("deeplearning-worker7", "deeplearning-worker1")), ROSTER)


def test_an_option_that_counts_takes_a_number():
    with pytest.raises(RefusedError, match="--servers is 'two'"):
        planned(load("dmlc"), replace(JOB, options={"servers": "two"}), ROSTER)


def test_a_jobs_ports_stay_among_its_own():
    job = replace(JOB, first_port=FIRST_PORT + PORTS - 1)
    assert [job.port(0), job.port(1)] == [FIRST_PORT + PORTS - 1, FIRST_PORT]


@pytest.mark.parametrize("launcher", ["mpi", "torchrun", "jax"])
def test_nodes_with_and_without_gpus_are_no_place_for_one_job_unless_n_per_node_says_how(launcher):
    first, *others = ROSTER.nodes
    mixed = ROSTER._replace(nodes=(first._replace(gpus=4), *others))
    with pytest.raises(RefusedError, match="deeplearning-worker1 has 4, deeplearning-worker2 has 0"):
        load(launcher).processes(replace(JOB, launcher=launcher), mixed)


@pytest.mark.parametrize("launcher", ["mpi", "torchrun", "exec", "ray"])
def test_engines_that_choose_a_gpu_by_local_rank_see_all_of_the_node(launcher):
    nodes = ROSTER._replace(nodes=tuple(node._replace(gpus=4) for node in ROSTER.nodes))
    processes = load(launcher).processes(replace(JOB, launcher=launcher, per_node=4), nodes)
    assert not [name for process in processes for name in process.env if "VISIBLE_DEVICES" in name]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_recipe_that_a_launcher_names_is_shipped_for_it(launcher):
    assert [recipe(name).launcher for name in load(launcher).RECIPES] == [launcher] * len(load(launcher).RECIPES)


@pytest.mark.parametrize(
    ("launcher", "missing", "suffix"),
    [
        (
            "mpi",
            "mpiexec",
            "; `--recipe openmpi` or `--recipe mpich` or `--recipe chainermn` or `--recipe chainercv` installs it",
        ),
        ("ray", "ray", "; `--recipe ray` installs it"),
        ("spark", "spark-class", "; `--recipe spark` installs it"),
        ("mpi", "./a.out", ""),
        ("exec", "nvidia-smi", ""),
    ],
)
def test_a_missing_engine_is_reported_with_its_recipes(launcher, missing, suffix):
    message = f"command '{missing}' is not on deeplearning-worker1 (PATH /bin)"
    assert with_recipes(load(launcher), f"{message}\nother") == f"{message}{suffix}\nother"


@pytest.mark.parametrize(
    ("launcher", "missing", "suffix"),
    [
        ("jax", "'jax'", ", or use `--recipe jax`"),
        ("dmlc", "'cv2', 'mxnet'", ", or use `--recipe mxnet`"),
        ("mpi", "'chainermn'", ", or use `--recipe chainermn`"),
        ("jax", "'flax'", ""),
        ("exec", "'jax'", ""),
    ],
)
def test_a_missing_engine_that_is_a_package_is_reported_with_its_recipe(launcher, missing, suffix):
    message = f"no module named {missing} on deeplearning-worker1, which t.py imports. Add it to requirements.txt"
    assert with_recipes(load(launcher), f"{message}\nother") == f"{message}{suffix}\nother"
