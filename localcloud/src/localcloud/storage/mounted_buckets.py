"""Buckets of which a node has mounted a prefix: a directory of this machine has its objects as files, both ways.

There is one for each VPC, so that its nodes see what they have mounted themselves, and nothing of other clusters.
A file is in the bucket for whoever asks S3 after it was closed, and an object is a file within a second.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from localcloud.api import partitions
from localcloud.api.admission import VPC
from localcloud.context import Context
from localcloud.iam import calls, credentials
from localcloud.iam.calls import Call
from localcloud.nodes.bootstrap import mountpoint
from localcloud.nodes.machine import BUCKETS
from localcloud.storage import trees
from localcloud.storage.fsx import links
from localcloud.storage.fsx.records import Link

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_EVENTS = frozenset({"NEW", "CHANGED", "DELETED"})
_READS = frozenset({"ListObjects", "ListObjectsV2", "GetObject", "HeadObject"})
_EVERY_S = 1.0
# Of all nodes together: each is looked at every second.
_MOST = 200
_LONGEST_NAME = 255
# Whoever writes through a mount is a user of a node, whose ids are not known here.
_FILE_MODE, _DIRECTORY_MODE = 0o666, 0o777
log = logging.getLogger(__name__)


class Buckets:
    """The mounted prefixes. The first mount starts a thread that follows them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._links: dict[tuple[str, str, str], Link] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._is_followed = False
        self._root = context.state / BUCKETS
        context.at_stop(self.stop)

    def stop(self) -> None:
        self._ended.set()
        with self._lock:
            # What was closed in the last second.
            self.look()
            # Whoever looks again would take the files that are removed now for deleted by a job.
            self._links.clear()
            for path in self._root.glob("*"):
                trees.remove(path)

    def forget(self, vpc_id: str) -> None:
        """Remove the files of a VPC that is deleted; the objects stay in the buckets."""
        with self._lock:
            for key in [one for one in self._links if one[0] == vpc_id]:
                # What was closed in the last second.
                self._sync(self._links[key])
                # As in stop: no link may see its files removed.
                del self._links[key]
            trees.remove(self._root / vpc_id)

    def mount(self, vpc_id: str, bucket: str, prefix: str, can_write: bool = True) -> None:
        """Show a prefix as files to a VPC's nodes from now on, unless it can't be a path: any lister chooses it.

        What nodes change becomes objects only if somebody who `can_write` them has mounted the prefix there.
        """
        path = f"{vpc_id}/{bucket}/{prefix}".removesuffix("/")
        if not all(map(_can_be_name, path.split("/"))):
            return
        with self._lock:
            if len(self._links) >= _MOST:
                return
            exports = _EVENTS if can_write else frozenset[str]()
            link = Link("", path, bucket, prefix, _EVENTS, exports, modes=(_FILE_MODE, _DIRECTORY_MODE))
            known = self._links.setdefault((vpc_id, bucket, prefix), link)
            if known is not link:
                known.exports |= exports
                return
            self._root.mkdir(exist_ok=True)
            self._sync(link)
            if not self._is_followed:
                self._is_followed = True
                self._context.spawn(self._follow, name="mounted buckets")

    def look(self, bucket: str = "") -> None:
        """Bring the mounted prefixes of a bucket, or of all, up to date."""
        with self._lock:
            for link in [one for one in self._links.values() if bucket in ("", one.bucket)]:
                self._sync(link)

    def _sync(self, link: Link) -> None:
        try:
            links.sync(str(self._root), link, self._context.account, self._context.root_of_nodes)
            self._context.keep_buckets()
        # Whatever jobs have made there, the other prefixes are looked at, now and in a second.
        except Exception:
            log.exception("%s is not synchronized", link.url)

    def _follow(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.look()


def _may(action: str, bucket: str, prefix: str) -> bool:
    """Whether the caller may do this with any object below a prefix, which it has just listed."""
    may = credentials.may()
    return may is None or not may(action, f"{partitions.arn()}:s3:::{bucket}/{prefix}*", {})


def _can_be_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and len(os.fsencode(part)) <= _LONGEST_NAME


def wrap(context: Context, app: App) -> App:
    """Return `app` with mounted buckets. `iam.wrap` must stand before it: it parses the call."""
    buckets = Buckets(context)
    context.forget_mounts = buckets.forget

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call: Call = environ[calls.PARSED]
        if call.service == "s3" and call.operation in _READS:
            name = str(call.params.get("Bucket", ""))
            buckets.look(name)
            if call.operation == "ListObjectsV2" and environ.get("HTTP_USER_AGENT", "").startswith(mountpoint.AGENT):
                prefix = str(call.params.get("prefix", ""))
                if _may("s3:GetObject", name, prefix):
                    buckets.mount(environ.get(VPC, ""), name, prefix, can_write=_may("s3:PutObject", name, prefix))
        return app(environ, start_response)

    return answer
