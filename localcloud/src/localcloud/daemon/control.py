"""The local cloud's own endpoints for the command line: status, stop, and fault injection."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from localcloud.api import moto_setup
from localcloud.api.app import CONTROL_PATH, WsgiApp
from localcloud.cloudformation.engine import Engine
from localcloud.context import Context
from localcloud.daemon import faults
from localcloud.ec2 import fleet, gpus, reserved
from localcloud.ec2 import service as ec2
from localcloud.weather import forecast

MAX_BODY_BYTES = 64 * 1024
Answer = tuple[str, Any]


@dataclass(frozen=True)
class Control:
    """The endpoints under /_localcloud/; each requires the admin's secret in the header X-Localcloud-Key."""

    context: Context
    engine: Engine
    secret: str
    mode: str
    pid: int
    stop: Callable[[], None]

    def around(self, app: WsgiApp, touched: Callable[[], None]) -> WsgiApp:
        """Put the control endpoints in front of `app`; `touched` is called on every request."""

        def with_control(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            touched()
            path = environ.get("PATH_INFO", "")
            if not path.startswith(CONTROL_PATH):
                return app(environ, start_response)
            status, document = self._answer(environ, path.removeprefix(CONTROL_PATH))
            body = json.dumps(document).encode()
            start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]

        return with_control

    def _answer(self, environ: dict[str, Any], name: str) -> Answer:
        if not hmac.compare_digest(environ.get("HTTP_X_LOCALCLOUD_KEY", "").encode(), self.secret.encode()):
            return "403 Forbidden", {"message": "X-Localcloud-Key is missing or wrong"}
        call = {
            "GET status": self._status,
            "POST stop": self._stop,
            "POST faults": self._faults,
            "GET weather": self._weather,
            "POST weather": self._change_weather,
        }.get(f"{environ['REQUEST_METHOD']} {name}")
        if call is None:
            return "404 Not Found", {"message": f"no such control endpoint: {name}"}
        length = min(int(environ.get("CONTENT_LENGTH") or 0), MAX_BODY_BYTES)
        try:
            return call(json.loads(environ["wsgi.input"].read(length) or "{}"))
        except ValueError as error:
            return "400 Bad Request", {"message": str(error)}

    def _status(self, _document: dict[str, Any]) -> Answer:
        nodes = self.context.runner.nodes()
        shown = [
            {
                "instance_id": node.instance_id,
                "pid": node.pid,
                "address": node.address,
                "vpc_id": node.vpc_id,
                "state": "running" if node.alive else "ended",
                "hostname": node.hostname,
                "console": str(node.console),
                "rate_bit_s": node.rate_bit_s,
                "delay_s": node.delay_s,
                **_instance(node.instance_id),
            }
            for node in nodes
        ]
        stacks = [{"name": stack.name, "status": stack.status} for stack in self.engine.stacks if not stack.gone]
        pids = [self.pid, *(node.pid for node in nodes if node.alive and node.pid)]
        return "200 OK", {"mode": self.mode, "stacks": stacks, "nodes": shown, "pids": pids, **self._settings()}

    def _settings(self) -> dict[str, Any]:
        """What is the same for all nodes: the stand-ins for GPUs of each new one, and the weather."""
        return {"gpus": gpus.count(self.context.state), "weather": self.context.weather.describe()}

    def _stop(self, document: dict[str, Any]) -> Answer:
        left = [{"name": stack.name, "status": stack.status} for stack in self.engine.stacks if not stack.gone]
        vpcs = ec2.vpcs_of_users()
        left += [{"name": vpc_id, "status": "available"} for vpc_id in vpcs]
        left += [{"name": one.id, "status": one.state} for one in fleet.current().live() if one.vpc_id not in vpcs]
        now = self.context.clock.now()
        left += [{"name": one.id, "status": one.state(now)} for one in reserved.active(now)]
        if left and not document.get("force"):
            message = "there are stacks, VPCs, instances or reservations; delete them first, or use --force"
            return "409 Conflict", {"message": message, "stacks": left}
        # Delayed, so that this answer still goes out.
        self.context.clock.call_later(0.05, self.stop)
        return "200 OK", {"stacks": left}

    def _weather(self, _document: dict[str, Any]) -> Answer:
        return "200 OK", self.context.weather.describe()

    def _change_weather(self, _document: dict[str, Any]) -> Answer:
        """Begin the weather of the file that the caller has changed."""
        self.context.weather.change(forecast.read(self.context.state))
        return self._weather({})

    def _faults(self, document: dict[str, Any]) -> Answer:
        return "200 OK", faults.apply(self.context, document)


def _instance(instance_id: str) -> dict[str, str]:
    """Return of an instance that has not ended its AMI, which of this machine's images that is, and its stack."""
    found = fleet.current().instance(instance_id)
    if found is None:
        return {"image": "", "image_id": "", "stack": ""}
    systems = {ami: name for name, ami in moto_setup.FULL_IMAGES.items()}
    tags = {tag["key"]: tag["value"] for tag in found.get_tags()}
    stack = tags.get("aws:cloudformation:stack-name", "")
    return {"image": systems.get(found.image_id, ""), "image_id": found.image_id, "stack": stack}
