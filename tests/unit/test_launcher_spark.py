"""A Spark cluster for the time of a job: which processes the launcher describes."""

from __future__ import annotations

from dataclasses import replace

from fake_nodes import roster

from phalanx.launchers import load
from phalanx.runner.process import PreparedJob

JOB = PreparedJob(
    ("python", "p.py"), "spark", id="1", directory="/efs/.phalanx/jobs/1", first_port=21000, token="s3cret"
)


def settings(job: PreparedJob, nodes: int = 2, slots: int = 2) -> dict[str, str]:
    driver, *_ = load("spark").processes(job, roster(nodes, slots))
    return dict(line.split(" ", 1) for line in driver.files["spark-defaults.conf"].splitlines())


def test_the_command_is_the_driver_and_a_master_and_workers_serve_it():
    driver, master, *workers = load("spark").processes(JOB, roster(nodes=3, slots=4))
    assert driver.argv == ("/efs/.phalanx/jobs/1/after-master", *JOB.keeper("PHALANX_RANK"))
    assert (driver.service, driver.ranks, driver.env["PHALANX_RANK"]) == (False, {"deeplearning-worker1": 1}, "0")
    assert [(one.label, one.service, sum(one.ranks.values())) for one in (master, *workers)] == [
        ("master@deeplearning-worker1", True, 0),
        *((f"worker@deeplearning-worker{number}", True, 0) for number in (1, 2, 3)),
    ]
    assert [master.argv[0], *(worker.argv[:2] for worker in workers)] == [
        "spark-class",
        *(("/efs/.phalanx/jobs/1/after-master", "spark-class") for _ in workers),
    ]


def test_all_meet_at_the_masters_port_and_offer_as_many_cores_as_asked():
    _, master, *workers = load("spark").processes(replace(JOB, processes=5), roster(nodes=3, slots=4))
    assert master.argv[master.argv.index("--port") + 1] == "21000"
    assert {worker.argv[-1] for worker in workers} == {f"spark://{master.env['SPARK_LOCAL_IP']}:21000"}
    assert [worker.argv[worker.argv.index("--cores") + 1] for worker in workers] == ["4", "1"]
    assert [one.ports for one in (master, *workers)] == [(21000,), (21001,), (21001,)]
    assert [one.places for one in (master, workers[1])] == [{}, {"deeplearning-worker2": 1}]


def test_work_waits_for_the_cores_of_all_nodes():
    found = settings(JOB)
    assert (found["spark.cores.max"], found["spark.scheduler.minRegisteredResourcesRatio"]) == ("4", "1.0")


def test_joining_requires_the_jobs_secret_which_is_only_in_a_file():
    assert settings(JOB)["spark.authenticate.secret"] == "s3cret"
    for process in load("spark").processes(JOB, roster(2, 2)):
        assert "s3cret" not in " ".join((*process.argv, *process.env.values()))


def test_the_driver_waits_for_the_master_and_reports_one_that_does_not_start():
    driver, *_ = load("spark").processes(JOB, roster(2, 2))
    host = driver.env["SPARK_LOCAL_IP"]
    assert f"/dev/tcp/{host}/21000" in driver.files["after-master"]
    assert "its output begins with [master@deeplearning-worker1]" in driver.files["after-master"]
