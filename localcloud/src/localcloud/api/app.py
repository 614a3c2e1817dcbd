"""The AWS API as one WSGI app: moto's services, the local cloud's own CloudFormation, and wait handles."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from moto.core.request import Request
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Response

from localcloud import autoscaling, emr
from localcloud.api import (
    account_played,
    moto_setup,
    parameters,
    partitions,
    products,
    quotas,
    refusals,
    tag_index,
    throttling,
)
from localcloud.api.served import gate
from localcloud.cloudformation import waitconditions
from localcloud.cloudformation.api import CloudFormationApi
from localcloud.cloudformation.engine import Engine
from localcloud.cloudformation.resources.waiting import WAIT_PATH
from localcloud.context import Context
from localcloud.ec2 import account_quotas, placement_groups, reservations, zones
from localcloud.ec2 import service as ec2
from localcloud.iam import calls
from localcloud.iam import middleware as iam
from localcloud.images.imagebuilder import registered
from localcloud.messaging import functions, notifications, queues, schedules
from localcloud.storage import file_systems, fsx, kept_buckets, mounted_buckets, tables

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
log = logging.getLogger(__name__)
_INTERNAL = "The local cloud failed to handle this request; see localcloud.log."
_INTERNAL_JSON = f'{{"__type":"InternalFailure","message":"{_INTERNAL}"}}'.encode()
_INTERNAL_XML = (
    f"<ErrorResponse><Error><Type>Receiver</Type><Code>InternalFailure</Code><Message>{_INTERNAL}</Message></Error>"
    "<RequestId>none</RequestId></ErrorResponse>"
).encode()
CONTROL_PATH = "/_localcloud/"
_CLOUDFORMATION = re.compile(r"Credential=[^/]+/\d+/[^/]+/cloudformation/aws4_request")
# One per process, like moto's backends.
MOTO = DomainDispatcherApplication(create_backend_app)
# The order matters: each part depends on the ones before it.
PARTS = (
    file_systems,
    kept_buckets,
    ec2,
    placement_groups,
    reservations,
    account_quotas,
    functions,
    schedules,
    queues,
    notifications,
    autoscaling,
    emr,
    fsx,
    tables,
    iam,
    registered,
    quotas,
    account_played,
    refusals,
)


def build(context: Context) -> tuple[WsgiApp, Engine]:
    """Install every part into moto; return the app and the stacks' engine. Call `moto_setup.install` first."""
    parameters.install()
    partitions.play(context.profile)
    moto_setup.check_names([name for part in PARTS for name in part.PATCHED])
    for part in PARTS:
        part.install(context)
    engine = Engine(
        context,
        ssm=lambda region, name: parameters.value(context.account, region, name),
        zones=lambda region: zones.ordinary(ec2_backends[context.account][region].describe_availability_zones()),
    )
    guarded = iam.wrap(context, _services(context, engine))

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith(WAIT_PATH):
            return waitconditions.answer(engine, f"{context.url_nodes}{path}", environ, start_response)
        if path.startswith(emr.DOOR_PATH):
            return emr.answer(environ, start_response)
        return guarded(environ, start_response)

    return _with_internal_failures(app), engine


def _with_internal_failures(app: WsgiApp) -> WsgiApp:
    """Answer unexpected exceptions as AWS answers internal failures: SDKs can't parse the server's HTML page."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except Exception:
            log.exception("%s %s", environ.get("HTTP_X_AMZ_TARGET", ""), environ.get("HTTP_AUTHORIZATION", "")[:120])
        is_json = "HTTP_X_AMZ_TARGET" in environ
        body = _INTERNAL_JSON if is_json else _INTERNAL_XML
        headers = [("Content-Type", "application/x-amz-json-1.1" if is_json else "text/xml")]
        start_response("500 Internal Server Error", [*headers, ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _services(context: Context, engine: Engine) -> WsgiApp:
    sources = tag_index.Sources(
        stacks=lambda: engine.stacks, clusters=emr.clusters, file_systems=lambda: list(fsx.running().systems.values())
    )
    index = tag_index.Index(context, sources)

    def services(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ[calls.PARSED].service == products.SERVICE:
            return products.answer(context, environ[calls.PARSED], start_response)
        if environ[calls.PARSED].action == tag_index.ACTION:
            return tag_index.answer(context, index, environ[calls.PARSED], start_response)
        if not _CLOUDFORMATION.search(environ.get("HTTP_AUTHORIZATION", "")):
            return MOTO(environ, start_response)
        request = Request(environ)
        request.from_wsgi_server = True
        status, headers, body = CloudFormationApi(context, engine)._dispatch(request)
        return Response(body, status, headers)(environ, start_response)

    served = gate.wrap(mounted_buckets.wrap(context, kept_buckets.wrap(context, services)))
    return throttling.wrap(context, quotas.wrap(context, tables.wrap(context, served)))
