"""Runs one rank for an engine: passes the rank's pipes to the node's starter, and reports how the rank ended.

`python3 -IS keeper.py RANK_VARIABLES =WORD…` (the command's words, each after "="), as a file of its own beside
runner.pyz. The engine sees an ordinary child: the keeper forwards signals, and ends as the rank ended. If the engine
kills it, the rank goes on as the starter's child.
"""

from __future__ import annotations

# The C halves of `signal` and `socket`: their public halves make enums at import, and this runs once per rank
# (10 ms of CPU instead of 33, which saves 0.2 s for 16 ranks on 2 cores).
import _signal  # pyright: ignore[reportMissingImports]
import _socket
import os
import sys

_FORWARDED = tuple(getattr(_signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"))
ASKED = b"asked"
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def main() -> None:
    """Run the command as the rank that the first set one of these (comma-separated) variables names."""
    variables, command = sys.argv[1], [word[1:] for word in sys.argv[2:]]
    label = next((os.environ[name] for name in variables.split(",") if name in os.environ), None)
    if label is None:
        sys.exit(f"phalanx: the engine set none of {variables}")
    starter = _connect()
    pipes = [os.pipe(), os.pipe()]
    pid = _start(command, _stdin(label), pipes[0][1], pipes[1][1], starter)
    _hand_over(starter, f"{label} {pid}", [pipes[0][0], pipes[1][0]])
    for fd in (*pipes[0], *pipes[1]):
        os.close(fd)
    code = _wait(pid, starter)
    for number in _FORWARDED:
        _signal.signal(number, _signal.SIG_DFL)
    try:
        starter.send(str(code).encode())
        # The starter closes the connection once the engine may hear of the end.
        starter.recv(1)
    except OSError:
        pass  # the starter is gone: the job is over
    _end_alike(code)


def _connect() -> _socket.socket:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    name = os.environ.get("PHALANX_STARTER", "")
    try:
        connection.connect("\0" + name)
    except OSError as error:
        sys.exit(
            f"phalanx: no starter answers at PHALANX_STARTER={name!r} ({error}): check that the engine passes it on"
        )
    return connection


def _stdin(label: str) -> str:
    """Return the path of the rank's input: the job's, which is beside this file, or nothing."""
    path = os.path.join(os.path.dirname(sys.argv[0]), "stdin")
    return path if label == "0" and os.path.exists(path) else os.devnull


def _start(command: list[str], stdin: str, out_fd: int, err_fd: int, starter: _socket.socket) -> int:
    pid = os.fork()
    if pid == 0:
        # A group of its own, so that a signal to the keeper's group reaches the rank only once, through the keeper.
        os.setpgid(0, 0)
        _let_trace(starter)
        for target, fd in enumerate((os.open(stdin, os.O_RDONLY), out_fd, err_fd)):
            os.dup2(fd, target)
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)  # Python ignores these two; the rank must not inherit that
        _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"phalanx: {command[0]}: {error.strerror}\n".encode())
            os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
    return pid


def _let_trace(starter: _socket.socket) -> None:
    """Let the starter's processes read the rank's stack, where Yama forbids that (runner.system.let_trace)."""
    if not os.path.exists("/proc/sys/kernel/yama/ptrace_scope"):
        return
    import ctypes  # here, because it takes 10 ms

    pid = int.from_bytes(starter.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    ctypes.CDLL(None).prctl(0x59616D61, pid, 0, 0, 0)


def _hand_over(starter: _socket.socket, text: str, fds: list[int]) -> None:
    packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    starter.sendmsg([text.encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])


def _wait(pid: int, starter: _socket.socket) -> int:
    def forward(number: int, _: object) -> None:
        if number == _signal.SIGTERM:
            try:
                # Which then asks the rank itself, once.
                starter.send(ASKED)
                return
            except OSError:
                pass  # the starter is gone
        os.kill(pid, number)

    for number in _FORWARDED:
        _signal.signal(number, forward)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_alike(code: int) -> None:
    if code < 0:
        import resource  # here, because few ranks end by a signal

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left its own core dump
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
