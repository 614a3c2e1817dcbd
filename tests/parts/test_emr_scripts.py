"""The scripts of `phalanx emr-scripts`: how they are written, and the mount with a `sudo` that plays the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx import cli
from phalanx.template.emr.scripts import NAMES, texts

# It records what root is to do. `mount` fails as often as `fails` says, with efs-utils' message.
SUDO = """\
#!/bin/bash
echo "$*" >> "${0%/*}/done"
case $1 in
  tee) cat >> "${0%/*}/fstab" ;;
  mount)
    left=$(cat "${0%/*}/fails")
    [ "$left" = 0 ] || { echo $((left - 1)) > "${0%/*}/fails"; echo 'Failed to resolve "fs-01234567"' >&2; exit 1; } ;;
esac
"""


def test_shellcheck_finds_nothing_in_either(tmp_path):
    assert cli.execute(["emr-scripts", "-o", str(tmp_path)]) == 0
    shellcheck = Path(sys.executable).with_name("shellcheck")
    files = [tmp_path / name for name in NAMES]
    done = subprocess.run([shellcheck, "--shell=bash", *files], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_the_command_writes_both_and_names_them(tmp_path, capsys):
    assert cli.execute(["emr-scripts", "-o", str(tmp_path / "new"), "--json"]) == 0
    paths = [Path(path) for path in json.loads(capsys.readouterr().out)]
    assert {path.name: path.read_text() for path in paths} == texts()
    assert all(path.stat().st_mode & 0o111 for path in paths)


def test_a_directory_that_can_not_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.execute(["emr-scripts", "-o", str(tmp_path / "file/below")]) == 1
    assert f"{tmp_path}/file/below: Not a directory" in capsys.readouterr().err


def mounted(directory: Path, *arguments: str, fails: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the bootstrap action where `mount` fails so often."""
    for name, text in {"sudo": SUDO, "sleep": "#!/bin/sh\n"}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    (directory / "fails").write_text(f"{fails}\n")
    return subprocess.run(
        ["/bin/bash", "-c", texts()[NAMES[0]], "emr_efs_bootstrap.sh", *arguments],
        env={"PATH": f"{directory}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_name_that_is_not_resolved_yet_is_tried_again(tmp_path):
    done = mounted(tmp_path, "fs-01234567", "eu-central-1", fails=3)
    assert (done.returncode, done.stdout) == (0, "fs-01234567 is mounted at /efs\n")
    assert (tmp_path / "fstab").read_text().startswith("fs-01234567.efs.eu-central-1.amazonaws.com:/ /efs ")
    assert (tmp_path / "done").read_text().count("mount -t ") == 4


def test_a_file_system_without_a_mount_target_fails_and_says_what_to_look_at(tmp_path):
    done = mounted(tmp_path, "fs-01234567", "us-east-1", fails=1000)
    assert done.returncode == 1
    said, message = done.stderr.splitlines()
    assert said == 'Failed to resolve "fs-01234567"'
    assert "fs-01234567 can't be mounted. Does it have a mount target in this node's zone" in message
    assert not (tmp_path / "fstab").exists()


def test_in_china_the_name_has_china_s_domain(tmp_path):
    mounted(tmp_path, "fs-01234567", "cn-north-1")
    assert "fs-01234567.efs.cn-north-1.amazonaws.com.cn:/ /efs" in (tmp_path / "done").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs two arguments, the id of an EFS file system and its region, and has 0: "),
        (("fs-01234567;reboot", "us-east-1"), "'fs-01234567;reboot' is not the id of an EFS file system"),
        (("fs-01234567", "$(reboot)"), "'$(reboot)' is not a region, such as us-east-1"),
    ],
)
def test_arguments_that_are_wrong_are_named_before_anything_is_done(tmp_path, arguments, message):
    done = mounted(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (1, f"emr_efs_bootstrap.sh: {message}{done.stderr.partition(message)[2]}")
    assert not (tmp_path / "done").exists()
