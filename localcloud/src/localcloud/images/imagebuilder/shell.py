"""Runs programs as root of a node, in its namespaces: what the agent of Systems Manager does on AWS."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from localcloud.images import store
from localcloud.nodes.machine import STANDARD_PATH

_ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_ENV = {"PATH": STANDARD_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
# The node's own files, without what its boot mounts.
_PACK = ("tar", "--create", "--one-file-system", "--numeric-owner", "--exclude=./dev/*", "--directory=/", ".")
_MOST_CHARACTERS = 500
_UNPACK = ("tar", "--extract", "--numeric-owner", "--preserve-permissions")


class Shell:
    """A root shell on the node whose process 1 is `pid`, as this process sees it."""

    def __init__(self, pid: int) -> None:
        self._target = ("nsenter", f"--target={pid}", "--user")

    def succeeds(self, *argv: str) -> bool:
        """Run a program quietly, and return whether it succeeded."""
        done = subprocess.run([*self._target, *_ENTER, *argv], env=_ENV, capture_output=True, check=False)
        return done.returncode == 0

    def run(self, script: str, timeout_s: float, say: Callable[[str], None]) -> str:
        """Run a script with bash, and pass each line of its output on. Return what failed, "" for nothing."""
        pipe = subprocess.PIPE
        argv = [*self._target, *_ENTER, "bash", "-s"]
        process = subprocess.Popen(argv, env=_ENV, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, cwd="/")
        assert process.stdin and process.stdout
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(script.encode())
            for line in process.stdout:
                say(line.decode(errors="replace").rstrip())
            code = process.wait()
        finally:
            late = timer.finished.is_set()
            timer.cancel()
        if late:
            return f"timed out after {timeout_s:g} s"
        return f"exit code {code}" if code else ""

    def copy(self, tree: Path) -> str:
        """Copy the node's file system to a directory of the nodes' root. Return what failed, "" for nothing."""
        # By the current directory, since the nodes' root may not enter those above it.
        unpack = [*self._target, *_UNPACK]
        with subprocess.Popen([*self._target, *_ENTER, *_PACK], env=_ENV, stdout=subprocess.PIPE) as packing:
            unpacked = subprocess.run(unpack, stdin=packing.stdout, stderr=subprocess.PIPE, cwd=tree, check=False)
        # tar's 1: a file changed while it was read, such as a log.
        if packing.returncode not in (0, os.EX_OK + 1) or unpacked.returncode:
            last = unpacked.stderr.decode(errors="replace")
            ended = (
                f"tar ended with exit codes {packing.returncode} and {unpacked.returncode}: {last[-_MOST_CHARACTERS:]}"
            )
            return store.full_disk(last, tree.parents[1]) or ended
        return ""
