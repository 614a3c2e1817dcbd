"""Says what each rank on this node does: its Python stack, by py-spy, and what the kernel says of its process.

A child process of the starter looks, as the user of the job, because what it reads can hang, or be made to hang by the
job. The starter waits for it no longer than WITHIN_S. Only descendants of the starter are looked at: a mark in an
environment, or a pid that a keeper reports, may be anybody's.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import threading
import time

from phalanx.node.proc_files import read_each
from phalanx.runner import frames, tracer
from phalanx.runner.loop import READ_BYTES, Loop
from phalanx.runner.reaper import add_descendants, children_of, kill, kill_group, processes
from phalanx.runner.system import PR_SET_PDEATHSIG, prctl, process_stat, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

    Frame = Tuple[str, str, int, bool]

WITHIN_S = 8.0
# For the program itself, which may be on a shared directory that does not answer, and for all its runs.
_LOADED_WITHIN_S, _TRACED_WITHIN_S = 2.0, 4.0
_TRIES = 3  # a process that runs may change what is being read
_AT_ONCE = 8
_MEMORY_BYTES, _CPU_S = 1 << 30, 5
_MOST_OUTPUT = 1 << 20
# Of what is sent; a frame's body may have a MiB.
_MOST_BYTES, _FEW_FRAMES = 512 << 10, 12
_THREADS, _FRAMES, _LETTERS = 16, 64, 200
_PR_SET_NO_NEW_PRIVS = 38
# The child's descriptor of the pipe to the starter.
_ANSWER = 3
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
# read, pread64, readv and recvfrom, whose first argument is a file descriptor (asm/unistd.h).
_READS = {"x86_64": ("0", "17", "19", "45"), "aarch64": ("63", "67", "65", "207")}
_LIBRARIES = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+)/")
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s+([0-9]{1,18})$", re.MULTILINE)
_PYTHON = re.compile(r"(python|pypy)[\d.]*")


class Looks:
    """Takes the stacks of a node's ranks in a child process, one request at a time, and sends them to the runner."""

    def __init__(self, loop: Loop, job_directory: str, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._tools = tracer.directory_of(job_directory)
        self._send = send
        self._child = 0
        self._answer = b""
        self._fd = -1
        self._deadline = 0.0

    def take(self, ranks: Mapping[int, int], work: str) -> None:
        """Take the stacks of these ranks (process number → pid); a request during another is answered by that one."""
        if self._child:
            return
        from_child, to_runner = os.pipe()
        root = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_child(to_runner, lambda: _look(ranks, root, work, self._tools))
        os.close(to_runner)
        self._child, self._fd, self._answer, self._deadline = pid, from_child, b"", time.monotonic() + WITHIN_S
        self._loop.watch(from_child, self._read)

    def check(self) -> None:
        """End a look that takes too long; its processes may hang in the kernel, and nobody waits for them."""
        if self._child and time.monotonic() > self._deadline:
            self._give_up(f"nothing was read within {WITHIN_S:g} s")

    def end(self) -> None:
        """End a look that goes on; whoever asked gets no answer."""
        if self._child:
            self._give_up("the job ends")

    def _read(self, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        self._answer += data
        # Not its end: a thread that hangs in the kernel would hold the pipe open.
        if self._answer.endswith(b"\n"):
            self._finish(self._answer)
        elif not data:
            self._finish(_nothing("what reads the stacks was ended"))
        elif len(self._answer) > _MOST_OUTPUT:
            self._give_up("what reads the stacks says too much")

    def _give_up(self, why: str) -> None:
        # It lives, or its end of the pipe would be closed: the pid is still its own.
        kill_group(self._child)
        self._finish(_nothing(why))

    def _finish(self, body: bytes) -> None:
        self._loop.forget(self._fd)
        os.close(self._fd)
        self._child = 0
        self._send(frames.pack(frames.STACKS, payload=body))


def _nothing(why: str) -> bytes:
    return json.dumps({"tool": why, "processes": []}).encode()


def _become_child(answer: int, look: Callable[[], Dict[str, Any]]) -> None:
    """Write what `look` returns as a line of JSON, without the starter's files, signals and rights. Never returns."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for target, fd in enumerate((null, null, null, answer)):
            os.dup2(fd, target, inheritable=target < _ANSWER)
        os.closerange(_ANSWER + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for limit, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, _CPU_S)):
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _write_all(json.dumps(look()).encode() + b"\n")
    except Exception as error:
        _write_all(_nothing(f"the stacks can't be read: {_clipped(repr(error))}") + b"\n")
    finally:
        os._exit(0)


def _write_all(text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(_ANSWER, rest) :]


def _look(ranks: Mapping[int, int], root: int, work: str, tools: str) -> Dict[str, Any]:
    """Return the body of a STACKS frame for these ranks, descendants of `root`."""
    program = _loaded(tools)
    table = processes()
    children = children_of(table)
    ours = {root}
    add_descendants(ours, children)
    targets = {number: _python(pid, children) for number, pid in ranks.items() if pid in ours and pid in table}
    is_python = {pid for pid in targets.values() if _is_python(pid)}
    handles = {pid: handle for pid in is_python if (handle := _held(pid, table)) is not None}
    traced = dict.fromkeys(handles, program) if isinstance(program, str) else _traces(program, handles)
    known = _kernel(set(targets.values()), table)
    found = []
    for number, pid in ranks.items():
        about: Dict[str, Any] = {"number": number, "pid": targets.get(number, pid), "threads": []}
        if number not in targets:
            found.append({**about, "why": "its process has ended, or is none of this job"})
            continue
        about.update(known[targets[number]])
        result = traced.get(targets[number], "it is not a Python process, or does not answer")
        about.update({"why": result} if isinstance(result, str) else {"threads": _threads(result, about["pid"], work)})
        found.append(about)
    return {"tool": program if isinstance(program, str) else "", "processes": _fitting(found)}


def _loaded(tools: str) -> Union[int, str]:
    """Return the program's memory, or why it can't be had."""
    found: List[Union[int, str]] = []
    reader = threading.Thread(target=lambda: found.append(tracer.load(tools)), daemon=True)
    reader.start()
    reader.join(_LOADED_WITHIN_S)
    return found[0] if found else "py-spy can't be read: the shared directory does not answer"


def _python(pid: int, children: Mapping[int, Sequence[int]]) -> int:
    """Return the nearest Python process, from the rank's own one downwards: scripts start it. Else the rank's own."""
    todo, seen = [pid], {pid}
    while todo:
        one = todo.pop(0)
        if _is_python(one):
            return one
        more = [child for child in children.get(one, ()) if child not in seen]
        seen.update(more)
        todo += more
    return pid


def _is_python(pid: int) -> bool:
    return bool(_PYTHON.fullmatch(os.path.basename(_link(pid, "exe"))))


def _held(pid: int, table: Mapping[int, Mapping[str, str]]) -> Optional[int]:
    """Return a descriptor for exactly the process in the table; None if it has ended, or hangs."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    stat = process_stat(pid) if table[pid]["start"] else None
    return handle if stat and stat["start"] == table[pid]["start"] else None


def _lives(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return not poll.poll(0)


def _kernel(pids: Set[int], table: Mapping[int, Mapping[str, str]]) -> Dict[int, Dict[str, Any]]:
    """Return what /proc says of processes: their name, state, where they sleep, CPU time, and the file they read.

    `switches` is how often their main thread has begun to wait: it stays the same while it waits for one thing.
    """
    wchan, _ = read_each(pids, "wchan")
    status, _ = read_each(pids, "status")
    calls, _ = read_each((pid for pid in pids if table[pid]["start"]), "syscall")
    tick = os.sysconf("SC_CLK_TCK")
    return {
        pid: {
            "name": table[pid]["name"][:_LETTERS],
            "state": table[pid]["state"],
            "wchan": _clipped(wchan.get(pid, b"").decode(errors="replace").strip("\0\n0")),
            "cpu_s": int(table[pid].get("ticks") or 0) / tick,
            "switches": int(found[1]) if (found := _SWITCHES.search(status.get(pid, b""))) else 0,
            "reads": _clipped(_file_read(pid, calls.get(pid, b"").decode(errors="replace").split())),
        }
        for pid in pids
    }


def _file_read(pid: int, call: Sequence[str]) -> str:
    """Return the path of the file that the process waits to read from, if its system call is such a read."""
    if len(call) < 2 or call[0] not in _READS.get(os.uname().machine, ()):
        return ""
    return _link(pid, f"fd/{int(call[1], 16)}")


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def _clipped(text: Any) -> str:
    return str(text)[:_LETTERS].encode(errors="replace").decode()


def _traces(program: int, handles: Mapping[int, int]) -> Dict[int, Any]:
    """Return py-spy's answer for each process, or why there is none."""
    deadline = time.monotonic() + _TRACED_WITHIN_S
    found: Dict[int, Any] = {}
    todo = [(pid, 1) for pid in handles]
    running: Dict[int, _Trace] = {}
    poll = select.poll()
    while (todo or running) and time.monotonic() < deadline:
        while todo and len(running) < _AT_ONCE:
            trace = _Trace(program, *todo.pop(0))
            running[trace.fd] = trace
            poll.register(trace.fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            trace = running[fd]
            if trace.reads():
                continue
            poll.unregister(fd)
            del running[fd]
            result = trace.result()
            # The pid was this process's all the time, if the process still is there.
            found[trace.pid] = result if _lives(handles[trace.pid]) else "it has just ended"
            if isinstance(result, str) and result != _refusal() and trace.attempt < _TRIES:
                todo.append((trace.pid, trace.attempt + 1))
    for trace in running.values():
        kill(trace.child, signal.SIGKILL)
    return {**dict.fromkeys(handles, f"py-spy did not end within {_TRACED_WITHIN_S:g} s"), **found}


class _Trace:
    """One run of py-spy, which does not stop the process that it reads."""

    def __init__(self, program: int, pid: int, attempt: int) -> None:
        self.pid, self.attempt = pid, attempt
        self._text = b""
        self.fd, out = os.pipe()
        self._errors = os.memfd_create("errors")
        null = os.open(os.devnull, os.O_RDONLY)
        os.set_inheritable(program, True)
        argv = (f"/proc/self/fd/{program}", "dump", "--json", "--nonblocking", "--pid", str(pid))
        self.child = spawn(argv, {}, (null, out, self._errors), die_with_parent=True)
        os.close(null)
        os.close(out)

    def reads(self) -> bool:
        """Read a part; return whether more may come."""
        data = os.read(self.fd, READ_BYTES)
        self._text += data
        return bool(data) and len(self._text) <= _MOST_OUTPUT

    def result(self) -> Any:
        """Return the threads, or in words why there are none."""
        os.close(self.fd)
        kill(self.child, signal.SIGKILL)
        try:
            threads = json.loads(self._text)
            if isinstance(threads, list):
                return threads
        except ValueError:
            pass
        said = os.pread(self._errors, 4096, 0).decode(errors="replace").strip()
        if "ermission" in said:
            return _refusal()
        return _clipped(said.partition("\n")[0]) or "py-spy gave no answer"


def _refusal() -> str:
    try:
        with open(_YAMA) as file:
            return f"the node's kernel forbids it (kernel.yama.ptrace_scope = {file.read(1)})"
    except OSError:
        return "the node's kernel forbids it"


def _threads(found: Sequence[Any], pid: int, work: str) -> List[Dict[str, Any]]:
    """Return py-spy's threads with what is sent of each, the main one first."""
    ordered = sorted(found, key=lambda thread: thread.get("os_thread_id") != pid)
    return [
        {
            "name": _clipped(thread.get("thread_name") or ""),
            "frames": [_frame(frame, work) for frame in thread.get("frames", ())[:_FRAMES]],
        }
        for thread in ordered[:_THREADS]
    ]


def _frame(frame: Mapping[str, Any], work: str) -> Frame:
    """Return a frame's function, its file as people call it, the line, and whether it is in the job's own code."""
    path = str(frame.get("filename") or "")
    own = path.startswith(work + "/") or not path.startswith(("/", "<"))
    short = path[len(work) + 1 :] if path.startswith(work + "/") else _LIBRARIES.sub("", path)
    return _clipped(frame.get("name")), _clipped(short[-_LETTERS:]), int(frame.get("line") or 0), own


def _fitting(found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return as much as a frame can have: where that is little, only the first frames of main threads."""
    if len(json.dumps(found)) <= _MOST_BYTES:
        return found
    for one in found:
        one["threads"] = [{**thread, "frames": thread["frames"][:_FEW_FRAMES]} for thread in one["threads"][:1]]
    return found if len(json.dumps(found)) <= _MOST_BYTES else [{**one, "threads": []} for one in found]
