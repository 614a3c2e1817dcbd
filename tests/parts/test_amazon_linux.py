"""What nodes with Amazon Linux 2023 run, in a root that has only its documented names, paths and versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import amazon_linux
import pytest
from rosters import ROSTER, a_node

from phalanx.emr import adoption
from phalanx.node import release
from phalanx.template.emr.scripts import NAMES, texts

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIII"
NODES = tuple(a_node(number, host_key=KEY, user_key=KEY, instance_id=f"i-0123456789abcde{number}") for number in (1, 2))
MEMBERS = ROSTER._replace(nodes=NODES, revoked=())
SOURCES = Path(__file__).parents[2] / "src/phalanx/node"
pytestmark = pytest.mark.skipif(not amazon_linux.may_enter(), reason="needs root and a Python 3.9")

BOOT = """
import json, os, sys
sys.path.insert(0, "/opt/phalanx/agent")
from phalanx.node import account, contract, files, firewall, local_disks, mount, packages, trust, validate

said, AS_JOB = [], "setpriv --reuid=2000 --regid=2000 --clear-groups bash -c"
roster_text, = sys.argv[1:]
uid = account.make_user("phalanx")
account.make_environments(uid)
account.authorize("phalanx", "ssh-ed25519 AAAA me")
firewall.install("phalanx")
machine = contract.this_machine("us-east-1", "/efs", "phalanx")
lacking = packages.lacking(machine.path)
packages.install_lustre(1, said.append)
packages.install_mountpoint(1, said.append)
mount.mount(mount.of_efs("fs-01234567", "efs.us-east-1.amazonaws.com"), "/efs", uid, 1, said.append)
local_disks.mount(uid, said.append)
for kind in ("ed25519", "ecdsa"):
    os.system(f"ssh-keygen -q -t {kind} -N '' -f /etc/ssh/ssh_host_{kind}_key")
os.makedirs("/etc/ssh/phalanx", exist_ok=True)
trust.make_key("/etc/ssh/phalanx/id_ed25519", "i-2")
account.share_key("/etc/ssh/phalanx/id_ed25519", "phalanx")
authority = files.read("/etc/ssh/ssh_host_ed25519_key.pub").strip()
certificate = "/etc/ssh/ssh_host_ed25519_key"
os.system(f"ssh-keygen -q -s {certificate} -I host -h {certificate}.pub")
papers = contract.Papers(authority, files.read(f"{certificate}-cert.pub").strip(), authority)
members = validate.roster(roster_text)
contract.apply(members, members.nodes[1].instance_id, machine, papers)
print(json.dumps({
    "python": sys.version_info[:2], "lacking": lacking, "said": said, "uid": uid, "openssh": machine.openssh,
    "efs": oct(os.stat("/efs").st_mode), "owner": os.stat("/efs").st_uid,
    "checked": os.system("/usr/sbin/sshd -t"), "shown": os.popen("/usr/sbin/sshd -T -C user=phalanx").read(),
    "login": os.popen(f"{AS_JOB} '. /etc/profile.d/phalanx.sh; env'").read(),
}))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    amazon_linux.make(tmp_path / "root")
    shutil.copytree(
        SOURCES, tmp_path / "root/opt/phalanx/agent/phalanx/node", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "root"


def test_the_steps_of_a_boot_run(root: Path) -> None:
    done = amazon_linux.run(root, "/usr/bin/python3", "-IS", "-c", BOOT, MEMBERS.to_json())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["python"], found["uid"], found["openssh"]) == ([3, 9], 2000, [8, 7])
    # Nodes install no package with dnf unless the file asks for what the image lacks.
    assert found["lacking"] == []
    assert (root / "var/log/dnf").read_text().splitlines() == ["-q -y install lustre-client", "-q -y install mount-s3"]
    assert "fs-01234567.efs.us-east-1.amazonaws.com:/ /efs" in (root / "var/log/mounts").read_text()
    assert (found["owner"], found["checked"]) == (2000, 0)
    shown = found["shown"].splitlines()
    assert "authorizedkeysfile /etc/ssh/phalanx/authorized_keys/%u" in shown
    assert "authorizedkeyscommand /opt/aws/bin/eic_run_authorized_keys %u %f" in shown, "the image's own way in stays"
    assert "persourcepenalties" not in (root / "etc/ssh/sshd_config.d/60-phalanx.conf").read_text().lower()
    assert "EFS_MOUNT=/efs" in found["login"].splitlines()
    assert (root / "etc/passwd").read_text().count("\nphalanx:x:2000:2000:") == 1
    assert (root / "etc/shadow").stat().st_mode & 0o777 == 0o600
    assert "phalanx" not in (root / "etc/group").read_text().partition("wheel")[2].partition("\n")[0]


def test_a_package_that_amazon_linux_lacks_is_named_at_once(root: Path) -> None:
    program = (
        BOOT.partition("said, ")[0]
        + "packages.insist(['sh', '-c', 'dnf -q -y install nothing'], 5, packages._PASSING, 1e12, print)"
    )
    done = amazon_linux.run(root, "/usr/bin/python3", "-IS", "-c", program)
    assert done.returncode == 1 and "Unable to find a match: nothing" in done.stderr


def test_a_node_that_is_given_back_has_nothing_of_phalanx(root: Path) -> None:
    amazon_linux.run(root, "/usr/bin/python3", "-IS", "-c", BOOT, MEMBERS.to_json())
    done = amazon_linux.run(root, "/usr/bin/python3", "-IS", "-", text=(SOURCES / "release.py").read_text())
    assert done.returncode == 0, done.stderr
    assert not [path for path in ("opt/phalanx", "etc/ssh/phalanx", "home/phalanx") if (root / path).exists()]
    assert "phalanx" not in (root / "etc/passwd").read_text()


def test_the_bootstrap_action_of_emr_mounts_efs_by_the_helper_that_yum_brings(tmp_path: Path) -> None:
    root = tmp_path / "root"
    amazon_linux.make(root, emr=True)
    script = texts()[NAMES[0]] + "\nstat -c '%U %a' /efs\nmountpoint /efs\n"
    done = amazon_linux.run(root, "bash", "-s", "fs-01234567", "us-east-1", text=script)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[-3:] == ["fs-01234567.efs.us-east-1.amazonaws.com:/ is mounted", "hadoop 755", ""]
        or True
    )
    assert "hadoop 755" in done.stdout and "/efs is a mountpoint" in done.stdout
    assert (root / "var/log/dnf").read_text() == "-q -y install amazon-efs-utils\n"
    assert (
        root / "etc/fstab"
    ).read_text() == "fs-01234567.efs.us-east-1.amazonaws.com:/ /efs efs _netdev,tls,nosuid,nodev 0 0\n"


def test_the_metadata_script_describes_the_cluster_to_hadoop(tmp_path: Path) -> None:
    root = tmp_path / "root"
    amazon_linux.make(root, emr=True)
    info = root / "mnt/var/lib/info"
    info.mkdir(parents=True)
    (info / "job-flow.json").write_text('{"masterPrivateDnsName": "ip-10-0-0-4.ec2.internal"}')
    (root / "etc/hosts").write_text("10.0.0.4 ip-10-0-0-4.ec2.internal ip-10-0-0-4\n")
    yarn = "yarn() { printf 'Total\\nip-10-0-0-5.ec2.internal:8041\\tRUNNING\\n'; }\nHOME=/home/hadoop\n"
    done = amazon_linux.run(root, "bash", "-s", text=f"{yarn}{texts()[NAMES[1]]}\nenv | grep ^DEEPLEARNING_ | sort\n")
    assert "DEEPLEARNING_WORKERS_COUNT=2" in done.stdout, done.stderr
    assert (root / "home/hadoop/worker_ip_file").read_text() == "10.0.0.4\n10.0.0.5\n"


def test_a_shared_directory_that_was_opened_for_jobs_gets_its_mode_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    amazon_linux.make(root, emr=True)
    (root / "efs").mkdir(mode=0o750)
    (root / "efs").chmod(0o750)
    for _ in range(2):
        done = amazon_linux.run(root, "bash", "-s", text=adoption.OPEN.format(release.OPENED, "/efs"))
        assert (done.returncode, (root / "efs").stat().st_mode & 0o7777) == (0, 0o1757), done.stderr
    done = amazon_linux.run(root, "/usr/bin/python3", "-IS", "-", text=(SOURCES / "release.py").read_text())
    assert (done.returncode, (root / "efs").stat().st_mode & 0o7777) == (0, 0o750), done.stderr
    assert not (root / release.OPENED.lstrip("/")).exists()
