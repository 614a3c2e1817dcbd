"""Fetches what files and sources name: web addresses, objects in S3 with AWS::CloudFormation::Authentication."""

from __future__ import annotations

import base64
import os
import re
import urllib.parse
from typing import Any

from localcloud.nodes.bootstrap import web
from localcloud.nodes.bootstrap.signing import Keys, signed

AUTHENTICATION = "AWS::CloudFormation::Authentication"
_DOMAIN = r"s3(?:[.-](?P<region>[a-z]{2}(?:-[a-z]+)+-\d))?\.amazonaws\.com(?:\.cn)?"
_PATH_STYLE = re.compile(rf"https?://{_DOMAIN}/(?P<bucket>[^/]+)/(?P<key>.+)")
_HOST_STYLE = re.compile(rf"https?://(?P<bucket>[a-z0-9.-]+?)\.{_DOMAIN}/(?P<key>.+)")


class Downloads:
    """Fetches with the credentials that a resource's metadata name."""

    def __init__(self, metadata: dict[str, Any], endpoint: str) -> None:
        self._named: dict[str, dict[str, Any]] = metadata.get(AUTHENTICATION) or {}
        self._endpoint = endpoint.rstrip("/")

    def fetch(self, url: str, authentication: str | None = None) -> bytes:
        """Return the bytes at an address. Raises FailedError."""
        found = _PATH_STYLE.fullmatch(url) or _HOST_STYLE.fullmatch(url)
        if found:
            return self._object(found["bucket"], found["key"], found["region"] or "us-east-1", authentication)
        basic = self._basic(url, authentication)
        return web.request("GET", url, None, {"Authorization": f"Basic {basic}"} if basic else {})

    def _object(self, bucket: str, key: str, region: str, authentication: str | None) -> bytes:
        """Read an object; S3 here is at one address, and takes the bucket's name in the path."""
        path = urllib.parse.quote(urllib.parse.unquote(key), safe="/~")
        url, keys = f"{self._endpoint}/{bucket}/{path}", self._keys(bucket, authentication)
        headers = {"Host": urllib.parse.urlsplit(url).netloc}
        if keys:
            headers = signed(keys, "GET", url, b"", f"{region}/s3", headers)
        return web.request("GET", url, None, headers)

    def _keys(self, bucket: str, authentication: str | None) -> Keys | None:
        for given in self._chosen("s3", "buckets", bucket, authentication):
            if "roleName" in given:
                return web.keys_of_role(given["roleName"])
            return Keys(given.get("accessKeyId", ""), given.get("secretKey", ""))
        return None

    def _basic(self, url: str, authentication: str | None) -> str:
        host = urllib.parse.urlsplit(url).netloc
        for given in self._chosen("basic", "uris", host, authentication):
            return base64.b64encode(f"{given.get('username', '')}:{given.get('password', '')}".encode()).decode()
        return ""

    def _chosen(self, kind: str, key: str, place: str, name: str | None) -> list[dict[str, Any]]:
        """Return the block that a file names, else those for its bucket or host."""
        blocks = [(label, one) for label, one in self._named.items() if str(one.get("type", "")).lower() == kind]
        named = [one for label, one in blocks if label == name]
        return named or [one for _label, one in blocks if place in _list(one.get(key))]


def _list(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def endpoint_here(default: str) -> str:
    """Return the address of AWS's API on this node."""
    return os.environ.get("AWS_ENDPOINT_URL") or default
