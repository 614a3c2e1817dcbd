"""The local cloud's S3: moto's buckets, usable by their owner alone, and private and encrypted from the start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from moto.s3.models import FakeBucket, PublicAccessBlock, s3_backends

from phalanx.localcloud.cloudformation.errors import Refused
from phalanx.localcloud.context import Context

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
PATCHED = ("moto.s3.models.FakeBucket.__init__", "moto.s3.models.s3_backends.bucket_accounts")
_moto_init: Any = FakeBucket.__init__
_S3 = re.compile(r"Credential=[^/]+/\d+/[^/]+/s3/aws4_request")
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def install(_context: Context) -> None:
    """Give every new bucket AWS's defaults (docs/aws-behaviour.md 1.27)."""

    def closed_and_encrypted(self: Any, *args: Any, **kwargs: Any) -> None:
        _moto_init(self, *args, **kwargs)
        self.public_access_block = PublicAccessBlock(True, True, True, True)
        self.encryption = {"Rule": {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}}

    setattr(FakeBucket, "__init__", closed_and_encrypted)  # noqa: B010 (pyright knows the original's type)


def wrap(context: Context, app: WsgiApp) -> WsgiApp:
    """Wrap `app` to deny access to another account's bucket, or to one with another owner than the request expects."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not _S3.search(environ.get("HTTP_AUTHORIZATION", "")):
            return app(environ, start_response)
        owner = _owner(environ.get("PATH_INFO", "/").split("/")[1])
        expected = environ.get("HTTP_X_AMZ_EXPECTED_BUCKET_OWNER", owner)
        if not owner or owner == context.account == expected:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else _DENIED]

    return guarded


def template(context: Context, url: str) -> str:
    """Return the object that a TemplateURL names; raise Refused with AWS's message (docs/aws-behaviour.md 1.26)."""
    found = re.fullmatch(rf"{re.escape(context.url_host)}/(?P<bucket>[^/?]+)/(?P<key>[^?]+)", url)
    if found is None:
        raise Refused("TemplateURL must be a supported URL.")
    if _owner(found["bucket"]) != context.account:
        raise Refused("S3 error: The specified bucket does not exist")
    stored = s3_backends[context.account]["aws"].get_object(found["bucket"], found["key"])
    if stored is None:
        raise Refused("S3 error: The specified key does not exist.")
    return stored.value.decode()


def _owner(bucket: str) -> str:
    """The account that owns a bucket; "" when there is no such bucket."""
    return s3_backends.bucket_accounts.get(bucket, ("", ""))[1]
