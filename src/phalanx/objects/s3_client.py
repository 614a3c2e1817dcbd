"""Calls S3 over one connection: list, head, read, write and delete objects, with retries."""

from __future__ import annotations

import calendar
import hashlib
import http.client
import os
import random
import time
import urllib.request
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, Mapping, Optional, Tuple
from urllib.parse import quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree

from phalanx.node.sigv4 import Credentials, Request, signed_headers

TIMEOUT_S = 60
TRIES = 6
_AGAIN = (429, 500, 502, 503, 504)
XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class S3Error(Exception):
    """S3 refused a call, or can't be reached."""

    def __init__(self, what: str, status: int = 0, code: str = "") -> None:
        super().__init__(what)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Bucket:
    """A bucket and its region's endpoint, such as https://s3.eu-west-1.amazonaws.com."""

    name: str
    region: str
    endpoint: str


@dataclass(frozen=True)
class Object:
    """An object as a listing shows it. `modified_s` is a time since the epoch."""

    key: str
    size: int
    etag: str
    modified_s: int


@dataclass(frozen=True)
class Answer:
    """S3's answer to a call; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """A client of one bucket. `keys()` returns the present credentials. Not for several threads."""

    def __init__(self, bucket: Bucket, keys: Callable[[], Credentials]) -> None:
        self._bucket, self._keys = bucket, keys
        self._connection: Optional[http.client.HTTPConnection] = None

    def objects(self, prefix: str) -> Iterator[Object]:
        """Yield all objects whose keys begin with `prefix`, in S3's order (docs/aws-behaviour.md 12.4)."""
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        while True:
            page = self.document("GET", "", query)
            for entry in page.iter(f"{XML}Contents"):
                yield _object(entry)
            token = page.findtext(f"{XML}NextContinuationToken")
            if not token:
                return
            query["continuation-token"] = token

    def url(self, key: str) -> str:
        """Return an object's URL, for messages."""
        return f"s3://{self._bucket.name}/{key}"

    def head(self, key: str, part: int = 0) -> Mapping[str, str]:
        """Return an object's headers, or those of one of its parts."""
        return self.call("HEAD", key, {"partNumber": str(part)} if part else {}).headers

    def read(self, key: str, etag: str, offset: int = 0, length: Optional[int] = None) -> Answer:
        """Read an object or a range of it. S3 refuses if its content is no longer that of `etag`."""
        headers = {"If-Match": f'"{etag}"'}
        if length is not None:
            headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        return self.call("GET", key, {}, headers)

    def call(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Optional[Mapping[str, str]] = None,
        body: bytes = b"",
    ) -> Answer:
        """Make a call, again where that may help. Raises S3Error."""
        for count in range(TRIES):
            last = count == TRIES - 1
            try:
                answer = self._once(method, key, query, dict(headers or {}), body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last:
                    raise S3Error(
                        f"{self._bucket.endpoint} does not answer: {error or type(error).__name__}"
                    ) from error
            else:
                if answer.status < 300:
                    return answer
                if answer.status not in _AGAIN or last:
                    raise self._refusal(method, key, answer)
            # Full jitter, as AWS's SDKs do.
            time.sleep(random.uniform(0, min(20, 0.2 * 2**count)))
        raise AssertionError

    def document(self, method: str, key: str, query: Mapping[str, str]) -> ElementTree.Element:
        """Make a call whose answer is XML. Raises S3Error, also if something else answered, such as a proxy."""
        answer = self.call(method, key, query)
        try:
            return ElementTree.fromstring(answer.body)
        except ElementTree.ParseError as error:
            raise S3Error(f"{self.url(key)}: {self._bucket.endpoint} does not answer as S3 does") from error

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def _once(self, method: str, key: str, query: Mapping[str, str], headers: Dict[str, str], body: bytes) -> Answer:
        target = quote(f"/{self._bucket.name}/{key}" if key else f"/{self._bucket.name}", safe="/~")
        if query:
            target += f"?{urlencode(query, quote_via=quote)}"
        # S3 wants it as a header as well, and refuses a body that differs.
        headers["X-Amz-Content-Sha256"] = hashlib.sha256(body).hexdigest()
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        request = Request(method, self._bucket.endpoint.rstrip("/") + target, headers, body)
        signed = signed_headers(request, self._keys(), self._bucket.region, "s3", now)
        if self._connection is None:
            self._connection = connect(self._bucket.endpoint)
        self._connection.request(method, target, body=body or None, headers=signed)
        response = self._connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def _refusal(self, method: str, key: str, answer: Answer) -> S3Error:
        code, message = error_of(answer.body)
        what = {403: "no permission", 404: "there is none", 412: "it changed meanwhile"}.get(answer.status, message)
        if code == "InvalidObjectState":  # docs/aws-behaviour.md 12.10
            what = "it is archived; restore it in S3 first"
        return S3Error(f"{self.url(key)}: {what or code or answer.status} ({method})", answer.status, code)


def connect(endpoint: str) -> http.client.HTTPConnection:
    """Return a connection to an endpoint, through this machine's proxy for HTTPS if there is one."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    found = urllib.request.getproxies().get("https", "")
    proxy = urlsplit(found if "//" in found else f"//{found}")
    if not proxy.hostname or urllib.request.proxy_bypass(host):
        return http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_S)
    made = http.client.HTTPSConnection(proxy.hostname, proxy.port, timeout=TIMEOUT_S)
    made.set_tunnel(host, parts.port or 443)
    return made


def error_of(body: bytes) -> Tuple[str, str]:
    """Return the code and the message of S3's error answer."""
    try:
        found = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return "", ""
    return found.findtext("Code", ""), found.findtext("Message", "")


def _object(entry: ElementTree.Element) -> Object:
    texts = {name: entry.findtext(f"{XML}{name}", "") for name in ("Key", "Size", "ETag", "LastModified")}
    modified = time.strptime(texts["LastModified"][:19], "%Y-%m-%dT%H:%M:%S")
    # "+" stands for a space in encoding-type=url.
    key = unquote(texts["Key"].replace("+", " "))
    return Object(key, int(texts["Size"]), texts["ETag"].strip('"'), calendar.timegm(modified))


def endpoint_here(given: str) -> str:
    """Return the endpoint to use in this process: AWS_ENDPOINT_URL replaces AWS's own, as in the SDKs."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or given
