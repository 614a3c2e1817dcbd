"""Runs on every node of a job: starts its processes, sends their output to the head, and ends all of them.

The runner on the head has the other end of stdin and stdout (over ssh). When that closes, the starter ends everything.
It does the same after FENCE_S of silence: the runner has given up this node long before, and a connection that looks
open proves nothing.
"""

from __future__ import annotations

import _thread
import json
import os
import re
import select
import signal
import socket
import time

from phalanx.runner import frames
from phalanx.runner.environments import node_copy
from phalanx.runner.liveness import BEAT_EVERY_S, FENCE_S, Contact, Pace
from phalanx.runner.loop import READ_BYTES, Loop, Sender
from phalanx.runner.names import LIBRARY, LOST, STDIN
from phalanx.runner.reaper import GRACE_S, Sweep, has_group, kill, signal_group
from phalanx.runner.starter import fabric as network
from phalanx.runner.starter.answers import answer
from phalanx.runner.starter.check import (
    PACKAGE_NOT_FOUND,
    PORT_TAKEN,
    first_problem,
    kept_there,
    missing_packages,
    python_target,
    taken,
)
from phalanx.runner.starter.forward import Forwarder
from phalanx.runner.starter.guest import Guest
from phalanx.runner.starter.keeper import ASKED
from phalanx.runner.starter.memory import oom_kills
from phalanx.runner.starter.rank_signal import Notice
from phalanx.runner.starter.scratch import Scratch
from phalanx.runner.starter.watch import Watch
from phalanx.runner.system import (
    ENVIRONMENT,
    MARK,
    RUNNER_SOCKET,
    STARTER_SOCKET,
    activated,
    adopt_orphans,
    boot_id,
    descends,
    peer_is_us,
    process_stat,
    reap,
    spawn,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

_SWEEP_EVERY_S = 0.02
# A report that can't be sent (the network is gone) must not keep this process alive.
_REPORT_TAKEN_WITHIN_S = 5.0
# What a keeper says of its rank. Any process of the job may say it, too.
_PID, _CODE = re.compile("[1-9][0-9]{0,9}"), re.compile(rb"-?[0-9]{1,3}")


class Starter:
    """One node's part of one job."""

    def __init__(self, job_id: str, work: str) -> None:
        self._job_id = job_id
        self._work = work
        self._directory = os.path.dirname(work)  # of the job; work may move to a directory of this node
        self._loop = Loop()
        self._out = Sender(self._loop, 1, lambda: self._give_up("the head is gone"))
        self._reader = frames.FrameReader()
        self._numbers: Dict[int, int] = {}  # pid → process number, while it lives
        self._spawned: List[int] = []
        self._own_ranks: Set[int] = set()  # numbers of spawned processes that are ranks themselves
        self._asked: Dict[int, float] = {}  # pid of a rank → when it got SIGTERM
        self._orphans: Set[int] = set()  # pids of ranks whose keepers an engine has killed
        # Of ranks that were asked to end, and have ended before their children: pid → number, exit code and deadline.
        self._families: Dict[int, Tuple[int, int, float]] = {}
        self._held: List[socket.socket] = []  # of keepers whose engine does not know yet that their ranks have ended
        self._holds_ends = False
        self._grace_s = GRACE_S
        self._notice = Notice()
        self._agents: Dict[int, int] = {}  # ASK number → where its answer goes
        self._next_rank = frames.FIRST_RANK_NUMBER
        self._sweep: Optional[Sweep] = None
        self.abandoned = False
        self._is_terminated = False  # TERMINATE has come
        self._is_used = False  # CHECK has come
        self._done_at = 0.0
        self._contact = Contact()
        self._pace = Pace()
        self._null = os.open(os.devnull, os.O_RDWR)
        self._waiting: Optional[List[Tuple[int, Dict[str, Any]]]] = None  # processes to start, while files are placed
        self._scratch = Scratch(job_id)
        self._watch = Watch(self._loop, self._directory, self._out.send)
        self._output = Forwarder(self._loop, self._out, self._watch.counting)
        self._guest = Guest(self._loop, job_id, self._report_trouble)
        self._report: Optional[Dict[str, Any]] = None  # what the sweep has found, while uploads to S3 end
        self._oom_kills_before = oom_kills()

    def run(self) -> None:
        """Serve the head until the job has ended here."""
        adopt_orphans()
        self._watch_signals()
        self._listen()
        self._loop.watch(0, self._read_commands)
        self._out.send(frames.MAGIC)
        while not self._is_over():
            self._loop.turn(_SWEEP_EVERY_S if self._sweep or self._orphans or self._families else BEAT_EVERY_S)
            self._output.balance()
            self._beat()
            self._insist()
            self._watch.check()
            self._step_sweep()

    def _is_over(self) -> bool:
        if not self._done_at:
            return False
        return not self._out.pending or time.monotonic() > self._done_at + _REPORT_TAKEN_WITHIN_S

    def _beat(self) -> None:
        if self._pace.is_due():
            self._guest.register()
            self._pass_on_notice()
            self._scratch.look()
            # Pending output is a sign of life, too.
            if not self._out.pending:
                self._out.send(self._watch.beat())
        if self._contact.update() > FENCE_S:
            self._give_up(f"its starter heard nothing from the runner for {FENCE_S:g} s")

    def _begin_sweep(self, grace_s: float) -> None:
        self._watch.end()
        self._scratch.look(last=True)
        self._sweep = Sweep(self._job_id, os.getpid(), grace_s)

    def _watch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._give_up("its starter was ended by a signal"))
        self._loop.watch(wake_read, self._on_signal)

    def _on_signal(self, fd: int) -> None:
        os.read(fd, 4096)
        self._reap_children()

    def _reap_children(self) -> None:
        for pid, code in reap():
            self._orphans.discard(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:
                self._ended_with_children(pid, number, code)

    # Requests of the head.

    def _read_commands(self, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        if not data:
            self._loop.forget(fd)
            self._give_up("the head is gone")
            return
        self._contact.heard()
        for kind, _, number, payload in self._reader.feed(data):
            self._handle(kind, number, json.loads(payload) if payload else {})

    def _handle(self, kind: int, number: int, body: Dict[str, Any]) -> None:
        if kind == frames.CHECK:
            self._is_used = True
            self._watch.begin(body["step"])
            self._scratch.make()
            self._guest.token = body["token"]
            self._holds_ends, self._grace_s = body["holds_ends"], body["grace_s"]
            self._guest.register()
            self._check_in_place(body)
        elif kind == frames.SPAWN:
            if self._waiting is None:
                self._spawn(number, body)
            else:
                self._waiting.append((number, body))
        elif kind == frames.TERMINATE:
            self._scratch.look(last=True)
            self._scratch.say_why(body["reason"])
            self._ask_ranks()
            if not body["only_ranks"]:
                self._terminate()
        elif kind == frames.KICK:
            self._kick()
        elif kind == frames.GLANCE:
            self._watch.glance(number, self._numbers)
        elif kind == frames.NOTICE:
            self._scratch.say_why(body["reason"])
            self._notice.give(body["reason"])
            self._pass_on_notice()
        elif kind == frames.LOOK:
            self._watch.look(self._ranks(), self._work)
        elif kind == frames.ANSWER:
            answer(self._agents.pop(number), body["code"])
        elif kind == frames.END:
            self._begin_sweep(body["grace_s"])

    def _check_in_place(self, body: Dict[str, Any]) -> None:
        kept = self._kept_environment(body["env"])
        if not body["sync_dir"] and not kept:
            self._check(body)
            return
        from phalanx.runner.starter.placing import place  # here, because most starters do not need its 10 ms

        # In a thread: the copies may take longer than a starter may be silent.
        done_read, done_write = os.pipe()
        source, self._waiting = self._work, []
        if body["sync_dir"]:
            self._work = os.path.join(os.path.expanduser("~"), os.path.expanduser(body["sync_dir"]))
        _thread.start_new_thread(lambda: os.write(done_write, _as_message(place(source, self._work, kept))), ())
        self._loop.watch(done_read, lambda fd: self._on_placed((fd, done_write), body))

    def _kept_environment(self, env: Dict[str, str]) -> str:
        """Return where the job's environment is kept if this node has yet to bring it; else ""."""
        path = env.get(ENVIRONMENT, "")
        if not node_copy.is_for_every_node(path):
            return ""
        kept = os.path.join(node_copy.root_of(self._directory), os.path.basename(path))
        return "" if node_copy.is_here(kept) else kept

    def _on_placed(self, pipe: Tuple[int, int], body: Dict[str, Any]) -> None:
        text = os.read(pipe[0], select.PIPE_BUF).decode(errors="replace").strip("\0")
        self._loop.forget(pipe[0])
        for fd in pipe:
            os.close(fd)
        waiting, self._waiting = self._waiting or [], None
        if text:
            self._answer_check(text, 1)
        else:
            self._check(body)
        # Even now, because the head expects their ends; after the sweep began, none would be found.
        for number, process in waiting if self._sweep is None else ():
            self._spawn(number, process)

    def _check(self, body: Dict[str, Any]) -> None:
        env = self._environment(body["env"])
        text, code = first_problem(body["commands"], self._work, env, self._directory)
        ports = taken(body["ports"])
        if ports and not text:
            text, code = f"port {', '.join(map(str, ports))} on {{nodes}} is taken", PORT_TAKEN
        target = python_target(body["commands"][0]) if body["imports"] and not text else []
        if target:
            self._check_imports(body["commands"][0][0], target, env)
            return
        self._answer_check(text, code, ports)

    def _answer_check(self, text: str, code: int, ports: Sequence[int] = ()) -> None:
        body = {"problem": text, "code": code, "taken": list(ports), "boot_id": boot_id()}
        self._out.send(frames.pack_json(frames.CHECKED, body))

    def _check_imports(self, python: str, target: List[str], env: Dict[str, str]) -> None:
        """Start the check in the job's Python, without waiting: it may not answer."""
        answer, out = os.pipe()
        argv = (python, os.path.join(self._directory, "imports.py"), *target)
        spawn(argv, env, (self._null, out, self._null), self._work, die_with_parent=True)
        os.close(out)
        self._loop.watch(answer, lambda fd: self._on_imports(fd, target))

    def _on_imports(self, fd: int, target: List[str]) -> None:
        text = missing_packages(target, os.read(fd, select.PIPE_BUF), kept_there(self._directory))
        self._loop.forget(fd)
        os.close(fd)
        self._answer_check(text, PACKAGE_NOT_FOUND if text else 0)

    def _spawn(self, number: int, body: Dict[str, Any]) -> None:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        env = self._environment(body["env"])
        # Otherwise engines and libraries would each take all cores, or (torchrun) only one.
        env.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // max(1, body["ranks"]))))
        stdin = self._stdin() if body["reads_stdin"] else self._null
        pid = spawn(body["argv"], env, (stdin, out_write, err_write), self._work, die_with_parent=True)
        if stdin != self._null:
            os.close(stdin)
        os.close(out_write)
        os.close(err_write)
        self._numbers[pid] = number
        self._spawned.append(pid)
        if body["is_rank"]:
            self._own_ranks.add(number)
        self._output.add(number, out_read, err_read, body["harmless"], body["is_rank"])

    def _stdin(self) -> int:
        try:
            return os.open(os.path.join(self._directory, STDIN), os.O_RDONLY)
        except FileNotFoundError:
            return self._null  # the job has no input

    def _environment(self, extra: Dict[str, str]) -> Dict[str, str]:
        # Unbuffered: a Python rank's output appears at once, as on a terminal.
        own = {RUNNER_SOCKET: self._socket_name, **extra, MARK: self._job_id, STARTER_SOCKET: self._socket_name}
        own_places = {"PWD": self._work, **self._scratch.variables()}
        node = {**network.variables(), **network.flight_recorder(self._directory), **os.environ, **own_places}
        node.update(self._guest.variables())
        env = {"PYTHONUNBUFFERED": "1", **node, **own}
        # Last, so that nothing of the user's is hidden.
        path = (env.get("PYTHONPATH"), os.path.join(self._directory, LIBRARY))
        return activated({**env, "PYTHONPATH": os.pathsep.join(filter(None, path))})

    def _ask_ranks(self) -> None:
        self._is_terminated = True
        for pid, number in list(self._numbers.items()):
            if number >= frames.FIRST_RANK_NUMBER or number in self._own_ranks:
                self._ask_rank(pid)

    def _ask_rank(self, pid: int) -> None:
        """Send a rank SIGTERM, once: it may take a second one as a reason to hurry."""
        if pid in self._asked or not descends(pid, os.getpid()):
            return
        self._asked[pid] = time.monotonic()
        if self._numbers.get(pid) in self._own_ranks:
            signal_group(pid)
        else:
            kill(pid, signal.SIGTERM)

    def _terminate(self) -> None:
        self._holds_ends = False
        for pid in self._spawned:
            if pid in self._numbers and pid not in self._asked:
                signal_group(pid)
        for keeper in self._held:
            keeper.close()
        self._held = []

    def _insist(self) -> None:
        """Kill ranks that their engine wanted to kill, after the job's grace."""
        self._report_families()
        for pid in list(self._orphans):
            if time.monotonic() >= self._asked.get(pid, 0.0) + self._grace_s:
                self._orphans.discard(pid)
                kill(pid, signal.SIGKILL)

    def _kick(self) -> None:
        for pid, number in self._numbers.items():
            if number >= frames.FIRST_RANK_NUMBER and descends(pid, os.getpid()):
                kill(pid, signal.SIGKILL)

    def _pass_on_notice(self) -> None:
        self._notice.pass_on({n: pid for n, pid in self._ranks().items() if descends(pid, os.getpid())})

    def _ranks(self) -> Dict[int, int]:
        """Return the ranks that live here (process number → pid)."""
        return {n: pid for pid, n in self._numbers.items() if n >= frames.FIRST_RANK_NUMBER or n in self._own_ranks}

    def _ended(self, number: int, code: int) -> None:
        body = {"code": code, "at": time.time(), "ending": self._is_terminated, "oom_kills": None}
        if code == -signal.SIGKILL and self._oom_kills_before is not None:
            body["oom_kills"] = max(0, (oom_kills() or 0) - self._oom_kills_before)
        self._output.end(number)
        self._out.send(frames.pack_json(frames.EXIT, body, number))

    # Ranks: an engine starts keepers, and each connects and passes its rank's output.

    def _listen(self) -> None:
        self._socket_name = f"phalanx-{self._job_id}-{os.getpid()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("\0" + self._socket_name)
        listener.listen(1024)
        self._loop.watch(listener.fileno(), lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        keeper, _ = listener.accept()
        if not peer_is_us(keeper):
            keeper.close()
            return
        number = self._next_rank
        self._next_rank += 1
        self._loop.watch(keeper.fileno(), lambda _: self._read_keeper(keeper, number))

    def _read_keeper(self, keeper: socket.socket, number: int) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(keeper, 1 << 20, 2)
        except OSError:
            message, fds = b"", []
        if len(fds) == 1:
            self._loop.forget(keeper.fileno())
            keeper.close()
            self._ask(number, fds[0], message)
            return
        if fds:
            self._add_rank(message.decode(errors="replace"), fds, number)
            return
        if message == ASKED:
            for pid in [pid for pid, owner in self._numbers.items() if owner == number]:
                self._ask_rank(pid)
            return
        self._loop.forget(keeper.fileno())
        code = int(message) if _CODE.fullmatch(message) else None
        if code is not None and self._holds_ends and (code or self._is_terminated):
            self._held.append(keeper)
        else:
            keeper.close()
        self._rank_ended(number, code)

    def _add_rank(self, said: str, fds: Sequence[int], number: int) -> None:
        """Add a rank that a keeper announces. Its pid may be anybody's, so only descendants are signalled."""
        label, _, text = said.partition(" ")
        pid = int(text) if _PID.fullmatch(text) else 0
        if not pid or pid in self._numbers:
            for fd in fds:
                os.close(fd)
            return
        self._out.send(frames.pack_json(frames.RANK, {"label": label}, number))
        self._numbers[pid] = number
        self._output.add(number, fds[0], fds[1])

    def _ask(self, number: int, agent: int, request: bytes) -> None:
        """Forward an agent's request to the runner, because its engine does not run on the head."""
        node, _, command = os.fsdecode(request).partition("\0")
        self._agents[number] = agent
        self._out.send(frames.pack_json(frames.ASK, {"node": node, "command": command}, number))

    def _rank_ended(self, number: int, code: Optional[int]) -> None:
        pid = next((pid for pid, owner in self._numbers.items() if owner == number), None)
        if pid is None:
            return
        stat = process_stat(pid)
        if code is None and stat and stat["parent"] == str(os.getpid()):
            # The engine killed only the keeper, but meant its rank, now a child of this process; reap() finds its end.
            self._ask_rank(pid)
            self._orphans.add(pid)
            return
        del self._numbers[pid]
        self._ended_with_children(pid, number, -signal.SIGKILL if code is None else code)

    def _ended_with_children(self, pid: int, number: int, code: int) -> None:
        """Report the end of a process; of a rank that was asked to end, when its process group has ended, too.

        A shell ends at SIGTERM, while the program that it has started may still save its state.
        """
        asked_at = self._asked.pop(pid, None)
        if asked_at is None:
            self._ended(number, code)
            return
        if number not in self._own_ranks and has_group(pid):
            signal_group(pid)  # only the rank itself was asked
        self._families[pid] = (number, code, asked_at + self._grace_s)
        self._report_families()

    def _report_families(self) -> None:
        for pid, (number, code, deadline) in list(self._families.items()):
            if time.monotonic() >= deadline or not has_group(pid):
                del self._families[pid]
                self._ended(number, code)

    # The end.

    def _give_up(self, reason: str) -> None:
        """End everything, and report the reason to the head if it still listens."""
        if not self._is_used:
            # Its line broke before it was used. It has no processes, but the job's next starter here may have some.
            self._done_at = self._done_at or time.monotonic()
        elif self._sweep is None or self._report:
            self.abandoned = True
            self._out.send(frames.pack_json(frames.LEAVING, {"reason": reason}))
            if self._sweep is None:
                self._scratch.say_why(LOST)
                self._begin_sweep(self._grace_s)

    def _step_sweep(self) -> None:
        if self._sweep is None or self._done_at:
            return
        if self._report is None:
            self._report = self._sweep.step()
            if self._report is None:
                return
            self._reap_children()
            self._output.drain_all()
            self._scratch.remove()
            self._guest.settle()
            if not self._guest.is_settled:
                self._out.send(frames.pack(frames.SAVING))
        if self._guest.is_settled or self.abandoned:
            self._out.send(frames.pack_json(frames.REPORT, self._report))
            self._done_at = time.monotonic()

    def _report_trouble(self, reason: str, kind: str) -> None:
        if kind == "unsure":
            self._out.send(frames.pack_json(frames.UNSURE, {"reason": reason}))
        else:
            self._out.send(frames.pack_json(frames.TROUBLE, {"reason": reason, "is_loss": kind == "lost"}))


def _as_message(problem: str) -> bytes:
    """Return bytes for a pipe, never none; names of files need not be UTF-8."""
    return problem.encode(errors="replace") or b"\0"
