"""One execution environment of a Lambda function: a child process that runs the handler for one event after another."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.awslambda.models import LambdaFunction

from localcloud.context import Context, Issued
from localcloud.storage import trees

# Inside the local cloud's state directory.
DIRECTORY = "functions"
RUNTIME = Path(__file__).with_name("function_runtime.py")
# Starting the interpreter does not count against the function's timeout; AWS allows 10 s for initialization.
START_ALLOWANCE_S = 10.0


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
        self._start(function, self._variables(function, context, issued))

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
        begin = self._output.stat().st_size
        request = {"id": request_id, "deadline": time.time() + timeout_s, "event": event}
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()
            line = self._answer(allowed_s)
        except OSError:
            line = b""
        if line is None:
            self.kill()
            return self._failed(begin, f"{request_id} Task timed out after {timeout_s:.2f} seconds", "Sandbox.Timedout")
        if not line:
            status = self._process.wait(timeout=5)
            return self._failed(begin, f"RequestId: {request_id} Error: Runtime exited: {status}", "Runtime.ExitError")
        answer = json.loads(line)
        return Outcome(answer["payload"], bool(answer.get("error")), self._printed(begin))

    def kill(self) -> None:
        """Kill the process and its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(timeout=5)

    def close(self) -> None:
        """Kill the process and remove its files; may be called twice."""
        self.kill()
        self._results.close()
        try:
            self._stdin.close()
        except OSError:
            # Flushing what was not yet written failed: there is no reader any more.
            pass
        trees.remove(self._directory)

    def _start(self, function: LambdaFunction, variables: dict[str, str]) -> None:
        code = self._directory / "task"
        with zipfile.ZipFile(io.BytesIO(function.code_bytes)) as archive:
            archive.extractall(code)
        reader, writer = os.pipe()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-u", str(RUNTIME), str(code), str(function.handler), str(writer)],
                cwd=code,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writer],
                start_new_session=True,
            )
        os.close(writer)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._results = os.fdopen(reader, "rb", buffering=0)

    def _variables(self, function: LambdaFunction, context: Context, issued: Issued) -> dict[str, str]:
        """Return the function's variables and Lambda's own, which take precedence as in AWS."""
        return {
            **{name: str(value) for name, value in function.environment_vars.items()},
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._directory),
            "LANG": "C.UTF-8",
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

    def _answer(self, timeout_s: float) -> bytes | None:
        """Read one line of the result pipe: b"" when the process ended, None after the timeout."""
        deadline = time.monotonic() + timeout_s
        line = b""
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        while not line.endswith(b"\n"):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                return None
            chunk = os.read(self._results.fileno(), 65_536)
            if not chunk:
                return b""
            line += chunk
        return line

    def _failed(self, begin: int, message: str, kind: str) -> Outcome:
        payload = json.dumps({"errorMessage": message, "errorType": kind})
        return Outcome(payload, True, f"{self._printed(begin)}{message}\n")

    def _printed(self, begin: int) -> str:
        with self._output.open("rb") as output:
            output.seek(begin)
            return output.read().decode(errors="replace")


def _version(function: LambdaFunction) -> tuple[Any, ...]:
    settings = json.dumps(function.environment_vars, sort_keys=True, default=str)
    return function.code_sha_256, function.handler, function.role, settings
