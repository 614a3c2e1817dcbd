"""boto3 clients that call a WSGI app in this process, without socket and thread, in a third of the time."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from localcloud.context import Issued


class _Body(io.BytesIO):
    """A body with what botocore expects of urllib3's response."""

    def stream(self, **_options: Any) -> Any:
        yield self.read()


def client(service: str, region: str, url: str, issued: Issued, app: Callable[[], Any]) -> Any:
    """Make a client for `service` that calls the app returned by `app()`; requests are signed for `url`."""
    made = boto3.client(
        service,
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=issued.access_key_id,
        aws_secret_access_key=issued.secret_access_key,
        aws_session_token=issued.session_token or None,
        # The bucket is in the path, as boto3 does for an endpoint that is an address.
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    # botocore's hook for this: a handler's return value is the answer, and nothing is sent.
    made.meta.events.register("before-send", lambda request, **_kwargs: answer(app(), request))
    return made


def answer(app: Any, request: AWSPreparedRequest) -> AWSResponse:
    """Return `app`'s answer to a prepared request."""
    shown: list[Any] = []
    chunks = app(_environ(request), lambda status, headers, *_rest: shown.extend((status, headers)))
    body = b"".join(chunks)
    getattr(chunks, "close", lambda: None)()
    status, headers = shown
    raw: Any = _Body(body)
    return AWSResponse(request.url, int(status.split()[0]), dict(headers), raw)


def _environ(request: AWSPreparedRequest) -> dict[str, Any]:
    """Build the environment as the local cloud's HTTP server does."""
    url = urlsplit(request.url)
    body = _body(request.body)
    target = url.path + (f"?{url.query}" if url.query else "")
    headers = {f"HTTP_{name.upper().replace('-', '_')}": _text(value) for name, value in request.headers.items()}
    return {
        **headers,
        "CONTENT_TYPE": headers.get("HTTP_CONTENT_TYPE", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_HOST": url.netloc,
        "PATH_INFO": unquote(url.path, "latin-1"),
        "QUERY_STRING": url.query,
        "RAW_URI": target,
        "REMOTE_ADDR": "127.0.0.1",
        "REQUEST_METHOD": request.method,
        "REQUEST_URI": target,
        "SCRIPT_NAME": "",
        "SERVER_NAME": url.hostname,
        "SERVER_PORT": str(url.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.errors": io.StringIO(),
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
        "wsgi.multiprocess": False,
        "wsgi.multithread": True,
        "wsgi.run_once": False,
        "wsgi.url_scheme": url.scheme,
        "wsgi.version": (1, 0),
    }


def _body(given: Any) -> bytes:
    """Return the bytes of text, of bytes, or of a file, as S3's bodies are."""
    read = given.read() if hasattr(given, "read") else given or b""
    return read.encode() if isinstance(read, str) else read


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
