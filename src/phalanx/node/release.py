"""Undo what the agent has made on a node of an adopted cluster. `down` sends it to each node, where root runs it."""

from __future__ import annotations

import errno
import glob
import os
import pwd
import signal
import subprocess
import time
from contextlib import suppress

USER = "phalanx"
# Of the account that node.account makes: another one stays.
ABOUT = "phalanx jobs"
# The marks of node.files.
BEGIN, END = "# phalanx: begin", "# phalanx: end"
# How the shared directory was before jobs could write at its top: its mode and its path. A boot empties /opt/phalanx.
OPENED = "/etc/phalanx-opened"
UNITS = ("phalanx", "phalanx-firewall")
MADE = (
    "/etc/profile.d/phalanx.sh",
    "/etc/udev/rules.d/60-phalanx.rules",
    "/etc/exports.d/phalanx.exports",
    "/etc/ssh/sshd_config.d/60-phalanx.conf",
    "/etc/ssh/ssh_config.d/60-phalanx.conf",
    "/etc/ssh/phalanx",
    "/opt/deeplearning",
    "/var/lib/phalanx",
    "/run/phalanx.sock",
    "/run/phalanx",
    "/opt/phalanx",
    OPENED,
)
SHARED = ("/etc/hosts", "/etc/environment", "/etc/fstab", "/etc/cron.deny", "/etc/at.deny")
WORKERS = "/home/hadoop/worker_ip_file"
# Less than whoever runs this waits for it.
WITHIN_S = 60.0
# A home may have millions of files. Whoever no longer waits runs this again, later.
REMOVED_WITHIN_S = 6 * 3600.0
ACCOUNTS = ("passwd", "group", "shadow")
# Those of node.firewall.
RULES = (
    "rule del pref 1 to 169.254.169.254 lookup 7312",
    "rule del pref 2 to 169.254.169.254 prohibit",
    "route flush table 7312",
    "-6 rule del pref 1 to fd00:ec2::254 prohibit",
)


def main() -> None:
    uid = uid_of(USER)
    stop_agent()
    if uid > 0:
        end_processes(uid)
        for rule in RULES:
            run("ip", *rule.split())
    for line in block("/etc/fstab"):
        run("umount", "-l", line.split()[1])
    for path in SHARED:
        keep_others(path)
    keep_lines("/etc/ssh/ssh_known_hosts", "@cert-authority deeplearning-*,")
    # The account after what it owns, so that a second run finds what an interrupted one has left.
    if uid >= 0:
        remove(f"/home/{USER}")
        remove(f"/etc/systemd/system/user@{uid}.service")
        for name in ACCOUNTS:
            keep_lines(f"/etc/{name}", f"{USER}:")
    close_shared(read(OPENED))
    for path in MADE:
        remove(path)
    if os.path.exists(WORKERS):
        # It may be the user's, and describes the nodes as before.
        home = os.stat(os.path.dirname(WORKERS))
        os.chown(WORKERS, home.st_uid, home.st_gid)
    run("exportfs", "-ra")
    reload_sshd()


def close_shared(opened: str) -> None:
    """Give the shared directory the mode back that it had."""
    mode, _, directory = opened.rstrip("\n").partition(" ")
    if directory:
        run("chmod", mode, directory)


def uid_of(user: str) -> int:
    """Return the uid of a user that the agent made; -1 if there is none."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return -1
    return found.pw_uid if found.pw_gecos == ABOUT else -1


def stop_agent() -> None:
    """Stop the agent, which systemd runs, or which runs by itself and writes its own log."""
    systemd = os.path.isdir("/run/systemd/system")
    for unit in UNITS:
        if systemd:
            run("systemctl", "disable", "--now", unit)
        for path in glob.glob(f"/etc/systemd/system/*.wants/{unit}.service"):
            remove(path)
        remove(f"/etc/systemd/system/{unit}.service")
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        # One that still boots. Only of root's processes: another one may hang in the kernel, or name what is endless.
        program, _, arguments = (read(path) if is_root_s(path) else "").partition("\0-IS\0")
        if program.endswith("python3") and "\n#agent=" in read(arguments.partition("\0")[0]):
            end(int(path.split("/")[2]))
    for output in glob.glob("/proc/[0-9]*/fd/1"):
        if links_to(output, "/opt/phalanx/agent.log"):
            end(int(output.split("/")[2]))


def end_processes(uid: int) -> None:
    """End all processes of the job user; those that they start meanwhile, too. One that hangs in the kernel stays."""
    deadline = time.monotonic() + WITHIN_S
    while found := [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/status") if owner(path) == uid]:
        for pid in found:
            end(pid)
        if time.monotonic() > deadline:
            raise SystemExit(f"processes of {USER} can't be ended: {found}")


def owner(status: str) -> int:
    """Return the uid of a process; -1 for one that has ended, or that nobody has waited for yet."""
    fields = {line.partition(":")[0]: line.split()[1:] for line in read(status).splitlines()}
    return int(fields["Uid"][0]) if fields.get("State", ["Z"])[0] not in "ZX" else -1


def is_root_s(of_process: str) -> bool:
    """Whether a process that root runs has this file in /proc. Its status can always be read."""
    return owner(f"{os.path.dirname(of_process)}/status") == 0


def block(path: str) -> list[str]:
    """Return the lines that the agent has added to a file of others."""
    ours = read(path).partition(f"\n{BEGIN}")[2].partition(END)[0]
    return ours.splitlines()[1:]


def keep_others(path: str) -> None:
    """Remove the agent's block from a file of others."""
    text = read(path)
    before, begin, rest = text.partition(BEGIN)
    if begin:
        replace(path, before + rest.partition(END)[2].partition("\n")[2])


def keep_lines(path: str, prefix: str) -> None:
    """Remove the lines that begin with this prefix."""
    text = read(path)
    kept = "".join(line for line in text.splitlines(True) if not line.startswith(prefix))
    if kept != text:
        replace(path, kept)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def replace(path: str, text: str) -> None:
    """Replace a file, which becomes shorter, at once and with its mode; on a full disk, in its own place."""
    mode, beside = os.stat(path).st_mode & 0o777, f"{path}.phalanx"
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            # Of /etc/passwd, a power failure must not leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        with suppress(OSError):
            os.unlink(beside)
        with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.truncate()


def remove(path: str) -> None:
    """Remove what is there. What stays ends the run: the account, by which another one finds it, stays too."""
    # Python's rmtree fails at a thousand nested directories, which a job may have made at home.
    run("rm", "-rf", path, timeout_s=REMOVED_WITHIN_S)
    if os.path.lexists(path):
        raise SystemExit(f"{path} can't be removed")


def links_to(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


def reload_sshd() -> None:
    """Have the listening sshd read its settings again."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        title = read(path) if is_root_s(path) else ""
        if title.startswith("sshd: ") and "[listener]" in title:
            end(int(path.split("/")[2]), signal.SIGHUP)


def end(pid: int, how: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def run(*argv: str, timeout_s: float = 60) -> None:
    """Run a command, which may have nothing to do."""
    try:
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass


if __name__ == "__main__":
    main()
