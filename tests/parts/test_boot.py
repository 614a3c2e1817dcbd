"""A boot step that fails: the command, its output, and the report; and how commands are run."""

from __future__ import annotations

import itertools
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.node import boot, command, failure, loader, outcome, packages
from phalanx.node.aws_client import AwsError
from phalanx.node.command import CommandError, run
from phalanx.node.settings import ON_AWS


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


def test_a_node_that_needs_efa_proves_that_libfabric_offers_it(tmp_path):
    settings = SimpleNamespace(efa="1", head=False, address="", node_timeout_s=600, job_user="phalanx")
    agent = cast("Any", SimpleNamespace(settings=settings, root=str(tmp_path)))
    with_efa = dict(boot.steps(agent))
    with pytest.raises(CommandError, match="/opt/amazon/efa/bin/fi_info"):
        with_efa["fabric"]()
    settings.efa = ""
    assert [*dict(boot.steps(agent))] == [name for name in with_efa if name != "fabric"]


@pytest.mark.parametrize("there", [31, 32])
def test_every_adapter_counts_and_jobs_may_lock_the_memory_that_adapters_need(tmp_path, monkeypatch, there):
    monkeypatch.setattr(boot, "OFFERS_EFA", ["true"])
    for number, driver in enumerate(["efa"] * there + ["mlx5_core"]):
        device = tmp_path / f"sys/class/infiniband/rdmap{number}/device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    if there < 32:
        with pytest.raises(CommandError, match="31 of 32"):
            boot.see_adapters(32, "phalanx", 10, str(tmp_path))
        return
    boot.see_adapters(32, "phalanx", 10, str(tmp_path))
    assert (tmp_path / boot.MEMORY_LIMIT.lstrip("/")).read_text() == "phalanx - memlock unlimited\n"


class TestAddress:
    """The step in which a head takes the cluster's Elastic IP."""

    @staticmethod
    def taken(monkeypatch, answers: list[AwsError | None], seconds_each: float = 1) -> tuple[list[str], list[str]]:
        """Run the step against these answers of EC2; return what was said, and what was done to connections."""
        said: list[str] = []
        done: list[str] = []
        clock = itertools.count(0, seconds_each)

        def answer(*_asked: str) -> None:
            error = answers.pop(0)
            if error:
                raise error

        settings = SimpleNamespace(efa="", head=True, file_system="fs-1", address="eipalloc-1", node_timeout_s=100)
        settings.patience = ON_AWS
        agent = SimpleNamespace(settings=settings, root="", log=SimpleNamespace(say=said.append))
        agent.identity, agent.fleet = SimpleNamespace(instance_id="i-1"), SimpleNamespace(take_address=answer)
        monkeypatch.setattr(boot.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(boot.wire, "forget", lambda: done.append("forgotten"))
        monkeypatch.setattr(boot.wire, "pause", lambda count, _longest_s: done.append(f"pause {count}"))
        step, take = boot.steps(cast("Any", agent))[0]
        assert step == "address"
        take()
        return said, done

    def test_it_is_taken_again_and_again_and_then_connections_from_the_old_one_are_closed(self, monkeypatch):
        refused = [AwsError("AssociateAddress", code, "not yet") for code in ("", "Resource.AlreadyAssociated")]
        said, done = self.taken(monkeypatch, [*refused, None])
        assert said == [
            "AssociateAddress: not yet; trying again",
            "AssociateAddress: Resource.AlreadyAssociated: not yet; trying again",
        ]
        assert done == ["pause 0", "pause 1", "forgotten"], "EC2 is not called without a pause"

    @pytest.mark.parametrize(("code", "seconds_each"), [("UnauthorizedOperation", 1), ("", 60)])
    def test_a_denial_and_the_end_of_its_time_are_final(self, monkeypatch, code, seconds_each):
        with pytest.raises(AwsError, match="never"):
            self.taken(monkeypatch, [AwsError("AssociateAddress", code, "never")], seconds_each)


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
    failure.report(
        SimpleNamespace(head=True, wait_handle="url", patience=ON_AWS), None, "identity", OSError("no metadata")
    )
    ((url, status, text, _),) = signals
    assert (url, status) == ("url", "FAILURE")
    assert "boot step 'identity' failed" in text and "no metadata" in text


@pytest.mark.parametrize(("head", "ready", "ended"), [(True, True, ["i-7"]), (True, False, []), (False, True, [])])
def test_only_a_head_of_a_ready_cluster_makes_way_for_another(monkeypatch, head, ready, ended):
    terminated: list[str] = []
    monkeypatch.setattr(failure.time, "sleep", lambda _: None)
    agent = SimpleNamespace(
        settings=SimpleNamespace(head=head, node_timeout_s=300, patience=ON_AWS),
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

    @pytest.mark.parametrize(("machine", "libraries"), [("x86_64", ["libquadmath0"]), ("aarch64", [])])
    def test_a_plain_image_lacks_mpi_venv_nfs_and_libraries(self, tmp_path, monkeypatch, machine, libraries):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        monkeypatch.setattr(packages.os, "uname", lambda: SimpleNamespace(machine=machine))
        path = self.image(tmp_path)
        wanted = ["nfs-common", "openmpi-bin", "python3-venv", "libgomp1", *libraries]
        assert packages.lacking(path, str(tmp_path)) == wanted

    def test_an_image_that_has_all_of_it_gets_nothing(self, tmp_path):
        libraries = [f"usr/lib/{os.uname().machine}-linux-gnu/{name}" for name in ("libgomp.so.1", "libquadmath.so.0")]
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
