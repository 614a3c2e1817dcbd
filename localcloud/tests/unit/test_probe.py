"""The probe reports what is missing and the command that fixes it."""

from __future__ import annotations

import dataclasses
import errno
import platform
import sys

import pytest

from localcloud.daemon import probe
from localcloud.daemon.probe import Host, Missing, diagnose
from localcloud.nodes import userns

UBUNTU = Host(
    user="ada",
    root=False,
    restricted_by_apparmor=False,
    clone_forbidden=False,
    max_user_namespaces=63000,
    has_newuidmap=True,
    python="/home/ada/venv/bin/python3.12",
)
APPARMOR = dataclasses.replace(UBUNTU, restricted_by_apparmor=True)


@pytest.mark.parametrize(
    ("step", "code", "host", "fix"),
    [
        ("uid_map", errno.EPERM, APPARMOR, "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        ("mount bind on /", errno.EACCES, APPARMOR, "profile localcloud /home/ada/venv/bin/python3.12"),
        ("unshare", errno.ENOSPC, UBUNTU, "sudo sysctl -w user.max_user_namespaces=65536"),
        (
            "unshare",
            errno.EPERM,
            dataclasses.replace(UBUNTU, clone_forbidden=True),
            "kernel.unprivileged_userns_clone=1",
        ),
        ("mount proc on /proc", errno.EPERM, UBUNTU, "docker run --privileged"),
        ("newgidmap", errno.ENOENT, dataclasses.replace(UBUNTU, has_newuidmap=False), "apt-get install -y uidmap"),
        ("subordinate ids", 0, UBUNTU, "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ada"),
        ("rtnetlink", errno.EOPNOTSUPP, UBUNTU, "sudo modprobe -a bridge veth overlay"),
        ("rtnetlink: No such file or directory (ENOENT)", errno.ENOENT, UBUNTU, "sch_ingress cls_bpf"),
        ("mount overlay on /etc", errno.ENODEV, UBUNTU, "sudo modprobe -a bridge veth overlay"),
    ],
)
def test_each_cause_has_its_remedy(step: str, code: int, host: Host, fix: str) -> None:
    assert fix in diagnose(step, code, "words of the kernel", host).fix


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("/usr/sbin/nft is not installed", "sudo apt-get install -y nftables"),
        ("the kernel does not allow net.bridge.bridge-nf-call-iptables: No such file", "sudo modprobe -a nf_tables"),
        ("/usr/sbin/nft: Error: Could not process rule: Operation not supported", "sudo modprobe -a nf_tables"),
    ],
)
def test_networks_that_can_not_be_filtered_are_open_for_a_reason_with_a_remedy(reason: str, fix: str) -> None:
    missing = probe.open_networks(reason)
    assert missing.what.startswith("Networks are open")
    assert reason in missing.what
    assert missing.fix.startswith(fix)


def test_an_unknown_failure_names_its_step() -> None:
    assert "mount devpts on /x" in diagnose("mount devpts on /x", errno.EIO, "I/O error", UBUNTU).what


def _modes(monkeypatch: pytest.MonkeyPatch, failures: dict[str, Missing]) -> None:
    monkeypatch.setattr(probe, "_missing_basics", tuple)
    monkeypatch.setattr(probe, "try_mode", failures.get)


def test_range_is_taken_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    _modes(monkeypatch, {})
    assert probe.find_mode() == probe.Verdict(True, "range", ())


def test_single_comes_with_a_warning_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _modes(monkeypatch, {"range": Missing("newuidmap is not installed.", "sudo apt-get install -y uidmap")})
    verdict = probe.find_mode()
    assert (verdict.ok, verdict.mode) == (True, "single")
    assert "so jobs run as root" in verdict.missing[0].what
    assert verdict.missing[0].fix == "sudo apt-get install -y uidmap"


def test_where_nothing_works_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Missing("no", "do")
    _modes(monkeypatch, {"range": Missing("x", "y"), "single": problem, "root": problem})
    assert probe.find_mode() == probe.Verdict(False, "", (problem,))
    assert probe.find_mode("root") == probe.Verdict(False, "", (problem,))


def test_an_ordinary_user_who_asks_for_the_mode_root_gets_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.os, "geteuid", lambda: 1001)
    monkeypatch.setattr(probe, "_run_trial", lambda *_: pytest.fail("it was tried"))
    problem = probe.try_mode("root")
    assert problem is not None
    assert "needs root" in problem.what
    assert "Choose no mode" in problem.fix


def test_another_system_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    verdict = probe.find_mode()
    assert not verdict.ok
    assert "Darwin" in verdict.missing[0].what


def test_an_old_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "5.4.0-200-generic")
    assert "5.12" in probe.find_mode().missing[0].what


def test_absent_programs_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.os, "access", lambda path, _mode: False)
    packages = ["openssh-server", "openssh-client", "openssh-client", "util-linux"]
    assert [missing.fix.split()[-1] for missing in probe.find_mode().missing] == packages


def test_own_ids_map_to_themselves() -> None:
    assert userns.identity_map("         0          0 4294967295\n") == "0 0 4294967295\n"
    assert userns.identity_map("0 1000 1\n1 100000 65536\n") == "0 0 1\n1 1 65536\n"


def test_the_first_large_enough_range_is_taken(tmp_path) -> None:
    file = tmp_path / "subuid"
    file.write_text("bob:100000:65536\nada:165536:1000\n1000:300000:65536\nada:400000:65536\n")
    assert userns.subordinate_range(file, "ada", 1000) == (300000, 65536)
    with pytest.raises(userns.NamespaceError, match="no line with 65536 ids for eve"):
        userns.subordinate_range(file, "eve", 1001)
