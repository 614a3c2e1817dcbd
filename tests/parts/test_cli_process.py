"""The program as a process: what its caller sees when output or start goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def test_a_full_output_is_told_in_a_word(tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from phalanx.cli import main; main()", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 2)
    assert done.stderr.startswith(b"error: can't write: No space left on device")


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path):
    # Stands in for a slow import: it is interrupted while phalanx.cli imports it.
    (tmp_path / "click.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-c", "from phalanx.cli import main"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
