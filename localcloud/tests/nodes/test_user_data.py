"""A node does what its user data says in cloud-init's formats, and what AMIs set up for it."""

from __future__ import annotations

import base64
import textwrap
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from node_lab import Lab, wait

pytestmark = pytest.mark.cluster


def config(lab: Lab, more: str) -> str:
    """Return a #cloud-config that lets this test log in as root, and then `more`."""
    key = lab.key.with_suffix(".pub").read_text().strip()
    return f"#cloud-config\nusers:\n- {{name: root, ssh_authorized_keys: ['{key}']}}\n{textwrap.dedent(more)}"


def boot(lab: Lab, number: int, data: bytes, **more: object) -> str:
    """Boot a node with exactly this user data."""
    return lab.boot(number, user_data=base64.b64encode(data).decode(), **more)


def printed(lab: Lab, node: str) -> str:
    """Wait for the end of a node's user data; return what it printed."""
    log = lab.state / f"nodes/{node}/console.log"
    done = "test -e /var/lib/cloud/instance/boot-finished"
    wait(lambda: lab.ssh(node, done, check=False).returncode == 0, f"the end of {node}'s user data: {log.read_text()}")
    return log.read_text()


def test_cloud_config_makes_files_users_and_a_name_and_runs_commands(lab: Lab) -> None:
    more = """\
    - default
    - {name: ada, groups: [adm], shell: /bin/bash, sudo: 'ALL=(ALL) NOPASSWD:ALL', ssh_authorized_keys: [ssh-ed25519 A]}
    hostname: trainer
    ssh_authorized_keys: [ssh-ed25519 B]
    bootcmd:
    - echo each >>/root/each
    - echo $INSTANCE_ID >/root/id
    - [cloud-init-per, once, mine, sh, -c, 'echo >>/root/once; exit 3']
    mounts: [[tmpfs, '/scratch', tmpfs, 'size=1m'], [ephemeral0, /mnt]]
    write_files:
    - {path: /opt/my/a file, content: "it's $HOME\\n", permissions: '0640'}
    - {path: /root/plain, content: one, append: true, permissions: 0600}
    - {path: /root/coded, content: aGkK, encoding: b64}
    - {path: /root/late, content: x, defer: true, owner: 'ubuntu:ubuntu'}
    runcmd:
    - [sh, -c, 'echo "$1" >/root/words', sh, two words]
    - echo from runcmd; ls /opt/my >/root/listed
    packages: [bash, no-such-program]
    ntp: {enabled: true}
    """
    node = boot(lab, 20, config(lab, more).encode())
    said = printed(lab, node)
    ask = "cat '/opt/my/a file' /root/coded /root/words /root/listed /root/each; stat -c '%a %U' '/opt/my/a file' \
/root/plain /root/late; hostname; cat /etc/hostname; id -nG ada; cat ~ada/.ssh/authorized_keys \
~ubuntu/.ssh/authorized_keys; grep -c . /root/plain"
    found = lab.ssh(node, ask).stdout
    if lab.mode != "single":
        assert found == (
            "it's $HOME\nhi\ntwo words\na file\neach\n640 root\n600 root\n644 ubuntu\ntrainer\ntrainer\n"
            "ada adm sudo\nssh-ed25519 A\nssh-ed25519 B\n1\n"
        )
    assert "from runcmd" in said
    assert "none; not found here: no-such-program" in said
    assert "not served by the local cloud: ntp" in said
    assert "ephemeral0 is not mounted" in said
    assert lab.ssh(node, "cloud-init status --wait; cat /root/id").stdout == f"status: done\n{node}\n"
    lab.reboot(node)
    ask = "cloud-init status --wait; cat /root/each /root/plain; mount | grep -c /scratch; wc -l </root/once"
    assert lab.ssh(node, ask).stdout == "status: done\neach\neach\none1\n1\n"
    lab.do("kill", instance_id=node)


def test_a_mime_archive_runs_its_parts_in_cloud_inits_order(lab: Lab) -> None:
    archive = MIMEMultipart()
    parts = (
        ("x-shellscript", "#!/bin/sh\necho script one >>/root/order\nexit 3\n"),
        ("cloud-config", config(lab, "runcmd: ['echo runcmd >>/root/order']\nwrite_files: [{path: /root/order}]\n")),
        ("cloud-boothook", "#cloud-boothook\n#!/bin/sh\necho hook >>/root/hooked\n"),
        ("plain", "#!/bin/bash\necho script two >>/root/order\n"),
        ("x-include-url", "#include\nhttp://169.254.169.254/\n"),
    )
    for kind, text in parts:
        archive.attach(MIMEText(text, kind, "us-ascii"))
    node = boot(lab, 21, archive.as_bytes())
    said = printed(lab, node)
    assert lab.ssh(node, "cat /root/order /root/hooked").stdout == "script one\nscript two\nruncmd\nhook\n"
    assert "x-include-url is not served" in said
    assert "user data ended with status 3" in said
    status = lab.ssh(node, "cloud-init status --wait; cat /root/hooked", check=False)
    assert (status.stdout, lab.ssh(node, "cloud-init status", check=False).returncode) == ("status: error\nhook\n", 1)
    lab.do("kill", instance_id=node)


def test_the_log_of_cloud_init_is_a_file_that_root_writes_and_administrators_read(lab: Lab) -> None:
    node = lab.boot(22, "echo printed; echo appended >>/var/log/cloud-init-output.log; echo wrong >&2")
    lab.wait_booted(node)
    log = "/var/log/cloud-init-output.log"
    shown = lab.ssh(node, f"echo later >>{log}; cat {log}; stat -c '%a %G' {log}").stdout.split("\n")
    assert {"printed", "appended", "wrong", "later"} <= set(shown)
    if lab.mode != "single":
        assert shown[-2] == "640 adm"
    console = (lab.state / f"nodes/{node}/console.log").read_text()
    assert "printed\n" in console
    assert "appended" not in console
    lab.do("kill", instance_id=node)


def test_an_amazon_linux_image_has_ec2_user(lab: Lab) -> None:
    key = lab.key.with_suffix(".pub").read_text().strip()
    node = lab.boot(23, administrator="ec2-user", admin_key=key)
    lab.wait_booted(node)
    ask = "getent passwd ec2-user; getent passwd ubuntu; cat ~ec2-user/.ssh/authorized_keys"
    found = lab.ssh(node, ask, check=False)
    assert found.stdout.split("\n")[0].endswith(":/home/ec2-user:/bin/bash")
    assert found.stdout.split("\n")[1] == key
    if lab.mode != "single":
        assert lab.ssh(node, "su ec2-user -c 'sudo id -u; id -nG'").stdout == "0\nec2-user adm sudo\n"
    lab.do("kill", instance_id=node)


@pytest.mark.parametrize("server", ["fs-1.efs.us-east-1.amazonaws.com", "10.0.9.9"])
def test_efs_is_mounted_by_nfs_alone(lab: Lab, pair: tuple[str, str], server: str) -> None:
    options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
    (lab.state / "efs/fs-1/seen").write_text("shared\n")
    ask = f"mkdir -p /mnt/nfs && mount -t {{}} -o {options} {server}:/ /mnt/nfs && cat /mnt/nfs/seen && umount /mnt/nfs"
    assert lab.ssh(pair[0], ask.format("nfs4")).stdout == "shared\n"
    assert lab.ssh(pair[0], ask.format("nfs")).stdout == "shared\n"
    for version in ("nfsvers=4.0,mountport=2049", "vers=4.1", "nfsvers=4,minorversion=1"):
        lab.ssh(pair[0], f"mount -t nfs -o {version} {server}:/ /mnt/nfs && umount /mnt/nfs")
    for wrong, why in (
        ("nfsvers=3", "version"),
        ("nfsvers=4.2", "not supported"),
        ("vers=4.2", "not supported"),
        ("tls", "incorrect mount option"),
    ):
        assert why in lab.ssh(pair[0], f"mount -t nfs4 -o {wrong} {server}:/ /mnt/nfs", check=False).stderr
    again = f"echo {server}:/ /mnt/nfs nfs4 vers=4.1 0 0 >/etc/fstab; mount -a; mount -a; umount /mnt/nfs; >/etc/fstab"
    lab.ssh(pair[0], f"{again}; ! mountpoint -q /mnt/nfs")
    missing = lab.ssh(pair[0], f"mount -t nfs4 {server}:/nowhere /mnt/nfs", check=False)
    assert (missing.returncode, "No such file" in missing.stderr) == (32, True)


def test_a_file_system_that_has_no_mount_target_here_has_no_name(lab: Lab, pair: tuple[str, str]) -> None:
    asked = "mkdir -p /mnt/nfs; mount -t nfs4 -o nfsvers=4.1 fs-2.efs.us-east-1.amazonaws.com:/ /mnt/nfs"
    assert "Failed to resolve server" in lab.ssh(pair[0], asked, check=False).stderr


@pytest.mark.parametrize(
    ("region", "domain"), [("us-east-1", "ec2.internal"), ("eu-central-1", "eu-central-1.compute.internal")]
)
def test_a_node_knows_its_private_name_and_looks_for_others_in_its_region(lab: Lab, region: str, domain: str) -> None:
    node = lab.boot(24, domain=f"{region}.amazonaws.com")
    lab.wait_booted(node)
    found = lab.ssh(node, "hostname; hostname -f; grep ^search /etc/resolv.conf").stdout
    assert found == f"ip-10-0-1-34\nip-10-0-1-34.{domain}\nsearch {domain}\n"
    lab.do("kill", instance_id=node)
