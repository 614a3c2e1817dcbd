"""Who may use the page: one browser, which opened the link, and no other user, page or program.

Other users of this machine can connect to the port, and pages of other sites can have the browser send requests to it.
Cookies belong to a host name, whatever the port. So the page has a random name below `localhost`, and its cookie comes
to no other service of this machine. The link's key is behind `#`, which browsers send nowhere: a script of the page
sends it back in a header, once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ENTRANCE = "/enter"
COOKIE = "phalanx-ui"
_PUBLIC = "/static/"
_KEY, _TOKEN = b"x-phalanx-key", b"x-phalanx-token"
_READS = ("GET", "HEAD")
_OWN_SITE = (b"same-origin", b"none")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class _Refusal(NamedTuple):
    status: int
    text: str


_ELSEWHERE = _Refusal(421, "This is not the address of a page.\n")
_FOREIGN = _Refusal(403, "Another site's page sent this.\n")
_CLOSED = _Refusal(403, "This page is open in the browser that opened its link. `phalanx ui` prints another one.\n")
_NO_TOKEN = _Refusal(403, "This changes something, and has no token of the page.\n")


class Door:
    """Passes on to `app` what the page itself sends; `port` is that on which it is reached."""

    def __init__(self, app: Application, port: int) -> None:
        self._app = app
        self._host = f"phalanx-{secrets.token_hex(8)}.localhost:{port}"
        self._key, self._cookie, self._token = (secrets.token_urlsafe(32) for _ in range(3))

    @property
    def origin(self) -> str:
        """The page's address without a path."""
        return f"http://{self._host}"

    @property
    def link(self) -> str:
        """The link that opens the page, once."""
        return f"{self.origin}{ENTRANCE}#{self._key}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["state"] = {"token": self._token}
        refusal = self._refusal(scope)
        if refusal:
            await _answer(send, refusal.status, refusal.text)
        elif scope["path"] == ENTRANCE and scope["method"] == "POST":
            await self._enter(scope, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> _Refusal | None:
        """Return why this request is refused; None if it is not."""
        if _all(scope, b"host") != [self._host.encode()]:
            return _ELSEWHERE
        is_read, origins = scope["method"] in _READS, _all(scope, b"origin")
        if any(origin != self.origin.encode() for origin in origins) or not (is_read or origins):
            return _FOREIGN
        if any(site not in _OWN_SITE for site in _all(scope, b"sec-fetch-site")):
            return _FOREIGN
        if scope["path"] == ENTRANCE or (is_read and scope["path"].startswith(_PUBLIC)):
            return None
        if not _has(_cookies(scope), self._cookie):
            return _CLOSED
        return None if is_read or _has(_all(scope, _TOKEN), self._token) else _NO_TOKEN

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Exchange the link's key for the cookie."""
        if not self._key or not _has(_all(scope, _KEY), self._key):
            await _answer(send, _CLOSED.status, _CLOSED.text)
            return
        self._key = ""
        cookie = f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 204, "", ((b"set-cookie", cookie.encode()),))


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _cookies(scope: Scope) -> Iterable[bytes]:
    pairs = (pair.strip().partition(b"=") for value in _all(scope, b"cookie") for pair in value.split(b";"))
    return (value for name, _, value in pairs if name == COOKIE.encode())


def _has(found: Iterable[bytes], secret: str) -> bool:
    return any(hmac.compare_digest(one, secret.encode()) for one in found)


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = text.encode()
    own = [*_HEADERS, *headers, (b"content-type", b"text/plain; charset=utf-8")]
    own += [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})
