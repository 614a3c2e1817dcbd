"""Run a command on a node over OpenSSH: one shared connection per node, and a clear error when it fails."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from phalanx.errors import ClusterError
from phalanx.ssh import bounded
from phalanx.waits import waiting

CONNECT_TIMEOUT_S = 20.0
# A login over a slow line takes about a second.
_PATIENCE_S = 3.0
_PERSIST_S = 600
_ENDS_WITHIN_S = 0.1
_LISTENS_AGAIN_AFTER_S = (0.1, 0.2, 0.4, 0.8)
# Some systems limit a socket's path to 104 bytes: our names take 25, `/phalanx/` 9, and ssh adds 17 while it binds.
_LONGEST_RUNTIME_DIRECTORY = 48
# How a ProxyCommand begins a reason: the one for Session Manager, and the local cloud's.
_OF_PROXY = re.compile("(?:phalanx|localcloud): (.*)")


class HostRefused(ClusterError):  # noqa: N818 - reads as what happened
    """The node's host key is not certified by the authority that this machine knows."""

    code = "unknown-host-key"


class LoginRefused(ClusterError):  # noqa: N818 - reads as what happened
    """The node does not accept this machine's key."""

    code = "login-refused"


class ConnectionLost(ClusterError):  # noqa: N818 - reads as what happened
    """The connection broke, or could not be made."""

    code = "connection-lost"


class NotEnded(ClusterError):  # noqa: N818 - reads as what happened
    """A command did not end in time."""

    code = "command-timeout"


class Broken(ConnectionLost):
    """The connection broke while something ran or was copied over it."""


class Silent(ConnectionLost):
    """The node has not answered for a few seconds; it still may."""

    code = "no-answer"


class NotListening(ConnectionLost):
    """The node refused the connection at once; it may accept one in a moment."""

    code = "not-listening"


@dataclass(frozen=True)
class Completed:
    """The result of a command; `status` is its own exit status."""

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Remote:
    """A node, and the user to log in as. `host` is a name in `config`, an ssh_config file of OpenSSH.

    `via` is a node whose shared connection leads to this one, so that many nodes behind it cost one login there.
    `repair` is called once when connecting fails. It may raise a better error, or update what this machine
    knows (such as the cluster's authority) and return True to try again. It is also called with Silent while a
    connection that this machine makes directly is not answered.
    """

    config: Path
    host: str
    user: str = "phalanx"
    options: tuple[str, ...] = ()
    repair: Callable[[ClusterError], bool] | None = None
    via: Remote | None = None

    def run(self, command: str, *, input: bytes = b"", timeout_s: float, check: bool = True) -> Completed:
        """Run a shell command and wait for it; with `check`, a nonzero status raises ClusterError with the last output.

        More than 64 MiB of output raises ClusterError too, because the output is kept in memory.
        """
        self.connect()
        try:
            with waiting(f"an answer from {self.host}"):
                done = bounded.run(self.argv(command), input, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise NotEnded(f"`{command}` on {self.host} did not end within {timeout_s:g} s") from error
        except bounded.TooMuch as error:
            most = f"{bounded.MOST_BYTES >> 20} MiB"
            raise ClusterError(
                f"`{command:.200}` on {self.host} wrote more than {most} of output",
                "Redirect its output to a file in the shared directory, and download that with `phalanx get`.",
                code="too-much-output",
            ) from error
        completed = Completed(done.returncode, done.stdout, done.stderr)
        self._judge(command, completed, check)
        return completed

    def popen(
        self, command: str, *, stdin: Any = subprocess.DEVNULL, stdout: Any = None, stderr: Any = None
    ) -> subprocess.Popen[bytes]:
        """Start a shell command that Ctrl-C in the terminal does not reach; status 255: the connection broke."""
        self.connect()
        return subprocess.Popen(self.argv(command), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)

    def forward(self, path: str, port: int, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        """Forward a new Unix socket to the node's 127.0.0.1:port, and `path`6 to its ::1, until stdin is closed.

        ssh prints a line when it listens, and its errors go to `stderr`, among them a line for each connection that the
        node refuses. It uses a connection of its own: a shared one
        would forward for minutes after the caller was killed.
        """
        self.connect()
        alone = ("ControlPath=none", "ControlMaster=no")
        own = (*alone, "ExitOnForwardFailure=yes", "BatchMode=yes", "LogLevel=INFO", *self._options())
        options = [word for option in own for word in ("-o", option)]
        there = [
            "-L",
            f"{path}:127.0.0.1:{port}",
            "-L",
            f"{path}6:[::1]:{port}",
            "-T",
            "--",
            self.host,
            "echo ready; exec cat >/dev/null",
        ]
        argv = ["ssh", "-F", str(self.config), "-l", self.user, *options, *there]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=stderr, env=_variables(), start_new_session=True)

    def interactive(self, command: str | None = None) -> int:
        """Run a login shell, or a command, on the caller's terminal, and return ssh's exit status.

        Raises ConnectionLost when the connection breaks: ssh itself ends without a message if it shares one.
        """
        self.connect()
        status = subprocess.call(self.argv(command, terminal=os.isatty(0)), preexec_fn=_end_with_this_process())
        if status == 255 and self._has_broken():
            raise ConnectionLost(f"the connection to {self.host} broke", _LATER)
        return status

    def argv(self, command: str | None, terminal: bool = False) -> list[str]:
        """Return the ssh command line, exactly as it is run."""
        tail = [command] if command is not None else []
        return [*self._ssh(), "-t" if terminal else "-T", "--", self.host, *tail]

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Open the shared connection unless it is open. Raises HostRefused, ConnectionLost, or if there is no ssh."""
        # Also for an open one: each command over it starts ssh.
        if shutil.which("ssh") is None:
            raise ClusterError(
                "the command `ssh` is not installed, or PATH does not lead to it",
                "Debian, Ubuntu: apt-get install openssh-client",
                code="no-program",
            )
        if self.connected():
            return
        if self.via is not None:
            self.via.connect(timeout_s)
        # One at a time: if two masters started, one would go on without a socket, and nothing could end it.
        with waiting(f"{self.host} to accept ssh"), _lock_file(Path(f"{self.control_path}.lock")):
            if not self.connected():
                self._connect_or_repair(timeout_s)

    def connected(self) -> bool:
        """Whether the process of the shared connection listens on its socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.control_path))
            except OSError:
                return False
        return True

    def _has_broken(self) -> bool:
        """Return whether the shared connection has ended. The kernel closes its other files before its socket."""
        if self.connected():
            time.sleep(_ENDS_WITHIN_S)
        return not self.connected()

    @property
    def control_path(self) -> Path:
        """The socket of the shared connection: a short path, because some systems allow only 104 bytes."""
        name = f"{self.user}@{self.host} {' '.join(self.options)}"
        return control_directory() / f"{_digest(str(self.config.parent))}-{_digest(name)}"

    def _ssh(self) -> list[str]:
        options = [word for option in self._options() for word in ("-o", option)]
        return ["ssh", "-F", str(self.config), "-o", f"ControlPath={self.control_path}", "-l", self.user, *options]

    def _options(self) -> tuple[str, ...]:
        if self.via is None:
            return self.options
        # ProxyJump would log in again, as it does not take ControlPath. It also can't pass a descriptor.
        command = shlex.join([*self.via._ssh(), "-o", "ControlMaster=no", "-o", "BatchMode=yes"]).replace("%", "%%")
        return (f"ProxyCommand={command} -W [%h]:%p -- {self.via.host}", "ProxyUseFdpass=no", *self.options)

    def _connect_or_repair(self, timeout_s: float) -> None:
        try:
            self._open_with_retries(timeout_s)
        except ClusterError as error:
            if self.repair is None or not self.repair(error):
                raise
            self._open_with_retries(timeout_s)

    def _open_with_retries(self, timeout_s: float) -> None:
        """Open the connection; retry, since sshd restarts for a moment to read a new certificate."""
        for pause_s in _LISTENS_AGAIN_AFTER_S:
            with contextlib.suppress(NotListening):
                self._open_master(timeout_s)
                return
            time.sleep(pause_s)
        self._open_master(timeout_s)

    def _open_master(self, timeout_s: float) -> None:
        self.control_path.unlink(missing_ok=True)
        persist = ["-o", "ControlMaster=yes", "-o", f"ControlPersist={_PERSIST_S}", "-o", "BatchMode=yes"]
        argv = [*self._ssh(), *persist, "-f", "-N", "--", self.host]
        # A file, not a pipe: a ProxyCommand keeps stderr open as long as the connection lives. The proxy gets
        # its name, because ssh gives a proxy no stderr when the connection is to persist (sshconnect.c,
        # ssh_proxy_fdpass_connect). Both append, or ssh's output would overwrite the proxy's.
        with bounded.file_with_name() as (output, name), open(name, "ab") as stderr:
            env = {**_variables(), "PHALANX_PROXY_ERRORS": name}
            null = subprocess.DEVNULL
            try:
                with bounded.started(argv, stdin=null, stdout=null, stderr=stderr, env=env) as ssh:
                    status = self._wait(ssh, timeout_s)
            except subprocess.TimeoutExpired as error:
                raise ConnectionLost(f"{self.host} did not answer ssh within {timeout_s:g} s", _LATER) from error
            if status != 0:
                raise classify(self.host, _text(output))

    def _wait(self, ssh: subprocess.Popen[bytes], timeout_s: float) -> int:
        """Wait for ssh, and ask for a reason as soon as it seems that nobody answers."""
        if self.repair is not None and self.via is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return ssh.wait(_PATIENCE_S)
            self.repair(Silent(f"{self.host} has not answered ssh for {_PATIENCE_S:g} s"))
        return ssh.wait(timeout_s)

    def _judge(self, command: str, completed: Completed, check: bool) -> None:
        if completed.status == 255 and self._has_broken():
            # Not what ran there: most of it is phalanx's own, which tells a user nothing.
            raise Broken(f"the connection to {self.host} broke", _LATER)
        if check and completed.status != 0:
            output = (completed.stderr or completed.stdout).decode(errors="replace").strip()
            raise ClusterError(
                f"`{command}` on {self.host} ended with status {completed.status}: {output[-2000:]}",
                code="command-failed",
            )


def _variables() -> dict[str, str]:
    """Return ssh's variables. It runs a ProxyCommand with $SHELL, and a service's account may have /bin/false there."""
    return {**os.environ, "SHELL": "/bin/sh"}


def _end_with_this_process() -> Callable[[], None] | None:
    """Return what a child calls so that it ends when this process is killed, on Linux.

    An ssh that goes on would share the terminal with the user's shell. Linux sends the signal when the thread ends that
    started the child, so this is for the main thread. It is not SIGHUP, which nohup has all children ignore.
    """
    if sys.platform != "linux":
        return None
    from phalanx.runner.system import PR_SET_PDEATHSIG, prctl  # here, because other systems have no prctl

    parent = os.getpid()

    def end_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return end_with_parent


def close_all(config: Path) -> None:
    """Close every shared connection that was made with this ssh_config."""
    for directory in _control_directories():
        if _is_private(directory):
            for path in directory.glob(f"{_digest(str(config.parent))}-*"):
                _close(path)


def _close(path: Path) -> None:
    if path.is_socket():
        argv = ["ssh", "-F", "none", "-o", f"ControlPath={path}", "-O", "exit", "--", "node"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    path.unlink(missing_ok=True)


def control_directory() -> Path:
    """Return the directory of control sockets: a short path that only this user may access."""
    path = _control_directories()[0]
    path.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(path):
        raise ClusterError(
            f"{path} is not a directory that only this user may access",
            f"Remove it (rm -r {path}), or let XDG_RUNTIME_DIR name a directory of your own.",
            code="unsafe-directory",
        )
    return path


def _control_directories() -> list[Path]:
    """Return the directory to use, then another that an earlier command may have used (cron has no XDG_RUNTIME_DIR)."""
    temporary = Path("/tmp") / f"phalanx-{os.getuid()}"
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    usable = len(str(runtime)) <= _LONGEST_RUNTIME_DIRECTORY and _is_private(runtime)
    return [runtime / "phalanx", temporary] if usable else [temporary]


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Hold a lock file, and remove it afterwards."""
    while True:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The previous holder has removed the file: another process may have locked a new one by now.
            if not _is_still(path, lock):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


_NOT_ALLOWED = "Does `ssh_from` allow your address? `phalanx allow` adds it. "
_LATER = "`phalanx status` shows what the cloud reports of the cluster."
_CAUSES: tuple[tuple[str, type[ClusterError], str, str], ...] = (
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known",
        HostRefused,
        "its host key is not certified by the cluster's authority",
        "The head may have been replaced. If this persists, run `phalanx down` and `phalanx up` to make new keys.",
    ),
    (
        r"Permission denied",
        LoginRefused,
        "it does not accept this machine's key",
        "The cluster was made with another key. Use the machine that ran `phalanx up`.",
    ),
    (r"TargetNotConnected", NotListening, "AWS Systems Manager has no connection to it", _LATER),
    (r"Connection refused", NotListening, "nothing listens there (connection refused)", _LATER),
    (r"Connection (closed|reset) by", NotListening, "it closes each connection at once", _LATER),
    (r"belongs to no running instance", NotListening, "its address belongs to no running instance", _LATER),
    (r"timed? ?out", ConnectionLost, "it does not answer (timeout)", _NOT_ALLOWED + _LATER),
    (r"Could not resolve|Name or service not known", ConnectionLost, "its name is unknown", _LATER),
)


# What the AWS CLI, or what starts it, says of a session that can't be. The target may be connected later.
_REFUSED_SESSION = re.compile(
    r"(?:phalanx: (?P<why>the command `[^;]*); (?P<what>install it: \S+)"
    r"|(?!.*TargetNotConnected)(?P<refusal>(?:An error occurred|Unable to locate credentials|Error loading SSO).*))"
)
_SESSIONS = "A login takes a session of AWS Systems Manager, with your rights in AWS: `phalanx policy` prints them."


def classify(host: str, output: str) -> ClusterError:
    """Return the error that ssh's output means, with a hint."""
    if refused := _REFUSED_SESSION.search(output):
        hint = (refused["what"] or "").capitalize() or _SESSIONS
        return ClusterError(
            f"can't log in to {host}: {refused['why'] or refused['refusal']}", hint, code="session-refused"
        )
    for pattern, kind, meaning, hint in _CAUSES:
        if re.search(pattern, output):
            return kind(f"can't log in to {host}: {meaning}", hint)
    lines = [line for line in output.strip().splitlines() if line.strip()] or ["ssh ended without a message"]
    # The local cloud's dialer reports the reason before ssh reports that it got no connection.
    whole = "; ".join(lines[-3:])
    reason = next((found[1] for line in lines if (found := _OF_PROXY.match(line))), whole)
    return ConnectionLost(f"can't log in to {host}: {reason}", _LATER)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
