"""Hadoop YARN, through the ResourceManager's REST API: runs Hadoop's distributed shell with one container per node."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, AllocationStatus, Request, shown
from phalanx.runner.login import quoted
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from phalanx.runner.batch.scheduling import Call

NAME = "yarn"
SUMMARY = "YARN's distributed shell, through the ResourceManager's REST API"
HIDDEN = ("CONTAINER_ID", "YARN_SHELL_ID")
SHOWN = ()
NODE_INDEX = ""
GPUS = ("CUDA_VISIBLE_DEVICES",)

# What --via-option accepts: the ResourceManager's address, the queue, and the size of a container.
_DEFAULTS = {"--rm": "http://deeplearning-master:8088", "--queue": "default", "--memory": "1024", "--vcores": ""}
_MASTER = "org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster"
_MASTER_MB = 512
# The same as for commands, see `scheduling`.
_TIMEOUT_S = 15.0
# "If no filter is setup, the response will be an UNAUTHORIZED response", says the documentation of its REST API.
_UNAUTHORIZED = (
    "\nThe ResourceManager must know the user: hadoop.http.filter.initializers in its core-site.xml has to name an "
    "authentication filter, of the type simple (Kerberos is not supported)."
)
# "application states" of the ResourceManager's REST API.
_QUEUED = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
_HELD = ("RUNNING", "FINISHING")


def options(request: Request) -> dict[str, str]:
    """Parse --rm, --queue, --memory and --vcores. Raises RefusedError for anything else."""
    given = request.options
    chosen = dict(zip(given[::2], given[1::2]))  # noqa: B905 (Python 3.9 has no strict)
    if len(given) % 2 or set(chosen) - set(_DEFAULTS):
        raise RefusedError(f"yarn takes {', '.join(_DEFAULTS)}, each with a value, not '{' '.join(given)}'")
    return {**_DEFAULTS, "--vcores": str(request.per_node), **chosen}


def application(request: Request, name: str, chosen: dict[str, str]) -> dict[str, Any]:
    """Build the body for the Cluster Applications API's submission."""
    return {
        "application-id": name,
        "application-name": request.name,
        "application-type": "YARN",
        "queue": chosen["--queue"],
        "max-app-attempts": 1,
        "resource": {"memory": _MASTER_MB, "vCores": 1},
        "am-container-spec": {
            "commands": {"command": command(request, name, chosen)},
            "environment": {"entry": [{"key": "CLASSPATH", "value": _classpath()}]},
        },
    }


def command(request: Request, name: str, chosen: dict[str, str]) -> str:
    """Build the application master's command. It reads its containers' command from a file in its directory."""
    attend = request.attend(name, str(request.nodes), str(request.per_node))
    flags = (
        f"--container_memory {chosen['--memory']} --container_vcores {chosen['--vcores']}"
        f" --num_containers {request.nodes} --priority 0"
    )
    java = f"{{{{JAVA_HOME}}}}/bin/java -Xmx{_MASTER_MB // 2}m {_MASTER} {flags}"
    # YARN's own script puts this between double quotes, so it is `quoted`. Java's readUTF expects two bytes of length.
    length = "".join(f"\\{byte:03o}" for byte in len(attend.encode()).to_bytes(2, "big"))
    return f"printf '{length}%s' {quoted(attend)} >shellCommands && {java} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"


def _classpath() -> str:
    parts = ["common", "hdfs", "yarn"]
    homes = [f"{{{{HADOOP_{part.upper()}_HOME}}}}/share/hadoop/{part}" for part in parts]
    return "<CPS>".join(["{{HADOOP_CONF_DIR}}", *(f"{home}/{tail}" for home in homes for tail in ("*", "lib/*"))])


def submit(request: Request, _call: Call) -> str:
    """Submit the request; return the application's URL."""
    chosen = options(request)
    apps = f"{chosen['--rm'].rstrip('/')}/ws/v1/cluster/apps"
    name = _field(_ask("POST", f"{apps}/new-application"), "application-id", apps)
    _ask("POST", apps, application(request, name, chosen))
    return f"{apps}/{name}"


def status(allocation: str, _call: Call) -> AllocationStatus:
    """Return the state that the Cluster Application API shows."""
    app = _field(_ask("GET", allocation), "app", allocation)
    _field(app, "state", allocation)
    return read_status(app)


def read_status(app: dict[str, Any]) -> AllocationStatus:
    """Parse the application's record: its diagnostics contain what ended it."""
    diagnostics = " ".join(str(app.get("diagnostics", "")).split())
    if app["state"] in _QUEUED:
        return AllocationStatus(QUEUED, diagnostics)
    if app["state"] in _HELD:
        return AllocationStatus(HELD, app["state"])
    killed = app["state"] != "FINISHED"
    again = killed and "preempted" in diagnostics.lower()
    # The distributed shell ends as FINISHED even if a container failed; finalStatus shows the failure.
    failed = app["state"] == "FINISHED" and app.get("finalStatus", "SUCCEEDED") != "SUCCEEDED"
    state = f"{app['state']} ({app['finalStatus']})" if failed else app["state"]
    return AllocationStatus(ENDED, f"{state}{': ' if diagnostics else ''}{diagnostics}", killed=killed, retryable=again)


def cancel(allocation: str, _call: Call) -> None:
    """Kill the application through the Cluster Application State API."""
    _ask("PUT", f"{allocation}/state", {"state": "KILLED"})


def _ask(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request; return the JSON of the answer, or {} if it is empty. Raises RefusedError."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    # Without other authentication, YARN trusts this name.
    address = f"{url}?user.name={pwd.getpwuid(os.getuid()).pw_name}"
    try:
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else {}
    except urllib.error.HTTPError as error:
        raise RefusedError(f"yarn refused: {_reason(error)}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(url, str(error)) from None


def _field(answer: dict[str, Any], name: str, url: str) -> Any:
    try:
        return answer[name]
    except (KeyError, TypeError):
        raise _no_answer(url, f"there is no '{name}' in its answer") from None


def _no_answer(url: str, reason: str) -> RefusedError:
    message = f"YARN's ResourceManager does not answer at {url.partition('/ws/')[0]}: {reason}"
    return RefusedError(f"{message}\nSet its address with --via-option '--rm http://HOST:8088'.")


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        summary = f"{error.code} {error.reason} for {shown(error.url.partition('?')[0])}"
        return summary + (_UNAUTHORIZED if error.code in (401, 403) else "")
