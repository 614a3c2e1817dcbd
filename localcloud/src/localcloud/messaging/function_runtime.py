"""The main program of a Lambda environment's process: load the handler once, then answer one event per line.

It is started as `python -I function_runtime.py DIRECTORY HANDLER RESULT_FD`, reads events from stdin and writes
results to RESULT_FD. It imports nothing of localcloud: the function's directory comes first on the path, as in AWS.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


class LambdaContext:
    """What a handler gets as its second argument."""

    def __init__(self, request_id: str, deadline: float) -> None:
        self.aws_request_id = request_id
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.invoked_function_arn = os.environ["AWS_LAMBDA_FUNCTION_ARN"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.identity = None
        self.client_context = None
        self._deadline = deadline

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the process is killed."""
        return max(0, int((self._deadline - time.time()) * 1000))


def main(directory: str, handler: str, result_fd: str) -> None:
    """Serve events until stdin ends."""
    # `python -I` keeps this file's directory off the path.
    sys.path.insert(0, directory)
    # Garbage collection would take a quarter of the time that importing boto3 takes.
    gc.disable()
    with os.fdopen(int(result_fd), "w") as results:
        function = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                function = function or _load(handler)
                context = LambdaContext(request["id"], request["deadline"])
                answer = {"payload": json.dumps(function(request["event"], context))}
            except Exception as error:
                traceback.print_exc()
                answer = {"payload": json.dumps(_described(error)), "error": True}
            sys.stdout.flush()
            sys.stderr.flush()
            results.write(json.dumps(answer) + "\n")
            results.flush()
            gc.enable()


def _load(handler: str) -> Callable[[Any, LambdaContext], Any]:
    module, _, name = handler.rpartition(".")
    return getattr(importlib.import_module(module.replace("/", ".")), name)


def _described(error: Exception) -> dict[str, Any]:
    return {
        "errorMessage": str(error),
        "errorType": type(error).__name__,
        "stackTrace": traceback.format_tb(error.__traceback__),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
