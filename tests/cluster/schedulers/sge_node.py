"""Runs as root on each node: makes it a member of a Grid Engine cluster that the head controls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from packages import lay

ROOT = Path("/var/lib/gridengine")
SHARE = Path("/usr/share/gridengine")
SPOOL = Path("/var/spool/gridengine")
BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             true
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         /var/spool/gridengine/spooldb
binary_path             /usr/lib/gridengine
qmaster_spool_dir       /var/spool/gridengine/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
SETTINGS = "export SGE_ROOT=/var/lib/gridengine SGE_CELL=default SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445\n"
ENVIRONMENT = {"SGE_ROOT": str(ROOT), "SGE_CELL": "default", "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
PE = """\
pe_name            {name}
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    /bin/true
stop_proc_args     /bin/true
allocation_rule    {rule}
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""
QUEUE = {
    "qname": "all.q",
    "hostlist": "@lab",
    "pe_list": "spread each",
    "slots": "{slots}",
    "shell": "/bin/sh",
    "rerun": "FALSE",
    "load_thresholds": "NONE",
}


def main(packages: str) -> None:
    """Mount the packages over /usr and start the daemons."""
    lay(packages)
    nodes = json.loads(Path("/opt/phalanx/roster.json").read_text())["nodes"]
    head = next(node for node in nodes if node["head"])
    os.environ.update(ENVIRONMENT)
    shutil.copytree(f"{packages}{ROOT}", ROOT, symlinks=True)
    common = ROOT / "default" / "common"
    common.mkdir(parents=True)
    (common / "bootstrap").write_text(BOOTSTRAP)
    (common / "act_qmaster").write_text(head["hostname"] + "\n")
    # Nodes resolve an address to different first names, which Grid Engine considers different hosts.
    aliases = "".join("{hostname} {hostname}.ec2.internal {name}\n".format(**node) for node in nodes)
    (common / "host_aliases").write_text(aliases)
    Path("/etc/profile.d/sge.sh").write_text(SETTINGS)
    for name in ("qmaster/job_scripts", "spooldb", "execd"):
        (SPOOL / name).mkdir(parents=True)
    if Path("/etc/hostname").read_text().strip() == head["hostname"]:
        start_master(nodes)
    else:
        wait_for_master()
    sge("sge_execd")


def start_master(nodes: list[dict]) -> None:
    """Define a queue over all nodes and two parallel environments: round robin, and one slot per node."""
    sge("spoolinit", "berkeleydb", "libspoolb", str(SPOOL / "spooldb"), "init")
    configuration = (SHARE / "default-configuration").read_text()
    own = SPOOL / "configuration"
    own.write_text(
        configuration.replace("min_uid                1000", "min_uid                0")
        .replace("min_gid                1000", "min_gid                0")
        .replace("flush_time=00:00:15", "flush_time=00:00:01 accounting_flush_time=00:00:00")
    )
    sge("spooldefaults", "configuration", str(own))
    sge("spooldefaults", "complexes", str(SHARE / "util/resources/centry"))
    sge("spooldefaults", "usersets", str(SHARE / "util/resources/usersets"))
    sge("spooldefaults", "managers", "root")
    sge("sge_qmaster")
    wait_for_master()
    names = [node["hostname"] for node in nodes]
    define("-Ahgrp", f"group_name @lab\nhostlist {' '.join(names)}\n")
    define("-Ap", PE.format(name="spread", rule="$round_robin"))
    define("-Ap", PE.format(name="each", rule="1"))
    sge("qconf", "-Msconf", scheduler_settings())
    queue = sge("qconf", "-sq").stdout
    changed = {**QUEUE, "slots": str(nodes[0]["slots"])}
    define("-Aq", "\n".join(line_with(line, changed) for line in queue.replace("\\\n", " ").splitlines()) + "\n")
    # Last, because the other nodes wait for this.
    for flag in ("-ah", "-as"):
        sge("qconf", flag, ",".join(names))


def wait_for_master() -> None:
    deadline = time.monotonic() + 30
    asked = ["/usr/lib/gridengine/qconf", "-sh"]
    while subprocess.run(asked, capture_output=True, check=False).returncode and time.monotonic() < deadline:
        time.sleep(0.1)


def scheduler_settings() -> str:
    """Write the scheduler's settings to a file, with an interval of one second."""
    text = sge("qconf", "-ssconf").stdout
    path = SPOOL / "sconf"
    path.write_text(
        "\n".join("schedule_interval 0:0:1" if "schedule_interval" in line else line for line in text.splitlines())
        + "\n"
    )
    return str(path)


def line_with(line: str, changed: dict[str, str]) -> str:
    name = line.split()[0]
    return f"{name} {changed[name]}" if name in changed else line


def define(flag: str, text: str) -> None:
    path = SPOOL / "definition"
    path.write_text(text)
    sge("qconf", flag, str(path))


def sge(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [f"/usr/lib/gridengine/{arguments[0]}", *arguments[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done


main(sys.argv[1])
