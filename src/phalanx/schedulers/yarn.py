"""Hadoop YARN, through the ResourceManager's REST API: runs Hadoop's distributed shell with one container per node."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from phalanx.node.validate import Invalid, parse, reason
from phalanx.runner.batch.scheduling import ENDED, HELD, MOST_BYTES, QUEUED, AllocationStatus, Request, shown
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
_DEFAULTS = {"--rm": "http://deeplearning-master:8088", "--queue": "default", "--memory": "", "--vcores": ""}
_MASTER = "org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster"
_MASTER_MB = 512
# What stays free beside a node's container by default, for a master: YARN rounds 512 up, to 1024 unless told otherwise.
_FREE_MB = 1024
# The same as for commands, see `scheduling`.
_TIMEOUT_S = 15.0
# "If no filter is setup, the response will be an UNAUTHORIZED response", says the documentation of its REST API.
_UNAUTHORIZED = (
    "\nThe ResourceManager must know the user: hadoop.http.filter.initializers in its core-site.xml has to name an "
    "authentication filter, of the type simple (Kerberos is not supported)."
)
_OTHER_USER = " (containers fail at once where YARN does not run them as the user of jobs: on EMR, set `via_yarn: yes`)"
# "application states" of the ResourceManager's REST API.
_QUEUED = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
_HELD = ("RUNNING", "FINISHING")
_LONGEST_ERROR = 64 << 10


def options(request: Request) -> dict[str, str]:
    """Parse --rm, --queue, --memory and --vcores. Raises RefusedError for anything else."""
    given = request.options
    chosen = dict(zip(given[::2], given[1::2]))  # noqa: B905 (Python 3.9 has no strict)
    if len(given) % 2 or set(chosen) - set(_DEFAULTS):
        raise RefusedError(
            f"yarn takes {', '.join(_DEFAULTS)}, each with a value, not '{' '.join(given)}'", code="bad-words"
        )
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
    """Name the directories of Hadoop's own layout, and of its packages for distributions, which EMR has."""
    parts = ["common", "hdfs", "yarn"]
    homes = [f"{{{{HADOOP_{part.upper()}_HOME}}}}{below}" for part in parts for below in (f"/share/hadoop/{part}", "")]
    return "<CPS>".join(["{{HADOOP_CONF_DIR}}", *(f"{home}/{tail}" for home in homes for tail in ("*", "lib/*"))])


def fitting(request: Request, chosen: dict[str, str], nodes: list[dict[str, int]]) -> dict[str, str]:
    """Return the options, with containers so large that no two fit on a node. Raises RefusedError for too few nodes.

    YARN may otherwise place all on one node: it knows no other way to spread them. `nodes` are the Cluster Nodes API's.
    """
    if len(nodes) < request.nodes:
        count = "node" if len(nodes) == 1 else "nodes"
        raise RefusedError(
            f"the job needs {request.nodes} nodes, and YARN has {len(nodes)} {count} (EMR's master is none of them)\n"
            f"Request no more: -n {max(len(nodes), 1)} -N 1.",
            code="too-few-nodes",
        )
    if chosen["--memory"]:
        return chosen
    memory = sorted(node["usedMemoryMB"] + node["availMemoryMB"] for node in nodes)[-request.nodes]
    return {**chosen, "--memory": str(max(memory - _FREE_MB, memory // 2 + 1))}


def submit(request: Request, _call: Call) -> str:
    """Submit the request; return the application's URL."""
    chosen = options(request)
    api = f"{chosen['--rm'].rstrip('/')}/ws/v1/cluster"
    chosen = fitting(request, chosen, _nodes(api))
    apps = f"{api}/apps"
    name = _field(_ask("POST", f"{apps}/new-application"), "application-id", apps)
    _ask("POST", apps, application(request, name, chosen))
    return f"{apps}/{name}"


def _nodes(api: str) -> list[dict[str, int]]:
    """Return YARN's nodes that run containers; the Cluster Nodes API answers null when there are none."""
    found = _field(_ask("GET", f"{api}/nodes"), "nodes", api) or {}
    try:
        nodes = [one for one in _listed(found.get("node")) if one["state"] == "RUNNING"]
        return [{name: int(one[name]) for name in ("usedMemoryMB", "availMemoryMB")} for one in nodes]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _no_answer(api, "its answer has no list of nodes") from None


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
    if app["state"] == "RUNNING" and (missing := _missing(app)):
        return AllocationStatus(QUEUED, f"{missing} of its containers wait")
    if app["state"] in _HELD:
        return AllocationStatus(HELD, app["state"])
    killed = app["state"] != "FINISHED"
    again = killed and "preempted" in diagnostics.lower()
    # The distributed shell ends as FINISHED even if a container failed; finalStatus shows the failure.
    failed = app["state"] == "FINISHED" and app.get("finalStatus", "SUCCEEDED") != "SUCCEEDED"
    state = f"{app['state']} ({app['finalStatus']})" if failed else app["state"]
    description = f"{state}{': ' if diagnostics else ''}{diagnostics}{_OTHER_USER if failed else ''}"
    return AllocationStatus(ENDED, description, killed=killed, retryable=again)


def _missing(app: dict[str, Any]) -> int:
    """Return how many containers the application still waits for: requests stay in the list when they are met."""
    found = [one for one in _listed(app.get("resourceRequests")) if isinstance(one, dict)]
    counts = (one.get("numContainers") for one in found if one.get("resourceName", "*") == "*")
    return sum(count for count in counts if isinstance(count, int))


def _listed(value: Any) -> list[Any]:
    """Return a list of the API, which may write a list of one as its element."""
    return value if isinstance(value, list) else [value] if value else []


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
            text = answer.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise Invalid(f"its answer has more than {MOST_BYTES >> 20} MiB")
        return parse(text) if text.strip() else {}
    except urllib.error.HTTPError as error:
        raise RefusedError(f"yarn refused: {_reason(error)}", code="scheduler") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(url, str(error)) from None


def _field(answer: dict[str, Any], name: str, url: str) -> Any:
    try:
        return answer[name]
    except (KeyError, TypeError):
        raise _no_answer(url, f"there is no '{name}' in its answer") from None


def _no_answer(url: str, reason: str) -> RefusedError:
    message = f"YARN's ResourceManager does not answer at {url.partition('/ws/')[0]}: {reason}"
    return RefusedError(f"{message}\nSet its address with --via-option '--rm http://HOST:8088'.", code="scheduler")


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return reason(parse(error.read(_LONGEST_ERROR))["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        summary = f"{error.code} {error.reason} for {shown(error.url.partition('?')[0])}"
        return summary + (_UNAUTHORIZED if error.code in (401, 403) else "")
