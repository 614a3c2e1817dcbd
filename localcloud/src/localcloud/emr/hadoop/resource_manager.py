"""Stands for YARN's ResourceManager on the master of an EMR cluster: its REST API on port 8088, and a queue.

It answers as Hadoop documents the API, for applications that are submitted, watched and killed, with no authentication
but `user.name`. Hadoop's daemons and masters call each other by protocols of their own; the stand-ins by this server.
"""

from __future__ import annotations

import http.server
import json
import re
import secrets
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

SITE = "/etc/hadoop/conf/yarn-site.xml"
PORT = 8088
API = "/ws/v1/cluster"
QUEUE = "default"
ENDED = ("FINISHED", "FAILED", "KILLED")
# YARN's exit status of a container that was lost with its node.
ABORTED = -100
# How long a NodeManager or a master waits here for something to do.
_WAIT_S = 10.0
_NODE_LOST_S = 30.0
_MOST_BYTES = 1024 * 1024
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(eq=False)
class Node:
    """A NodeManager, with what it must start and stop next."""

    name: str
    memory: int
    vcores: int
    seen: float
    running: dict[str, Container] = field(default_factory=dict)
    launch: list[Container] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.memory - sum(container.memory for container in self.running.values())

    def describe(self) -> dict[str, Any]:
        used = sum(container.vcores for container in self.running.values())
        return {
            "rack": "/default-rack",
            "state": "RUNNING",
            "id": f"{self.name}:8041",
            "nodeHostName": self.name,
            "nodeHTTPAddress": f"{self.name}:8042",
            "numContainers": len(self.running),
            "usedMemoryMB": self.memory - self.free,
            "availMemoryMB": self.free,
            "usedVirtualCores": used,
            "availableVirtualCores": self.vcores - used,
        }


@dataclass(eq=False)
class Container:
    """A container of an application, or one that it waits for."""

    id: str
    application: Application
    memory: int
    vcores: int
    command: str
    environment: dict[str, str]
    node: Node | None = None

    def describe(self) -> dict[str, Any]:
        """Return what a NodeManager needs to start it."""
        application = self.application
        is_master = self is application.master
        return {
            "id": self.id,
            "application": application.id,
            "user": application.user,
            "command": self.command,
            "environment": self.environment,
            "token": application.token if is_master else "",
        }


@dataclass(eq=False)
class Application:
    """An application. `token` is what its master proves itself with."""

    id: str
    name: str
    user: str
    begun: float
    state: str = "ACCEPTED"
    final: str = "UNDEFINED"
    diagnostics: str = ""
    ended: float = 0.0
    token: str = field(default_factory=secrets.token_urlsafe)
    containers: list[Container] = field(default_factory=list)
    # The ids and the exit statuses that the master has not been told of.
    completed: list[tuple[str, int]] = field(default_factory=list)

    @property
    def master(self) -> Container:
        return self.containers[0]

    @property
    def waiting(self) -> list[Container]:
        return [one for one in self.containers if one.node is None]

    @property
    def held(self) -> list[Container]:
        return [one for one in self.containers if one.node and one.id in one.node.running]

    def end(self, state: str, final: str, diagnostics: str) -> None:
        self.state, self.final, self.diagnostics, self.ended = state, final, diagnostics, time.time()
        for container in self.held:
            assert container.node
            container.node.stop.append(container.id)

    def describe(self) -> dict[str, Any]:
        held = self.held
        return {
            "id": self.id,
            "user": self.user,
            "name": self.name,
            "queue": QUEUE,
            "state": self.state,
            "finalStatus": self.final,
            "progress": 100.0 if self.state in ENDED else 0.0,
            "diagnostics": self.diagnostics,
            "applicationType": "YARN",
            "startedTime": int(self.begun * 1000),
            "finishedTime": int(self.ended * 1000),
            "allocatedMB": sum(one.memory for one in held),
            "allocatedVCores": sum(one.vcores for one in held),
            "runningContainers": len(held),
            # YARN keeps requests that are met, with no containers.
            "resourceRequests": [self._request()],
        }

    def _request(self) -> dict[str, Any]:
        last = self.containers[-1]
        capability = {"memory": last.memory, "vCores": last.vcores}
        waiting = 0 if self.state in ENDED else len(self.waiting)
        return {"resourceName": "*", "numContainers": waiting, "capability": capability}


class Refused(Exception):  # noqa: N818
    """A request that YARN refuses, with its HTTP status and the name of Hadoop's exception."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        super().__init__(message)
        self.status, self.exception = status, exception


class Yarn:
    """Everything that the ResourceManager knows. Its methods are called with `changed` held."""

    def __init__(self, site: dict[str, str]) -> None:
        self.changed = threading.Condition()
        self.nodes: dict[str, Node] = {}
        self.applications: dict[str, Application] = {}
        self._most = int(site["yarn.scheduler.maximum-allocation-mb"])
        self._least = int(site["yarn.scheduler.minimum-allocation-mb"])
        self._begun = time.time()
        self._issued = 0

    # applications

    def new_application(self) -> dict[str, Any]:
        self._issued += 1
        capability = {"memory": self._most, "vCores": 128}
        return {"application-id": self._id("application", self._issued), "maximum-resource-capability": capability}

    def _id(self, kind: str, number: int, more: str = "") -> str:
        return f"{kind}_{int(self._begun * 1000)}_{number:04}{more}"

    def submit(self, body: dict[str, Any], user: str) -> None:
        """Accept an application, which waits for its master's container."""
        name, queue = body.get("application-id"), body.get("queue", QUEUE)
        number = str(name).rpartition("_")[2]
        if not number.isdigit() or not 0 < int(number) <= self._issued or name != self._id("application", int(number)):
            raise Refused(400, "BadRequestException", "Error parsing application ID")
        if queue != QUEUE:
            text = f"Application {name} submitted by user {user} to unknown queue: {queue}"
            raise Refused(400, "YarnException", text)
        if name in self.applications:
            raise Refused(
                400, "YarnException", f"Application with id {name} is already present! Cannot add a duplicate!"
            )
        application = Application(str(name), str(body.get("application-name", "N/A")), user, time.time())
        wanted = body["am-container-spec"]
        entries = (wanted.get("environment") or {}).get("entry") or []
        environment = {one["key"]: one["value"] for one in entries}
        self.ask(application, 1, body["resource"], wanted["commands"]["command"], environment)
        self.applications[application.id] = application
        self.place()

    def ask(
        self, application: Application, count: int, size: dict[str, Any], command: str, environment: dict[str, str]
    ) -> None:
        """Let an application wait for containers. Raises Refused for a size that no node can have."""
        memory, vcores = max(int(size["memory"]), self._least), max(int(size.get("vCores", 1)), 1)
        if memory > self._most:
            text = f"Invalid resource request! Requested memory {memory}, maximum allowed allocation {self._most}"
            raise Refused(400, "InvalidResourceRequestException", text)
        attempt = self._id("container", int(application.id.rpartition("_")[2]), "_01")
        for _ in range(count):
            name = f"{attempt}_{len(application.containers) + 1:06}"
            application.containers.append(Container(name, application, memory, vcores, command, environment))

    def application(self, name: str) -> Application:
        found = self.applications.get(name)
        if found is None:
            raise Refused(404, "NotFoundException", f"app with id: {name} not found")
        return found

    def kill(self, application: Application, user: str) -> None:
        if application.state not in ENDED:
            text = f"Application {application.id} was killed by user {user}"
            application.end("KILLED", "KILLED", text)
            self.changed.notify_all()

    # places

    def place(self) -> None:
        """Give waiting containers to nodes, by application. Memory alone decides, as by YARN's default."""
        for application in self.applications.values():
            for container in application.waiting if application.state not in ENDED else ():
                node = next((one for one in self.nodes.values() if one.free >= container.memory), None)
                if node:
                    container.node = node
                    node.running[container.id] = container
                    node.launch.append(container)
        self.changed.notify_all()

    def completed(self, node: Node, name: str, status: int) -> None:
        """A container has ended."""
        container = node.running.pop(name, None)
        if container is None:
            return
        application = container.application
        if container is not application.master:
            application.completed.append((name, status))
        elif application.state not in ENDED:
            text = (
                f"Application {application.id} failed 1 times due to AM Container for it exited with exitCode: {status}"
            )
            application.end("FAILED", "FAILED", text)
        self.place()

    def heard(self, name: str, report: dict[str, Any]) -> Node:
        """A NodeManager has reported. What it lost has ended, and what is not known here must stop."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, int(report["memory"]), int(report["vcores"]), 0.0)
        node.seen = time.monotonic()
        for container, status in dict(report["completed"]).items():
            self.completed(node, container, int(status))
        if not report["at_once"]:
            here, launched = set(report["running"]), set(node.running) - {one.id for one in node.launch}
            node.stop += here - set(node.running)
            for container in launched - here:
                self.completed(node, container, ABORTED)
        self.place()
        return node

    def drop_lost_nodes(self) -> None:
        for node in list(self.nodes.values()):
            if time.monotonic() - node.seen > _NODE_LOST_S:
                del self.nodes[node.name]
                for container in list(node.running):
                    self.completed(node, container, ABORTED)


class Handler(http.server.BaseHTTPRequestHandler):
    """One request. `yarn` is set before the server starts."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    yarn: Yarn

    def _answer(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), _MOST_BYTES)
        path, _, query = self.path.partition("?")
        user = urllib.parse.parse_qs(query).get("user.name", ["dr.who"])[0]
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
            if user != "dr.who" and not _USER.fullmatch(user):
                raise Refused(401, "AuthorizationException", "Unable to obtain user name, user not authenticated")
            with self.yarn.changed:
                status, answer = route(self.yarn, f"{self.command} {path.rstrip('/')}", body, user)
        except Refused as refusal:
            reason = {"exception": refusal.exception, "message": str(refusal)}
            status, answer = refusal.status, {"RemoteException": reason}
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            reason = {"exception": "BadRequestException", "message": f"{type(problem).__name__}: {problem}"}
            status, answer = 400, {"RemoteException": reason}
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # The names are the base class's.
    do_GET = do_POST = do_PUT = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None: ...


def route(yarn: Yarn, request: str, body: dict[str, Any], user: str) -> tuple[int, Any]:
    """Answer a request: its status and its document."""
    if request == f"GET {API}/nodes":
        yarn.drop_lost_nodes()
        return 200, {"nodes": {"node": [node.describe() for node in yarn.nodes.values()]} if yarn.nodes else None}
    if request == f"POST {API}/apps/new-application":
        return 200, yarn.new_application()
    if request == f"POST {API}/apps":
        return 202, yarn.submit(body, user)
    if request == f"GET {API}/apps":
        found = [application.describe() for application in yarn.applications.values()]
        return 200, {"apps": {"app": found} if found else None}
    if request == "POST /stand-in/node":
        return 200, serve_node(yarn, body)
    if request == "POST /stand-in/master":
        return 200, serve_master(yarn, body)
    found = re.fullmatch(rf"(GET|PUT) {API}/apps/(application_\d+_\d+)(/state)?", request)
    if not found or (found[1] == "PUT" and not found[3]):
        raise Refused(404, "NotFoundException", f"the stand-in for YARN has no {request}")
    application = yarn.application(found[2])
    if found[1] == "PUT":
        if body["state"] != "KILLED":
            raise Refused(400, "BadRequestException", "Only 'KILLED' is allowed as a target state.")
        yarn.kill(application, user)
        return 202, {"state": application.state}
    return 200, {"state": application.state} if found[3] else {"app": application.describe()}


def serve_node(yarn: Yarn, report: dict[str, Any]) -> dict[str, Any]:
    """Take a NodeManager's report, and wait until there is something to start or to stop, but not for long."""
    node = yarn.heard(str(report["name"]), report)
    yarn.drop_lost_nodes()
    if report["at_once"]:
        return {}
    yarn.changed.wait_for(lambda: node.launch or node.stop, _WAIT_S)
    launch, node.launch, stop, node.stop = node.launch, [], node.stop, []
    return {"launch": [one.describe() for one in launch], "stop": stop}


def serve_master(yarn: Yarn, body: dict[str, Any]) -> dict[str, Any]:
    """Serve an application's master: it registers and asks for containers, waits for their ends, and finishes."""
    application = next((one for one in yarn.applications.values() if one.token == body["token"]), None)
    if application is None or application.state in ENDED:
        raise Refused(403, "ApplicationAttemptNotFoundException", "Application attempt doesn't exist")
    application.state = "RUNNING"
    if "ask" in body:
        ask = body["ask"]
        yarn.ask(application, int(ask["count"]), ask, str(ask["command"]), dict(ask["environment"]))
        yarn.place()
    if "finish" in body:
        application.end("FINISHED", str(body["finish"]["status"]), str(body["finish"]["diagnostics"]))
        yarn.changed.notify_all()
        return {}
    yarn.changed.wait_for(lambda: application.completed or application.state in ENDED, _WAIT_S)
    completed, application.completed = application.completed, []
    return {"completed": completed}


def settings() -> dict[str, str]:
    """Return the properties of yarn-site.xml."""
    found = ElementTree.parse(SITE).getroot().iter("property")
    return {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in found}


def main() -> None:
    site = settings()
    Handler.yarn = Yarn(site)
    address = socket.gethostbyname(site["yarn.resourcemanager.hostname"])
    http.server.ThreadingHTTPServer((address, PORT), Handler).serve_forever()


if __name__ == "__main__":
    main()
