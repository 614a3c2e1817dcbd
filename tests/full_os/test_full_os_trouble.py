"""The system's own services in the way: apt's locks held at boot, and upgrades while a job runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_systems import IMAGE, SPEC, UP_S, a_copy_of_the_image, a_full_cluster, as_nodes_root, as_root, nodes
from local_clouds import bad_weather
from terminals import a_terminal

pytestmark = pytest.mark.full_os

# Long enough for the first attempt to fail: cloud-init comes to it 5 s after the boot, or 30 s on a busy machine.
HELD_S = 60
_HOLD = f"""import fcntl, time; \
files = [open(name, 'w') for name in ('/var/lib/apt/lists/lock', '/var/lib/dpkg/lock-frontend')]; \
[fcntl.lockf(file, fcntl.LOCK_EX) for file in files]; time.sleep({HELD_S})"""
# Like apt-daily at an AMI's first boot: it takes the lock of the lists, and that of dpkg.
_HOLDER = f"""[Unit]
DefaultDependencies=no
After=local-fs.target
Before=cloud-final.service

[Service]
ExecStart=/usr/bin/python3 -c "{_HOLD}"

[Install]
WantedBy=sysinit.target
"""


def hold_apts_locks(tree: Path, scratch: Path) -> None:
    """Enable a service in the image that holds apt's locks for the first part of each boot."""
    unit = scratch / "apt-held.service"
    unit.write_text(_HOLDER)
    units = tree / "etc/systemd/system"
    as_nodes_root(["cp", str(unit), str(units)])
    as_nodes_root(["mkdir", "-p", str(units / "sysinit.target.wants")])
    as_nodes_root(["ln", "-s", f"../{unit.name}", str(units / "sysinit.target.wants")])


def test_nodes_wait_for_an_apt_that_runs_at_boot(tmp_path, monkeypatch):
    """apt-get waits for dpkg's lock, but not for the lists': it fails in less than a second."""
    with a_copy_of_the_image() as place:
        hold_apts_locks(place / "phalanx/images" / IMAGE / "tree", tmp_path)
        monkeypatch.setenv("XDG_DATA_HOME", str(place))
        with a_full_cluster("aptheld", 2) as terminal:
            log = as_root(terminal, "worker2", "cat /var/log/cloud-init-output.log")
            assert "Could not get lock" in log and "; trying again" in log, log
            assert terminal.on("worker2", "command -v mpiexec").strip() == "/usr/bin/mpiexec"


def test_nodes_insist_where_apt_is_busy_and_no_mirror_answers():
    with a_terminal(f"name: aptbusy\nnodes: 2\nmin: 2\n{SPEC}") as terminal:
        with bad_weather(terminal, 3, "packages", speed=3):
            terminal.phalanx("up", timeout_s=UP_S)
        for console in terminal.state.glob("local/nodes/*/console.log"):
            log = console.read_text(errors="replace")
            assert "Could not get lock" in log and "connect to 127.0.0.1:9" in log, log
        assert terminal.on("worker2", "command -v mpiexec").strip() == "/usr/bin/mpiexec"
        terminal.phalanx("down", "--yes")


def test_upgrades_during_a_job_do_not_disturb_it():
    with a_full_cluster("upgrades", 2) as terminal:
        before = nodes(terminal)
        job = terminal.start("run", "--launcher", "exec", "--", "sh", "-c", "sleep 30; echo done")
        as_root(terminal, "worker2", "apt-get -qq update; unattended-upgrade --verbose")
        as_root(terminal, "worker2", "systemctl start apt-daily.service apt-daily-upgrade.service")
        output, errors = job.communicate(timeout=300)
        assert job.returncode == 0 and output.count("done") == 2, errors
        assert nodes(terminal) == before
