"""The shared directory is mounted: what is installed, waited for and refused, with commands that only record."""

from __future__ import annotations

import os

import pytest

from phalanx.node import command, files, mount, worker
from phalanx.node.command import CommandError


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
        self.root_uid, self.root_mode = 0, 0o40755
        real = os.stat

        def stat(path, **more):
            found = real(path, **more)
            if not str(path).endswith("/efs"):
                return found
            return os.stat_result((self.root_mode, *found[1:4], self.root_uid, *found[5:]))

        monkeypatch.setattr(mount.os, "stat", stat)
        monkeypatch.setattr(mount.files, "chown", lambda path, owner: self.owned.append(path))
        monkeypatch.setattr(mount.os, "chown", lambda path, *_, **__: self.owned.append(path))
        monkeypatch.setattr(mount.files, "read", lambda _: "LABEL=root / ext4 defaults 0 1\n")
        monkeypatch.setattr(mount.files, "write", lambda path, text, **_: self.written.append((path, text)))
        self.written: list[tuple[str, str]] = []
        return ran

    def mounted(self, tmp_path, monkeypatch, *helpers: str) -> None:
        exists = mount.os.path.exists
        monkeypatch.setattr(mount.os.path, "exists", lambda p: p in helpers if p.startswith("/sbin/") else exists(p))
        source = mount.of_efs("fs-1", "efs.us-east-1.amazonaws.com")
        self.said: list[str] = []
        mount.mount(source, str(tmp_path / "efs"), 2000, 240, self.said.append)

    def test_by_the_helper_where_there_is_one(self, commands, tmp_path, monkeypatch):
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.efs", "/sbin/mount.nfs4")
        assert commands == [f"mount -t efs -o tls,nosuid,nodev fs-1:/ {tmp_path}/efs"]
        ((path, text),) = self.written
        assert path == "/etc/fstab" and text.startswith("LABEL=root / ")
        assert f"\nfs-1:/ {tmp_path}/efs efs _netdev,tls,nosuid,nodev 0 0\n" in text

    def test_never_by_nfs_where_tls_is_required(self, monkeypatch):
        monkeypatch.setattr(mount.os.path, "exists", lambda _: False)
        with pytest.raises(CommandError, match="amazon-efs-utils"):
            mount.of_efs("fs-1", "efs.us-east-1.amazonaws.com", tls=True)

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

    @pytest.mark.parametrize(("uid", "mode"), [(1000, 0o40755), (0, 0o41777)])
    def test_an_empty_one_whose_root_was_given_to_somebody_keeps_its_owner(
        self, commands, tmp_path, monkeypatch, uid, mode
    ):
        self.root_uid, self.root_mode = uid, mode
        self.mounted(tmp_path, monkeypatch, "/sbin/mount.nfs4")
        assert self.owned == [f"{tmp_path}/efs/.phalanx"]
        advice = f"{tmp_path}/efs belongs to uid {uid}: jobs can write only where uid 2000 may"
        assert self.said == ([] if mode & 2 else [advice])

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


@pytest.mark.parametrize(("elapsed_s", "nodes", "about_s"), [(0, 4, 0.1), (10, 4, 10 / 3), (600, 4, 5), (0, 1000, 0.5)])
def test_polling_costs_a_third_of_the_wait(elapsed_s, nodes, about_s):
    for _ in range(20):
        assert 0.69 * about_s <= worker.poll_pause_s(elapsed_s, nodes, settled_s=0) <= 1.31 * about_s
