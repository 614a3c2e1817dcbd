"""The pages, and the answers that their scripts fetch. `Door` is in front of all of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from phalanx.errors import PhalanxError
from phalanx.ui import log_stream

if TYPE_CHECKING:
    from starlette.requests import Request

    from phalanx.ui.queries import Queries

_HERE = Path(__file__).parent
_NAMES = {"cluster": re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}"), "job": re.compile(r"[A-Za-z0-9][\w-]{0,63}", re.ASCII)}
_MOST_LOGS = 16
_LONGEST_QUERY = 200
_NOT_FOUND = ("no-cluster", "no-job")


def application(queries: Queries, is_over: Callable[[], bool]) -> Starlette:
    """Return the application that shows what these return. Streams end when `is_over`."""
    pages = _Pages(queries, is_over)
    job = "/clusters/{cluster}/jobs/{job}"
    routes = [
        Route("/enter", pages.page("enter.html")),
        Route("/", pages.page("clusters.html")),
        Route("/clusters/{cluster}", pages.page("cluster.html")),
        Route(job, pages.page("job.html")),
        Route("/kept/{cluster}/{job}", pages.page("kept.html")),
        Route("/api/clusters", pages.answer(lambda _: queries.clusters())),
        Route("/api/clusters/{cluster}", pages.answer(lambda query: queries.cluster(_cluster(query)))),
        Route("/api/plan", pages.answer(lambda _: queries.plan())),
        Route("/api/clusters/{cluster}/events", pages.answer(lambda query: queries.events(_cluster(query)))),
        Route("/api/clusters/{cluster}/why", pages.answer(lambda query: queries.why(_cluster(query)))),
        Route(f"/api{job}", pages.answer(lambda query: queries.job(*_names(query)))),
        Route(f"/api{job}/curves", pages.answer(lambda query: queries.curves(*_names(query), _others(query)))),
        Route(f"/api{job}/load", pages.answer(lambda query: queries.load(*_names(query), _asked(query, "node")))),
        Route(f"/api{job}/log", pages.log),
        Route(f"/api{job}/log.txt", pages.whole_log),
        Route(f"/api{job}/stacks", pages.answer(lambda query: queries.stacks(*_names(query))), methods=["POST"]),
        Route(f"/api{job}/stop", pages.answer(lambda query: queries.stop(*_names(query))), methods=["POST"]),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    return Starlette(
        routes=routes, exception_handlers={PhalanxError: _failed, OSError: _broke, HTTPException: _refused}
    )


class _Pages:
    def __init__(self, queries: Queries, is_over: Callable[[], bool]) -> None:
        self._queries, self._is_over, self._open_logs = queries, is_over, 0
        loader = FileSystemLoader(_HERE / "templates")
        self._templates = Environment(loader=loader, autoescape=select_autoescape(), undefined=StrictUndefined)

    def page(self, template: str) -> Callable[[Request], Any]:
        """Return a handler that shows a page; its script fetches the rest."""

        async def show(request: Request) -> Response:
            # Whoever has the link has no cookie yet.
            token = "" if template == "enter.html" else request.state.token
            names = {name: _name(request, name) for name in _NAMES}
            return HTMLResponse(self._templates.get_template(template).render(token=token, **names))

        return show

    def answer(self, find: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Return a handler that answers with what a function returns."""

        async def respond(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(find, request))

        return respond

    async def log(self, request: Request) -> Response:
        """Stream the output of a job as events."""
        if self._open_logs >= _MOST_LOGS:
            return _problem("too many logs are open", "Close other pages.", 503)
        find = _asked(request, "find")
        argv = self._queries.log(*_names(request), _asked(request, "rank"), find)

        async def stream() -> AsyncIterator[bytes]:
            self._open_logs += 1
            try:
                async for event in log_stream.events(argv, find, self._is_over):
                    yield event
            finally:
                self._open_logs -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def whole_log(self, request: Request) -> Response:
        """Send all output of a job as a file."""
        cluster, job = _names(request)
        headers = {"Content-Disposition": f'attachment; filename="{job}.txt"'}
        argv = self._queries.log(cluster, job, _asked(request, "rank"), is_whole=True)
        lines = log_stream.text(argv, self._is_over)
        return StreamingResponse(lines, media_type="text/plain; charset=utf-8", headers=headers)


def _name(request: Request, kind: str) -> str:
    """Return a name in the address, "" if it has none. Raises HTTPException for what can't be a name."""
    found = request.path_params.get(kind)
    if found is not None and not _NAMES[kind].fullmatch(found):
        raise HTTPException(404)
    return found or ""


def _cluster(request: Request) -> str:
    return _name(request, "cluster")


def _names(request: Request) -> tuple[str, str]:
    return _cluster(request), _name(request, "job")


def _others(request: Request) -> list[str]:
    """Return the jobs in the address with which another one is compared; what can't be a job is left out."""
    return [job for job in request.query_params.getlist("with") if _NAMES["job"].fullmatch(job)]


def _asked(request: Request, name: str) -> str:
    """Return a value of the address; it is no option of a command."""
    value = request.query_params.get(name, "")[:_LONGEST_QUERY]
    return "" if value.startswith("-") and name != "find" else value


def _problem(message: str, hint: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message, "hint": hint}}, status)


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, PhalanxError)
    return _problem(error.message, error.hint, 404 if error.code in _NOT_FOUND else 503)


async def _broke(_: Request, error: Exception) -> Response:
    """Report an error of this machine, such as a full disk or too many open files."""
    return _problem(str(error), "", 503)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem("there is no such page" if error.status_code == 404 else error.detail, "", error.status_code)
