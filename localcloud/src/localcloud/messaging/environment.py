"""One execution environment of a Lambda function: a process in a sandbox that runs the handler for each event."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moto.awslambda.exceptions import InvalidParameterValueException
from moto.awslambda.models import LambdaFunction

from localcloud.context import Context, Issued
from localcloud.messaging import sandbox
from localcloud.storage import trees

# Inside the local cloud's state directory.
DIRECTORY = "functions"
RUNTIME = Path(__file__).with_name("function_runtime.py")
SANDBOX = Path(sandbox.__file__)
# Starting the interpreter does not count against the function's timeout; AWS allows 10 s for initialization.
START_ALLOWANCE_S = 10.0
# "Lambda quotas" in AWS's developer guide: the size of the unzipped code, and of an answer.
CODE_BYTES = 262_144_000
ANSWER_BYTES = 6_291_556
# Of what an invocation prints, the last part is logged.
LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """How an invocation ended: the handler's result or its error as JSON, and what it printed."""

    payload: str
    failed: bool
    log: str


class Environment:
    """Starts the process at once. Runs one invocation at a time; after a timeout or a crash it is no longer `alive`."""

    def __init__(self, function: LambdaFunction, context: Context, issued: Issued) -> None:
        self.arn = function.function_arn
        self.idle_since = context.clock.now()
        self.log_stream = f"{context.clock.now():%Y/%m/%d}/[$LATEST]{uuid.uuid4().hex}"
        self._version = _version(function)
        self._used = False
        root = context.state / DIRECTORY
        root.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix=f"{function.function_name[:40]}-", dir=root))
        self._output = self._directory / "output.log"
        self._start(function, self._variables(function, context, issued), context)

    def fits(self, function: LambdaFunction) -> bool:
        """Whether the process lives, and the function's code and settings are those it was started with."""
        return self.alive() and self._version == _version(function)

    def alive(self) -> bool:
        """Whether another event can be sent."""
        return self._process.poll() is None

    def invoke(self, request_id: str, event: Any, timeout_s: float) -> Outcome:
        """Run the handler once. Kill the process when it takes longer than `timeout_s`."""
        allowed_s = timeout_s if self._used else timeout_s + START_ALLOWANCE_S
        self._used = True
        request = {"id": request_id, "deadline": time.time() + timeout_s, "event": event}
        deadline = time.monotonic() + allowed_s
        try:
            line = self._answer(deadline) if self._send(json.dumps(request).encode() + b"\n", deadline) else None
        except OSError:
            line = b""
        if line is None:
            self.kill()
            return self._failed(f"{request_id} Task timed out after {timeout_s:.2f} seconds", "Sandbox.Timedout")
        if not line:
            status = self._process.wait(timeout=5)
            return self._failed(f"RequestId: {request_id} Error: Runtime exited: {status}", "Runtime.ExitError")
        if len(line) > ANSWER_BYTES:
            self.kill()
            return self._failed(f"The answer is larger than {ANSWER_BYTES} bytes", "Function.ResponseSizeTooLarge")
        try:
            answer = json.loads(line)
            payload, failed = str(answer["payload"]), bool(answer.get("error"))
            json.loads(payload)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            # The function has written to the pipe itself.
            self.kill()
            return self._failed(f"RequestId: {request_id} Error: The answer is not JSON", "Runtime.MarshalError")
        return Outcome(payload, failed, self._printed())

    def kill(self) -> None:
        """Kill the process and its children, and wait for their end."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(timeout=5)
        if not self._results.closed:
            # The kernel ends the sandbox's other processes a moment later, and each has the pipe open.
            poll = select.poll()
            poll.register(self._results, select.POLLHUP)
            poll.poll(5000)

    def close(self) -> None:
        """Kill the process and remove its files; may be called twice."""
        self.kill()
        self._results.close()
        self._stdin.close()
        trees.remove(self._directory)

    def _start(self, function: LambdaFunction, variables: dict[str, str], context: Context) -> None:
        code, root = self._directory / "task", self._directory / "root"
        code.mkdir(mode=0o755)
        root.mkdir()
        _extract(function.code_bytes, code)
        reader, writer = os.pipe()
        program = [sys.executable, "-I", "-u", f"{sandbox.RUNTIME}/{RUNTIME.name}", sandbox.TASK]
        settings = sandbox.Settings(
            argv=[*program, str(function.handler), str(writer)],
            root=str(root),
            task=str(code),
            runtime=str(RUNTIME),
            shown=sorted({sys.prefix, sys.base_prefix}),
            first_id=context.root_of_nodes,
            memory_mib=int(function.memory_size),
        )
        sources = str(Path(__file__).parents[2])
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(SANDBOX), sources, json.dumps(asdict(settings))],
                cwd="/",
                env=variables,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writer],
                start_new_session=True,
            )
        os.close(writer)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._results = os.fdopen(reader, "rb", buffering=0)

    def _variables(self, function: LambdaFunction, context: Context, issued: Issued) -> dict[str, str]:
        """Return the function's variables and Lambda's own, which take precedence as in AWS."""
        return {
            **{name: str(value) for name, value in function.environment_vars.items()},
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "LAMBDA_TASK_ROOT": sandbox.TASK,
            "AWS_ENDPOINT_URL": context.url_nodes,
            "AWS_REGION": function.region,
            "AWS_DEFAULT_REGION": function.region,
            "AWS_ACCESS_KEY_ID": issued.access_key_id,
            "AWS_SECRET_ACCESS_KEY": issued.secret_access_key,
            "AWS_SESSION_TOKEN": issued.session_token,
            "AWS_LAMBDA_FUNCTION_NAME": function.function_name,
            "AWS_LAMBDA_FUNCTION_ARN": function.function_arn,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_size),
            "AWS_LAMBDA_LOG_GROUP_NAME": function.logs_group_name,
            "AWS_LAMBDA_LOG_STREAM_NAME": self.log_stream,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.run_time}",
            "_HANDLER": str(function.handler),
        }

    def _send(self, data: bytes, deadline: float) -> bool:
        """Write to the process; return whether it took all in time: it may have stopped reading."""
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        while data:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                return False
            data = data[os.write(self._stdin.fileno(), data) :]
        return True

    def _answer(self, deadline: float) -> bytes | None:
        """Read one line of the result pipe, or a longer piece than an answer may be.

        Returns b"" when the process ended, None after the deadline.
        """
        line = b""
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        while not line.endswith(b"\n") and len(line) <= ANSWER_BYTES:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                return None
            chunk = os.read(self._results.fileno(), 65_536)
            if not chunk:
                return b""
            line += chunk
        return line

    def _failed(self, message: str, kind: str) -> Outcome:
        payload = json.dumps({"errorMessage": message, "errorType": kind})
        return Outcome(payload, True, f"{self._printed()}{message}\n")

    def _printed(self) -> str:
        """Take the last LOG_BYTES of what was printed since the last time."""
        with self._output.open("r+b") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - LOG_BYTES))
            text = output.read().decode(errors="replace")
            output.truncate(0)
        return text


def _extract(archive_bytes: bytes, directory: Path) -> None:
    """Unpack a function's code. AWS checks its size when the function is made; here it is checked when it starts."""
    with zipfile.ZipFile(io.BytesIO(archive_bytes)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > CODE_BYTES:
            raise InvalidParameterValueException(f"Unzipped size must be smaller than {CODE_BYTES} bytes")
        archive.extractall(directory)


def _version(function: LambdaFunction) -> tuple[Any, ...]:
    settings = json.dumps(function.environment_vars, sort_keys=True, default=str)
    return function.code_sha_256, function.handler, function.role, settings
