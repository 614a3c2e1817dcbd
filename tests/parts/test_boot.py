"""A boot step that fails: the command, its output, and the report; and how commands are run."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.node import boot, command, failure, files, loader, mount, outcome, packages, worker
from phalanx.node.command import CommandError, run


def run_script(root, text: str) -> list[str]:
    shown: list[str] = []
    script = root / "boot-script"
    script.write_text(text)
    script.chmod(0o700)
    settings = SimpleNamespace(region="r", shared="/efs", job_user="phalanx")
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    settings.node_timeout_s, settings.head = 60, False
    agent = SimpleNamespace(settings=settings, root=str(root), log=SimpleNamespace(say=shown.append))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loader, "SCRIPT", str(script))
        boot._run_script(agent)
    return shown


def test_the_boot_script_runs_and_its_output_is_logged(tmp_path):
    assert run_script(tmp_path, "echo $EFS_MOUNT\necho two >&2\n") == ["/efs", "two"]


def test_the_first_command_that_fails_ends_it_and_is_named(tmp_path):
    with pytest.raises(CommandError) as caught:
        run_script(tmp_path, "echo begin\nls /does-not-exist\necho never\n")
    assert caught.value.command == "the boot script"
    assert caught.value.status == 2
    assert "ls /does-not-exist" in caught.value.output and "line 2" in caught.value.output
    assert "never" not in caught.value.output


def test_a_script_may_bring_its_own_interpreter(tmp_path):
    assert run_script(tmp_path, "#!/usr/bin/env python3\nprint(6 * 7)\n") == ["42"]


def test_it_runs_once_even_if_the_boot_is_taken_up_again(tmp_path):
    assert run_script(tmp_path, "echo once\n") == ["once"]
    assert run_script(tmp_path, "echo twice\n") == []


def test_a_restart_of_the_machine_while_it_runs_is_its_failure(tmp_path):
    (tmp_path / "opt/phalanx").mkdir(parents=True)
    (tmp_path / "opt/phalanx/boot-script").write_text("began")
    with pytest.raises(CommandError, match="the boot script: exit 1: the machine restarted while it ran"):
        run_script(tmp_path, "echo again\n")


def test_a_service_left_behind_does_not_hold_the_boot(tmp_path):
    service = int(run(["sh", "-c", "sleep 600 & echo $!"], 60))
    os.kill(service, signal.SIGKILL)


def test_a_node_that_needs_efa_first_proves_that_libfabric_offers_it(tmp_path):
    settings = SimpleNamespace(efa="1", head=False, address="", node_timeout_s=600)
    agent = cast("Any", SimpleNamespace(settings=settings, root=str(tmp_path)))
    (step, check), *others = boot.steps(agent)
    assert step == "fabric"
    with pytest.raises(CommandError, match="/opt/amazon/efa/bin/fi_info"):
        check()
    settings.efa = ""
    assert [name for name, _ in boot.steps(agent)] == [name for name, _ in others]


def test_a_command_that_does_not_exist():
    with pytest.raises(CommandError) as caught:
        run(["no-such-command"], 5)
    assert caught.value.status == 127 and "No such file" in caught.value.output


def test_a_command_that_does_not_end():
    with pytest.raises(CommandError) as caught:
        run(["sh", "-c", "echo before; sleep 60"], 1.9)
    assert caught.value.status == 124 and "time is up" in caught.value.output and "before" in caught.value.output


def test_only_the_end_of_much_output_is_reported():
    with pytest.raises(CommandError) as caught:
        run(["sh", "-c", "seq 100000; exit 3"], 20)
    assert len(caught.value.output) <= 2048 and caught.value.output.endswith("100000")


def test_a_failed_boot_in_words():
    message = {"instance_id": "i-1", "step": "boot script", "command": "x", "exit": 2, "output": "no disk"}
    assert outcome.boot_failure(message) == "boot step 'boot script' failed on i-1: x: exit 2: no disk"


class Reports:
    """An agent whose messages and log are recorded."""

    def __init__(self) -> None:
        self.identity = SimpleNamespace(instance_id="i-7")
        self.order: list[str] = []
        self.messages: list[tuple[str, dict]] = []
        self.log = SimpleNamespace(say=lambda _: self.order.append("said"), close=lambda: self.order.append("shipped"))

    def report(self, kind: str, **content) -> None:
        self.order.append("sent")
        self.messages.append((kind, content))


def test_a_worker_reports_to_the_head_after_its_log_is_shipped():
    reported = Reports()
    failure.report(SimpleNamespace(head=False), reported, "boot script", CommandError("the boot script", 9, "no disk"))
    assert reported.order == ["said", "shipped", "sent"]
    content = {"step": "boot script", "command": "the boot script", "exit": 9, "output": "no disk"}
    assert reported.messages == [("failed", content)]


def test_a_head_reports_to_cloudformation(monkeypatch):
    signals = []
    monkeypatch.setattr(failure.outcome, "signal", lambda *reported: signals.append(reported))
    failure.report(SimpleNamespace(head=True, wait_handle="url"), None, "identity", OSError("no metadata"))
    ((url, status, text),) = signals
    assert (url, status) == ("url", "FAILURE")
    assert "boot step 'identity' failed" in text and "no metadata" in text


@pytest.mark.parametrize(("head", "ready", "ended"), [(True, True, ["i-7"]), (True, False, []), (False, True, [])])
def test_only_a_head_of_a_ready_cluster_makes_way_for_another(monkeypatch, head, ready, ended):
    terminated: list[str] = []
    monkeypatch.setattr(failure.time, "sleep", lambda _: None)
    agent = SimpleNamespace(
        settings=SimpleNamespace(head=head, node_timeout_s=300),
        identity=SimpleNamespace(instance_id="i-7"),
        table=SimpleNamespace(get=lambda _: {"ready": ready}),
        fleet=SimpleNamespace(terminate=lambda instance_id, replaced: terminated.append(instance_id)),
    )
    failure.make_way(agent)  # type: ignore[arg-type]
    assert terminated == ended


def test_a_bug_of_ours_is_reported_with_its_place():
    reported = Reports()
    try:
        raise KeyError("number")
    except KeyError as error:
        failure.report(SimpleNamespace(head=False), reported, "agent", error)
    assert "test_boot.py" in reported.messages[0][1]["output"]


class TestMount:
    @pytest.fixture
    def commands(self, monkeypatch):
        ran: list[str] = []
        self.failures: list[CommandError] = []

        def fake(argv, timeout_s, *_, **__):
            ran.append(" ".join(argv))
            if self.failures:
                raise self.failures.pop(0)
            return ""

        monkeypatch.setattr(command, "run", fake)
        monkeypatch.setattr(command.time, "sleep", lambda _: None)
        self.owned: list[str] = []
        monkeypatch.setattr(mount.files, "chown", lambda path, owner: self.owned.append(path))
        monkeypatch.setattr(mount.os, "chown", lambda path, *_, **__: self.owned.append(path))
        monkeypatch.setattr(mount.files, "read", lambda _: "LABEL=root / ext4 defaults 0 1\n")
        monkeypatch.setattr(mount.files, "write", lambda path, text: self.written.append((path, text)))
        self.written: list[tuple[str, str]] = []
        return ran

    def mounted(self, tmp_path, monkeypatch, *helpers: str) -> None:
        exists = mount.os.path.exists
        monkeypatch.setattr(mount.os.path, "exists", lambda p: p in helpers if p.startswith("/sbin/") else exists(p))
        source = mount.of_efs("fs-1", "efs.us-east-1.amazonaws.com")
        mount.mount(source, str(tmp_path / "efs"), 2000, 240, lambda _: None)

    def test_by_the_helper_where_there_is_one(self, commands, tmp_path, monkeypatch):
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.efs", "/sbin/mount.nfs4")
        assert commands == [f"mount -t efs -o tls,nosuid,nodev fs-1:/ {tmp_path}/efs"]
        ((path, text),) = self.written
        assert path == "/etc/fstab" and text.startswith("LABEL=root / ")
        assert f"\nfs-1:/ {tmp_path}/efs efs _netdev,tls,nosuid,nodev 0 0\n" in text

    def test_by_nfs_otherwise(self, commands, tmp_path, monkeypatch):
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        (command,) = commands
        assert command.startswith("mount -t nfs4 -o nosuid,nodev,nfsvers=4.1,rsize=1048576")
        assert "fs-1.efs.us-east-1.amazonaws.com:/" in command

    def test_a_head_may_serve_it(self, commands, tmp_path, monkeypatch):
        monkeypatch.setattr(mount, "run", lambda argv, _timeout_s: commands.append(" ".join(argv)))
        monkeypatch.setattr(mount.os.path, "isdir", lambda path: True)
        mount.serve(str(tmp_path / "efs"), 2000, "10.0.0.0/24,10.0.8.0/24")
        bind, *served = commands
        assert bind.endswith(f" {tmp_path}/efs bind,nosuid,nodev")
        assert served == ["systemctl enable --now nfs-server", "sh -c exportfs -ra"]
        (_, table), (path, text) = self.written
        assert f"\n{tmp_path}/efs {tmp_path}/efs none bind,nosuid,nodev 0 0\n" in table
        assert path == "/etc/exports.d/phalanx.exports"
        options = "(rw,no_subtree_check,no_root_squash)"
        assert text == f"{tmp_path}/efs 10.0.0.0/24{options} 10.0.8.0/24{options}\n"
        assert self.owned == [f"{tmp_path}/efs"]

    def test_what_a_head_serves_is_mounted_once_it_does(self, commands, tmp_path, monkeypatch):
        self.failures += [CommandError("mount", 32, "access denied by server")] * 3
        mount.mount(mount.of_head("10.0.0.9", "/efs"), str(tmp_path / "efs"), 2000, 240, lambda _: None)
        assert len(commands) == 4 and " 10.0.0.9:/efs " in commands[0] and "noresvport" not in commands[0]
        ((_, text),) = self.written
        assert f"10.0.0.9:/efs {tmp_path}/efs nfs4 _netdev,nosuid,nodev,nfsvers=4.1," in text

    def test_a_new_heads_directory_takes_the_place_of_the_old_ones(self, commands, tmp_path, monkeypatch):
        table = files.with_block(
            "", f"10.0.0.9:/efs {tmp_path}/efs nfs4 _netdev 0 0\nLABEL=x /scratch ext4 nofail 0 0\n"
        )
        monkeypatch.setattr(mount.files, "read", lambda _: table)
        monkeypatch.setattr(mount, "run", lambda argv, _timeout_s: commands.append(" ".join(argv)))
        mount.follow(mount.of_head("10.0.0.7", "/efs"), str(tmp_path / "efs"), 2000, 240, lambda _: None)
        assert commands[0] == f"umount -f -l {tmp_path}/efs"
        ((_, text),) = self.written
        assert "10.0.0.9" not in text and "\n10.0.0.7:/efs " in text and "LABEL=x /scratch" in text

    def test_a_new_file_system_belongs_to_the_job_user(self, commands, tmp_path, monkeypatch):
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        assert self.owned == [f"{tmp_path}/efs"]

    def test_the_root_of_a_file_system_with_data_keeps_its_owner(self, commands, tmp_path, monkeypatch):
        (tmp_path / "efs/data").mkdir(parents=True)
        for _ in range(2):
            self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
            assert self.owned == [f"{tmp_path}/efs/.phalanx"]

    def test_a_link_that_a_job_left_is_not_followed(self, commands, tmp_path, monkeypatch):
        (tmp_path / "efs").mkdir()
        (tmp_path / "efs/.phalanx").symlink_to("/etc")
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        assert self.owned == []

    def test_a_name_that_does_not_resolve_yet_is_tried_again(self, commands, tmp_path, monkeypatch):
        self.failures += [CommandError("mount", 32, "Failed to resolve server fs-1.efs: Name or service not known")] * 3
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        assert len(commands) == 4

    PLACE = "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh"

    def lustre(self, tmp_path, linked: str = "") -> None:
        mount.mount(mount.of_lustre(self.PLACE), str(tmp_path / "efs"), 2000, 240, lambda _: None, linked)

    def test_lustre_is_mounted_by_its_client_now_and_at_each_boot(self, commands, tmp_path):
        self.lustre(tmp_path)
        assert commands == [f"mount -t lustre -o relatime,flock,nosuid,nodev {self.PLACE} {tmp_path}/efs"]
        line = f"{self.PLACE} {tmp_path}/efs lustre _netdev,relatime,flock,nosuid,nodev 0 0"
        assert line in self.written[0][1].splitlines()

    @pytest.mark.parametrize(
        ("trouble", "tries"),
        [
            (f"mount.lustre: Can't parse NID '{PLACE}'", 3),
            ("mount.lustre: mount x at /efs failed: Connection timed out", 3),
            ("mount.lustre: mount x at /efs failed: Input/output error Is the MGS running?", 3),
            ("time is up after 200.0 s", 3),
            ("mount.lustre: mount x at /efs failed: No such file or directory", 1),
            ("mount.lustre: mount x at /efs failed: No such device\nAre the lustre modules loaded?", 1),
        ],
    )
    def test_servers_of_lustre_that_do_not_answer_yet_are_tried_again(self, commands, tmp_path, trouble, tries):
        self.failures += [CommandError("mount", 1, trouble)] * 2
        if tries == 1:
            with pytest.raises(CommandError, match="failed:"):
                self.lustre(tmp_path)
        else:
            self.lustre(tmp_path)
        assert len(commands) == tries

    def test_a_security_group_without_lustre_s_port_fails_the_boot_with_that_reason(
        self, commands, tmp_path, monkeypatch
    ):
        self.failures += [CommandError("mount", 110, "mount.lustre: mount x failed: Connection timed out")] * 1000
        clock = iter(range(0, 1_000_000, 130))
        monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
        with pytest.raises(CommandError, match="Connection timed out"):
            self.lustre(tmp_path)

    def test_jobs_may_write_only_where_a_linked_prefix_is_theirs(self, commands, tmp_path):
        for name in ("data/read", "data/runs"):
            (tmp_path / "efs" / name).mkdir(parents=True)
        self.lustre(tmp_path, "read,runs+")
        assert self.owned == [f"{tmp_path}/efs/{name}".rstrip("/") for name in ("data/runs", "data", "")]

    def test_a_used_file_system_with_links_keeps_its_owners(self, commands, tmp_path, monkeypatch):
        (tmp_path / "efs/data/runs").mkdir(parents=True)
        (tmp_path / "efs/.phalanx").mkdir()
        self.lustre(tmp_path, "runs+")
        assert self.owned == []

    def test_a_job_that_leaves_only_links_in_its_file_system_gets_nothing_that_they_lead_to(self, commands, tmp_path):
        (tmp_path / "efs/data").mkdir(parents=True)
        (tmp_path / "efs/data/runs").symlink_to("/etc")
        place, itself = mount.of_lustre(self.PLACE), os.getuid()
        mount.mount(place, str(tmp_path / "efs"), itself, 240, lambda _: None, "runs+")
        assert self.owned == []

    def test_a_permanent_error_fails_at_once(self, commands, tmp_path, monkeypatch):
        self.failures += [CommandError("mount", 32, "access denied by server")]
        with pytest.raises(CommandError, match="access denied"):
            self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        assert len(commands) == 1


@pytest.mark.parametrize(
    ("elapsed_s", "workers", "about_s"), [(0, 4, 0.1), (10, 4, 10 / 3), (600, 4, 5), (0, 1000, 0.5)]
)
def test_polling_costs_a_third_of_the_wait(elapsed_s, workers, about_s):
    for _ in range(20):
        assert 0.69 * about_s <= worker.poll_pause_s(elapsed_s, workers, settled_s=0) <= 1.31 * about_s


class TestPackages:
    @pytest.fixture
    def commands(self, monkeypatch):
        ran: list[str] = []
        self.failures: list[CommandError] = []

        def fake(argv, timeout_s, *_, **__):
            ran.append(argv[-1])
            if self.failures:
                raise self.failures.pop(0)
            return ""

        monkeypatch.setattr(command, "run", fake)
        monkeypatch.setattr(command.time, "sleep", lambda _: None)
        return ran

    def image(self, root, *programs: str) -> str:
        """Make an image with these programs and return its PATH."""
        for name in ("usr/bin/apt-get", *programs):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch(mode=0o755)
        return f"{root}/usr/bin:{root}/opt/mpi/bin"

    def test_a_plain_image_lacks_mpi_venv_and_nfs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
        path = self.image(tmp_path)
        wanted = ["nfs-common", "openmpi-bin", "python3-venv", "libgomp1", "libgfortran5"]
        assert packages.lacking(path, str(tmp_path)) == wanted

    def test_an_image_that_has_all_of_it_gets_nothing(self, tmp_path):
        libraries = [f"usr/lib/x86_64-linux-gnu/{name}" for name in ("libgomp.so.1", "libgfortran.so.5")]
        path = self.image(tmp_path, "sbin/mount.efs", "opt/mpi/bin/mpiexec", *libraries)
        assert packages.lacking(path, str(tmp_path)) == []

    def test_nothing_is_installed_without_apt(self, tmp_path):
        self.image(tmp_path)
        (tmp_path / "usr/bin/apt-get").unlink()
        assert packages.lacking("/nowhere", str(tmp_path)) == []

    @pytest.mark.parametrize(
        "trouble",
        [
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 512 (apt-get)",
            "E: Failed to fetch 503",
        ],
    )
    def test_an_installation_that_fails_is_tried_again(self, commands, trouble):
        """apt waits for dpkg's lock, but not for that of its lists, which apt-daily may hold for minutes."""
        self.failures += [CommandError("sh", 100, trouble)] * 3
        shown: list[str] = []
        packages.install(["nfs-common", "openmpi-bin"], 240, shown.append)
        assert len(commands) == 4 and commands[0].endswith("install -y --no-install-recommends nfs-common openmpi-bin")
        assert shown[0] == "installing nfs-common openmpi-bin" and trouble in shown[1]

    def test_lustre_s_client_comes_from_the_image_or_from_fsx_or_from_amazon_linux(self, commands, tmp_path):
        root = str(tmp_path)
        packages.install_lustre(240, lambda _: None, root)
        self.image(tmp_path)
        packages.install_lustre(240, lambda _: None, root)
        self.image(tmp_path, "sbin/mount.lustre")
        packages.install_lustre(240, lambda _: None, root)
        by_dnf, by_apt = commands
        assert by_dnf == "dnf -q -y install lustre-client"
        assert by_apt.rstrip().endswith("--no-install-recommends lustre-client-modules-$(uname -r)")
        assert "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu $VERSION_CODENAME main" in by_apt

    @pytest.mark.parametrize(
        ("trouble", "tries"),
        [
            ("Reading lists...\nE: Unable to locate package lustre-client-modules-6.17.0-1007-aws\n", 1),
            ("Error: Unable to find a match: lustre-client", 1),
            ("curl: (6) Could not resolve host", 2),
        ],
    )
    def test_a_kernel_without_a_client_fails_at_once(self, commands, tmp_path, trouble, tries):
        self.failures += [CommandError("sh", 100, trouble)]
        if tries == 1:
            with pytest.raises(CommandError, match="Unable to"):
                packages.install_lustre(240, lambda _: None, str(tmp_path))
        else:
            packages.install_lustre(240, lambda _: None, str(tmp_path))
        assert len(commands) == tries

    def test_an_installation_that_keeps_failing_ends_with_its_reason(self, commands, monkeypatch):
        self.failures += [CommandError("sh", 100, "no mirror")] * 1000
        clock = iter(range(0, 1_000_000, 10))
        monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
        with pytest.raises(CommandError, match="no mirror"):
            packages.install(["openmpi-bin"], 240, lambda _: None)
        assert 10 < len(commands) < 30
