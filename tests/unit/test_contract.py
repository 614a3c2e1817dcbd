"""The files of the node contract, and how they change with the roster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rosters import ROSTER, a_node
from small_image import MACHINE, PAPERS, apply, small_image

from phalanx.node import account, contract, files, logins, validate


@pytest.fixture
def root(tmp_path):
    return small_image(tmp_path)


def everything(root) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_the_documented_files(root):
    apply(root)
    assert (root / "opt/deeplearning/workers").read_text() == "deeplearning-worker1\ndeeplearning-worker2\n"
    hostfile = (root / "opt/phalanx/hostfile").read_text()
    assert hostfile == "deeplearning-worker1 slots=2\ndeeplearning-worker2 slots=2\n"
    assert validate.roster((root / "opt/phalanx/roster.json").read_text()) == ROSTER
    hosts = (root / "etc/hosts").read_text().splitlines()
    assert hosts[0] == "127.0.0.1 localhost"
    assert "10.0.1.11 deeplearning-worker1 deeplearning-master ip-10-0-1-11" in hosts
    assert "10.0.1.12 deeplearning-worker2 ip-10-0-1-12" in hosts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("127.0.1.1 ip-10-0-1-12.ec2.internal ip-10-0-1-12", "10.0.1.12 ip-10-0-1-12.ec2.internal ip-10-0-1-12"),
        ("::1 ip-10-0-1-12", "10.0.1.12 ip-10-0-1-12"),
        ("127.0.1.1\tip-10-0-1-12 other", "10.0.1.12\tip-10-0-1-12 other"),
        ("127.0.1.1 ip-10-0-1-123", "127.0.1.1 ip-10-0-1-123"),
        ("127.0.0.1 localhost ip-10-0-1-12", "127.0.0.1 localhost ip-10-0-1-12"),
        ("127.0.0.1 localhost", "127.0.0.1 localhost"),
    ],
)
def test_a_nodes_own_name_has_no_loopback_address(root, before, after):
    """As cloud-init gives it with manage_etc_hosts, at each boot."""
    (root / "etc/hosts").write_text(f"{before}\n")
    apply(root)
    assert (root / "etc/hosts").read_text().splitlines()[0] == after


def test_the_job_user_may_leave_nothing_to_cron_and_at(root):
    """It would run later, beside other jobs. Without any file, cron asks nobody, and at allows root only."""
    apply(root)
    assert "phalanx" in (root / "etc/cron.deny").read_text().splitlines()
    assert not (root / "etc/at.deny").exists(), "it would allow everyone else"
    (root / "etc/at.deny").write_text("daemon")
    apply(root)
    assert (root / "etc/at.deny").read_text().splitlines()[0] == "daemon"
    assert "phalanx" in (root / "etc/at.deny").read_text().splitlines()


def test_cron_that_is_roots_alone_stays_so(root):
    """Red Hat's (cronie) lets only root use it where neither file exists."""
    (root / "usr/sbin").mkdir(parents=True, exist_ok=True)
    (root / "usr/sbin/crond").touch()
    (root / "etc/cron.deny").unlink(missing_ok=True)
    apply(root)
    assert not (root / "etc/cron.deny").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_jobs_read_the_key_by_the_group_that_an_image_gave_their_user(root):
    (root / "etc/passwd").write_text("phalanx:x:1001:100::/home/phalanx:/bin/bash\n")
    key = root / "key"
    key.touch()
    account.share_key(str(key), "phalanx", str(root))
    found = key.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65533, 100, 0o440)


def test_a_head_that_does_not_train_is_no_worker(root):
    head, worker = ROSTER.nodes
    apply(root, ROSTER._replace(nodes=(head._replace(slots=0), worker)))
    assert (root / "opt/deeplearning/workers").read_text() == "deeplearning-worker2\n"
    assert (root / "opt/phalanx/hostfile").read_text() == "deeplearning-worker2 slots=2\n"
    assert "DEEPLEARNING_WORKERS_COUNT='1'" in (root / "etc/profile.d/phalanx.sh").read_text()
    assert "10.0.1.11 deeplearning-worker1 deeplearning-master" in (root / "etc/hosts").read_text()


def test_an_administrator_of_the_service_reaches_itself_and_its_programs_find_the_addresses(root):
    service = MACHINE._replace(administrator="admin", address_file="/home/admin/addresses")
    apply(root, machine=service)
    assert (root / "home/admin/addresses").read_text() == "10.0.1.11\n10.0.1.12\n"
    config = (root / "etc/ssh/ssh_config.d/60-phalanx.conf").read_text()
    assert config.startswith("Match localuser admin host deeplearning-*,10.0.1.11,") and "\n    User admin\n" in config
    assert "\nMatch localuser !admin,* host " in config


def test_a_silent_node_can_be_reached_and_is_not_used(root):
    apply(root, ROSTER._replace(silent=(a_node(4),)))
    assert "10.0.1.14 deeplearning-worker4 ip-10-0-1-14" in (root / "etc/hosts").read_text().splitlines()
    assert "ip-10-0-1-14" in (root / "etc/ssh/ssh_config.d/60-phalanx.conf").read_text()
    for used in ("opt/deeplearning/workers", "opt/phalanx/hostfile"):
        assert "worker4" not in (root / used).read_text()
    assert "WORKERS_COUNT='2'" in (root / "etc/profile.d/phalanx.sh").read_text()


def test_applying_the_contract_again_changes_nothing(root):
    apply(root)
    before = {path: (root / path).stat().st_mtime_ns for path in everything(root)}
    apply(root)
    assert {path: (root / path).stat().st_mtime_ns for path in everything(root)} == before


def test_an_older_generation_leaves_no_trace(root):
    apply(root)
    grown = ROSTER._replace(generation=4, nodes=(a_node(1), a_node(2, address="10.0.1.99", hostname="ip-10-0-1-99")))
    apply(root, grown)
    text = "\n".join(everything(root).values())
    assert "10.0.1.12" not in text and "10.0.1.99" in text
    assert (root / "etc/hosts").read_text().count("deeplearning-worker2") == 1


def test_ranks_do_not_spin_where_they_share_cores():
    node = a_node(2, slots=8)
    assert contract.environment(ROSTER, node, MACHINE)["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert "OMPI_MCA_mpi_yield_when_idle" not in contract.environment(ROSTER, a_node(2), MACHINE)
    local = MACHINE._replace(endpoint="http://169.254.1.1:4566")
    assert contract.environment(ROSTER, a_node(2), local)["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert contract.environment(ROSTER, a_node(2), local)["AWS_ENDPOINT_URL"] == "http://169.254.1.1:4566"


def test_daemons_of_open_mpi_start_ranks_in_the_thread_that_reaps_them():
    assert contract.environment(ROSTER, a_node(2), MACHINE)["PRTE_MCA_odls_base_max_threads"] == "0"


def test_root_may_run_mpi_only_where_everybody_is_root():
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in contract.environment(ROSTER, a_node(2), MACHINE)
    single = MACHINE._replace(single_uid=True)
    assert contract.environment(ROSTER, a_node(2), single)["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_the_images_path_comes_first_and_once(root):
    apply(root)
    machine = contract.this_machine("us-east-1", "/efs", "phalanx", str(root))
    assert machine.path.startswith("/opt/env/bin:/usr/bin:/usr/local/sbin")
    assert machine.path.split(":").count("/usr/bin") == 1
    (root / "opt/pytorch/bin").mkdir(parents=True)
    assert contract.this_machine("r", "/efs", "p", str(root)).path.startswith("/opt/pytorch/bin:/opt/env/bin")


def test_drop_ins_are_read_even_where_the_image_does_not_include_them(root):
    apply(root)
    client = (root / "etc/ssh/ssh_config").read_text()
    assert client.startswith("Include /etc/ssh/ssh_config.d/*.conf\nHost *")
    assert (root / "etc/ssh/sshd_config").read_text().count("Include") == 1


def test_others_may_know_hosts_too(root):
    known = root / "etc/ssh/ssh_known_hosts"
    known.write_text("github.com ssh-ed25519 AAAA")
    apply(root)
    apply(root, ROSTER._replace(generation=4))
    assert known.read_text().splitlines() == [
        "github.com ssh-ed25519 AAAA",
        "@cert-authority deeplearning-*,10.0.1.11,ip-10-0-1-11,10.0.1.12,ip-10-0-1-12 ssh-ed25519 CA",
    ]


def test_no_temporary_file_is_left_behind(root):
    """Files are written to temporary files, which are renamed."""
    apply(root)
    assert not [path for path in everything(root) if ".phalanx-" in path]


class TestAccount:
    @pytest.fixture
    def image(self, root, monkeypatch):
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/uid_map").write_text("         0     100000      65536\n")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash")
        monkeypatch.setattr(files, "chown", lambda path, uid, gid=None: None)
        return root

    def test_the_job_user_has_the_same_uid_everywhere_and_a_home(self, image):
        assert account.make_user("phalanx", str(image)) == 2000
        assert account.make_user("phalanx", str(image)) == 2000
        assert (image / "etc/passwd").read_text().count("phalanx:x:2000:2000:") == 1
        assert (image / "etc/passwd").read_text().splitlines()[1].startswith("ubuntu:")
        assert "phalanx:*:" in (image / "etc/shadow").read_text()
        assert (image / "etc/shadow").stat().st_mode & 0o777 == 0o640

    def test_what_shells_and_ssh_read_at_home_is_root_s_and_the_rest_is_free(self, image, monkeypatch):
        owners: dict[str, tuple[int, int | None]] = {}
        monkeypatch.setattr(files, "chown", lambda path, uid, gid=None: owners.__setitem__(path, (uid, gid)))
        account.make_user("phalanx", str(image))
        home = image / "home/phalanx"
        assert owners == {str(home): (0, 2000), str(home / ".ssh"): (0, 2000)}
        assert {path.stat().st_mode & 0o7777 for path in (home, home / ".ssh")} == {0o1775}
        read = {".bashrc", ".profile", ".bash_profile", ".zshenv", ".ssh/config", ".ssh/rc", ".ssh/authorized_keys"}
        assert all((home / name).read_text().startswith("# Root's") for name in read)

    def test_with_one_uid_the_job_user_shares_it(self, image):
        (image / "proc/self/uid_map").write_text("         0       1001          1\n")
        assert account.make_user("phalanx", str(image)) == 0

    def test_the_users_key_logs_in_as_job_user_and_as_the_images_own(self, image):
        account.make_user("phalanx", str(image))
        account.authorize("phalanx", "ssh-ed25519 KEY", str(image))
        keys = image / "etc/ssh/phalanx/authorized_keys"
        assert {path.name: path.read_text() for path in keys.iterdir()} == {
            "phalanx": "ssh-ed25519 KEY\n",
            "ubuntu": "ssh-ed25519 KEY\n",
        }

    def test_the_job_user_has_no_systemd_to_which_a_job_could_leave_a_process(self, image):
        uid = account.make_user("phalanx", str(image))
        assert (image / f"etc/systemd/system/user@{uid}.service").readlink() == Path("/dev/null")

    def test_no_key_no_file(self, image):
        account.authorize("phalanx", "", str(image))
        assert not (image / "etc/ssh/phalanx").exists()


def test_the_block_of_a_shared_file():
    once = files.with_block("mine", "theirs\n")
    assert once.startswith("mine\n") and "theirs\n" in once
    assert files.with_block(once, "theirs\n") == once
    assert files.with_block(once, "other\n").count("# phalanx: end") == 1
    assert files.without_block(once) == files.with_block(once, "") == "mine\n"


@pytest.mark.parametrize(
    ("openssh", "expected"),
    [
        ((0, 0), []),
        ((8, 4), []),
        ((8, 5), ["PerSourceMaxStartups"]),
        ((10, 0), ["PerSourceMaxStartups", "PerSourcePenalties"]),
    ],
)
def test_sshd_is_told_only_what_it_knows(openssh, expected):
    """It ends at a keyword that is new to it, and with it every login to the node."""
    texts = contract.texts(ROSTER, ROSTER.nodes[1], MACHINE._replace(openssh=openssh), PAPERS)
    lines = texts["/etc/ssh/sshd_config.d/60-phalanx.conf"].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("PerSource")] == expected


@pytest.mark.parametrize("nodes", [1, 3, 10, 80])
def test_all_nodes_together_leave_sshd_a_part_of_the_files_that_it_may_open(nodes):
    """systemd gives it 1,024, of which each unfinished login takes one."""
    assert 10 <= logins.share(nodes) <= 100 and nodes * logins.share(nodes) <= 800


def test_the_roster_is_the_last_file():
    texts = contract.texts(ROSTER, ROSTER.nodes[1], MACHINE, PAPERS)
    assert list(texts)[-1] == "/opt/phalanx/roster.json"
    assert json.loads(texts["/opt/phalanx/roster.json"])["generation"] == 3


@pytest.mark.parametrize("path", ["/bin\nPermitRootLogin yes", '/bin" X=1 "', "/bin\r", "/bin\x1b[2J"])
def test_no_value_becomes_a_line_or_a_second_value(path):
    with pytest.raises(ValueError):
        contract.texts(ROSTER, ROSTER.head, MACHINE._replace(path=path), PAPERS)


@pytest.mark.parametrize("field", PAPERS._fields)
def test_no_paper_becomes_a_line(field):
    with pytest.raises(ValueError):
        contract.texts(ROSTER, ROSTER.head, MACHINE, PAPERS._replace(**{field: "ssh-ed25519 AAAA\n* ssh-ed25519 BBBB"}))
