"""Whether a node reaches a service of AWS: through an endpoint of its VPC, or over its way out (aws-behaviour 2.52).

All services have one address in the local cloud, so that not the packet filter but each request is judged here. One
without a way to its service gets no answer, as if packets were dropped.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from localcloud.api.admission import VPC
from localcloud.cloudformation.resources.waiting import WAIT_PATH
from localcloud.iam.calls import ENDPOINT_POLICY
from localcloud.network.records import ALL, Endpoint, Group, Interface, Network, Rule
from localcloud.network.ruleset import by_length, is_within, leads_out
from localcloud.nodes.machine import API_ADDRESS, API_PORT

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
# For as long as Linux tries to connect to an address that drops everything.
_SILENCE_S = 127.0
_SERVICE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([\w.-]+)/aws4_request")
_BUCKETS = "s3"
# An instance's own signature, with which it may call CloudFormation only (iam.instance_identity).
_OF_INSTANCE = "CFN_V1 "


@dataclass(frozen=True)
class Way:
    """How a request gets to a service; `policy` is that of the endpoint on the way, as JSON, "" without one."""

    policy: str = ""


def way(network: Network, address: str, service: str) -> Way | None:
    """Return the way from the node at an address to a service, by the name in its signatures; None if there is none."""
    node = next((one for one in network.nodes if one.address == address), None)
    if node is None:
        return None
    for endpoint in network.endpoints:
        if endpoint.service == service and _serves(endpoint, node):
            return Way(endpoint.policy) if _connects(network, node, endpoint) else None
    return Way() if _gets_out(network, node) else None


def _serves(endpoint: Endpoint, node: Interface) -> bool:
    """Whether the service's name, or the route to its addresses, leads a node to this endpoint and nowhere else."""
    return endpoint.has_private_dns if endpoint.interfaces else node.table in endpoint.tables


def _connects(network: Network, node: Interface, endpoint: Endpoint) -> bool:
    if not endpoint.interfaces:
        # The API's own address stands for the addresses of all services.
        public = (API_ADDRESS, *endpoint.networks)
        return any(_lets(network, node, "egress", Interface(one, ())) for one in public)
    return any(
        _lets(network, node, "egress", door) and _lets(network, door, "ingress", node) for door in endpoint.interfaces
    )


def _gets_out(network: Network, node: Interface) -> bool:
    route = next((one for one in by_length(node.routes) if is_within(API_ADDRESS, one.network)), None)
    leads = route is not None and leads_out(route, node.public)
    return leads and _lets(network, node, "egress", Interface(API_ADDRESS, ()))


def _lets(network: Network, interface: Interface, direction: str, peer: Interface) -> bool:
    """Whether the groups of an interface let HTTPS from, or to, the peer, whose address may be a whole block."""
    found = (network.groups.get(group, Group()) for group in interface.groups)
    return any(_matches(rule, peer) for group in found for rule in getattr(group, direction))


def _matches(rule: Rule, peer: Interface) -> bool:
    if rule.protocol not in (ALL, "tcp") or not (rule.first or 0) <= API_PORT <= (rule.last or API_PORT):
        return False
    return bool(set(rule.groups) & set(peer.groups)) or any(is_within(peer.address, one) for one in rule.networks)


class Ways(Protocol):
    def way(self, vpc_id: str, address: str, service: str) -> Way | None:
        """Return the way from a node to a service; None if there is none."""
        ...


def around(ways: Ways, app: WsgiApp) -> WsgiApp:
    """Put the doorway before `app`, for requests from VPCs."""

    def judged(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        vpc_id = environ.get(VPC)
        if vpc_id:
            way = ways.way(vpc_id, environ["REMOTE_ADDR"], _service(environ))
            if way is None:
                _say_nothing(environ["werkzeug.socket"])
            else:
                environ[ENDPOINT_POLICY] = way.policy
        return app(environ, start_response)

    return judged


def _service(environ: dict[str, Any]) -> str:
    """Return the service that a request is for; "" if nothing tells, as for one that is not signed."""
    if environ.get("PATH_INFO", "").startswith(WAIT_PATH):
        return _BUCKETS  # docs/aws-behaviour.md 1.10
    signature = environ.get("HTTP_AUTHORIZATION", "")
    if signature.startswith(_OF_INSTANCE):
        return "cloudformation"
    found = _SERVICE.search(signature)
    return found[1].lower() if found else ""


def _say_nothing(connection: socket.socket) -> None:
    """Wait until the client gives up, and end the connection without an answer. Raises ConnectionAbortedError."""
    connection.settimeout(_SILENCE_S)
    with suppress(OSError):
        while connection.recv(65536):
            pass
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("no way to the service")
