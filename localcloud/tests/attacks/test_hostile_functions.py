"""A Lambda function of a stranger: it gets nothing of this machine, and leaves nothing here."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fleet_fakes import Cloud, cloud, until
from lambda_functions import function, invoke, log_lines, result

from localcloud.messaging import environment, functions, sandbox
from localcloud.nodes import userns


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        # As in a local cloud that root runs: a node's root is nobody on this machine.
        made.context.root_of_nodes = userns.root_of_nodes("range")
        yield made


def outcome(local: Cloud, expression: str, *, before: str = ""):
    """Evaluate an expression in a function; return its value, or the error's type and text."""
    source = f"""
import os, resource, socket, subprocess, sys
{before}
def handler(event, context):
    try:
        return {expression}
    except Exception as error:
        return [type(error).__name__, str(error)]
"""
    return result(local, function(local, source))


def test_a_function_reads_no_file_of_this_machine(local, tmp_path):
    secret = tmp_path / "id_ed25519"
    secret.write_text("private")
    for path in (secret, Path("/etc/shadow"), Path("/etc/hostname"), Path.home() / ".bashrc", Path(__file__)):
        assert outcome(local, f"os.stat({str(path)!r}) and 'seen'")[0] == "FileNotFoundError", path
    own = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "var"}
    pythons = {Path(prefix).parts[1] for prefix in (sys.prefix, sys.base_prefix)}
    assert set(outcome(local, "os.listdir('/')")) <= own | pythons


@pytest.mark.parametrize("has_own_ids", [True, False])
def test_a_function_writes_only_to_its_own_memory(local, has_own_ids):
    if not has_own_ids:
        local.context.root_of_nodes = 0
    for path in ("/usr/x", "/etc/x", "/var/task/x", "/x", "/dev/x", "/proc/sys/kernel/core_pattern"):
        error = outcome(local, f"open({path!r}, 'w') and 'written'")
        assert error[0] in ("OSError", "PermissionError"), path
    assert outcome(local, "open('/tmp/x', 'w').write('mine')") == 4
    size = "os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize"
    assert outcome(local, size) == sandbox.TMP_MIB << 20


def test_a_function_sees_its_own_processes_only(local):
    assert set(outcome(local, "[int(p) for p in os.listdir('/proc') if p.isdigit()]")) == {1, 2}
    assert outcome(local, "os.kill(1, 9) or os.getppid()") in (
        1,
        ["PermissionError", "[Errno 1] Operation not permitted"],
    )
    assert outcome(local, "open('/proc/1/environ').read()")[0] == "PermissionError"


def test_a_function_has_no_rights_and_gets_none(local):
    status = outcome(local, "dict(l.split(':', 1) for l in open('/proc/self/status'))")
    assert {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == dict.fromkeys(
        ("CapPrm", "CapEff", "CapInh", "CapAmb"), 0
    )
    assert status["NoNewPrivs"].strip() == "1"
    assert outcome(local, "os.getuid()") == sandbox.USER
    assert outcome(local, "subprocess.run(['unshare', '-Ur', 'id', '-u'], capture_output=True).stdout.decode()") == ""
    assert outcome(local, "subprocess.run(['mount', '-t', 'tmpfs', 'x', '/tmp']).returncode") != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="with one user's ids, everything is this user's")
def test_a_functions_user_is_nobody_here(local, tmp_path):
    made = function(local, "import time\ndef handler(event, context): time.sleep(event)")
    result(local, made, 0)
    owners = [uid for uid, argv in processes() if argv.startswith(sandbox.TASK) or "function_runtime" in argv]
    assert local.context.root_of_nodes + sandbox.USER in owners


def processes() -> list[tuple[int, str]]:
    """List this machine's processes: uid and words."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((directory.stat().st_uid, (directory / "cmdline").read_text().replace("\0", " ")))
    return found


def named(mark: str) -> list[str]:
    return [argv for _uid, argv in processes() if mark in argv]


def test_nothing_of_a_function_outlives_it(local):
    """Not even what has left its session and its process group."""
    child = "subprocess.Popen(['sleep', '31415'], start_new_session=True).pid"
    made = function(local, f"import subprocess\ndef handler(event, context): return {child}")
    result(local, made)
    until(lambda: named("sleep 31415"))
    local.clock.advance(functions.WARM_S)
    until(lambda: not named("sleep 31415"))


@pytest.mark.parametrize("line", ["x" * 100_000, "\n" * 100_000])
def test_what_a_function_prints_is_bounded(local, line):
    made = function(local, f"line = {line!r}\ndef handler(event, context):\n  while True: print(line)", Timeout=20)
    assert result(local, made)["errorType"] in ("OSError", "Runtime.ExitError")
    assert sum(512 + len(one) for one in log_lines(local, made)) <= environment.LOG_BYTES + 3000
    directory = local.context.state / environment.DIRECTORY
    assert sum(file.stat().st_size for file in directory.glob("*/output.log")) == 0


def test_the_logs_of_functions_have_a_size(local, monkeypatch):
    monkeypatch.setattr(functions, "MOST_LOGGED_BYTES", 1 << 20)
    made = function(local, "def handler(event, context): print('x' * 400_000)")
    for _ in range(5):
        result(local, made)
        local.clock.advance(functions.WARM_S)
    assert 400_000 <= sum(map(len, log_lines(local, made))) <= 1 << 20


def test_the_events_that_wait_for_a_function_have_a_number(local, monkeypatch, tmp_path):
    monkeypatch.setattr(functions, "MOST_WAITING", 3)
    made = function(local, "import time\ndef handler(event, context): time.sleep(event); print('done', event)")
    for _ in range(functions.MAX_CHILDREN):
        invoke(local, made, 1, InvocationType="Event")
    until(lambda: len(functions._running()._busy) == functions.MAX_CHILDREN)
    for _ in range(10):
        invoke(local, made, 0, InvocationType="Event")

    def done() -> int:
        return sum(line.startswith("done") for line in log_lines(local, made))

    until(lambda: local.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{made}")["logGroups"])
    until(lambda: done() == functions.MAX_CHILDREN + 3)
    until(lambda: not functions._running()._busy)
    assert done() == functions.MAX_CHILDREN + 3


def test_a_process_has_the_memory_that_the_function_was_given(local):
    made = function(local, "def handler(event, context): return len(bytes(event << 20))", MemorySize=128)
    assert result(local, made, 32) == 32 << 20
    assert result(local, made, 128)["errorType"] == "MemoryError"


ANSWERS = {
    "no JSON": "b'{[\\n'",
    "no object": "b'7\\n'",
    "no payload": "b'{}\\n'",
    "a payload that is no JSON": 'b\'{"payload": "{"}\\n\'',
    "nested": "b'[' * 100000 + b'\\n'",
    "too long": "b'x' * 7000000",
}


@pytest.mark.parametrize("words", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_none_fails_the_invocation(local, words):
    made = function(local, f"import sys\ndef handler(event, context): open(int(sys.argv[3]), 'wb').write({words})")
    refused = invoke(local, made)
    assert refused["FunctionError"] == "Unhandled"
    kind = json.loads(refused["Payload"].read())["errorType"]
    assert kind in ("Runtime.MarshalError", "Function.ResponseSizeTooLarge")


@pytest.mark.cluster  # AWS's shortest timeout is a second
def test_a_function_that_does_not_read_its_event_times_out(local):
    lies = 'os.write(int(sys.argv[3]), b\'{"payload": "1"}\\n\')'
    made = function(local, f"import os, sys, time\ndef handler(event, context): {lies}; time.sleep(60)", Timeout=1)
    assert result(local, made) == 1
    began = time.monotonic()
    assert "timed out" in result(local, made, "x" * 1_000_000)["errorMessage"]
    assert time.monotonic() - began < 30


def test_code_that_is_too_large_unpacked_is_refused(local):
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"zeros{number}", bytes(100_000_000))
    made = function(local, "def handler(event, context): return 1")
    local.client("lambda").update_function_code(FunctionName=made, ZipFile=code.getvalue())
    with pytest.raises(local.client("lambda").exceptions.InvalidParameterValueException):
        invoke(local, made)
