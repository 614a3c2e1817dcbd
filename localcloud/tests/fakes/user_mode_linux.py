"""A kernel of Debian's that runs as a process, on this machine's files: for what this machine's own kernel lacks."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_PLACE = Path(sys.prefix) / "uml"
_MARK = "what was seen: "
_POWER_OFF = 0x4321FEDC


def boot(program: str, tmp_path: Path, *, memory_mib: int = 512, timeout_s: float = 120) -> Any:
    """Return what `program`, as process 1 of the kernel, has seen there (see `tell`); skip where it is missing."""
    if not (_PLACE / "linux.uml").exists():
        pytest.skip("there is no .venv/uml: scripts/uml makes it, from packages of Debian")
    command = [
        *(_PLACE / "linux.uml", "quiet", f"mem={memory_mib}M", "con0=fd:0,fd:1", "con=null"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        # What the kernel does not know becomes a variable of its first process.
        *(f"PYTHONPATH={Path(__file__).parent}", f"init={sys.executable}", "--", program),
    ]
    home = tmp_path / "home"
    home.mkdir()
    output = tmp_path / "output"
    with output.open("w") as out:
        machine = subprocess.Popen(
            command,
            env={"LD_PRELOAD": str(_PLACE / "registers.so"), "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            machine.wait(timeout_s)
        finally:
            # Its processes are processes of this machine.
            with suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
    said = output.read_text(errors="replace")
    found = [line for line in said.splitlines() if line.startswith(_MARK)]
    assert found, said
    return json.loads(found[0].removeprefix(_MARK))


def tell(observe: Callable[[], Any]) -> None:
    """As process 1: print what `observe` returns, as JSON for `boot`, and end the kernel."""
    try:
        print(_MARK + json.dumps(observe()), flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        ctypes.CDLL(None).reboot(_POWER_OFF)
