"""Spreads work on a bucket's objects over processes, each with some threads, because one Python uses one core.

Each batch of items carries the credentials of its time, so that work may take longer than credentials are valid.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import islice
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, TypeVar

from phalanx.node.sigv4 import Credentials
from phalanx.objects.s3_client import Bucket, Client, S3Error

Keys = Callable[[], Credentials]
Item = TypeVar("Item")
Work = Callable[[Client, Any], None]
Spread = Callable[..., Iterator[Any]]
"""`spread`, or `in_threads`."""

THREADS = 16
"""For each process: a call to S3 is answered after 20 to 50 ms, whatever its size."""

_MOST_PROCESSES = 4
_BATCH_ITEMS = 64
_BATCH_BYTES = 64 << 20
_pools: Dict[Bucket, ConnectionPool] = {}


def spread(
    work: Work, bucket: Bucket, items: Iterable[Item], keys: Keys, size: Callable[[Item], int]
) -> Iterator[Item]:
    """Do `work(client, item)` for all items; yield each item that is done. Raises what `work` raises, and S3Error."""
    batches = _batches(list(items), size)
    if len(batches) < 2:
        yield from _here(work, bucket, batches, keys)
        return
    processes = min(_MOST_PROCESSES, len(batches), os.cpu_count() or 1)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin)
    try:
        yield from _through(pool, work, bucket, batches, keys, 2 * processes)
    except BrokenProcessPool:
        raise S3Error("a process that copies was killed; is the memory full?") from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_threads(
    work: Work, bucket: Bucket, items: Iterable[Item], keys: Keys, size: Callable[[Item], int]
) -> Iterator[Item]:
    """Do the same only in this process, where others can't import what runs here."""
    yield from _here(work, bucket, _batches(list(items), size), keys)


def _here(work: Work, bucket: Bucket, batches: Iterable[List[Item]], keys: Keys) -> Iterator[Item]:
    with closing(ConnectionPool(bucket)) as pool:
        for batch in batches:
            pool.do(work, keys(), batch)
            yield from batch


class ConnectionPool:
    """Threads that do work on a bucket's objects, each over its own connection, which it keeps."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(THREADS)
        self._of_thread = threading.local()
        self._clients: List[Client] = []
        self._credentials: List[Credentials] = []

    def do(self, work: Work, credentials: Credentials, items: Sequence[Any]) -> None:
        """Do the work for these items, and return once all are done or one has failed."""
        self._credentials[:] = [credentials]
        futures = [self._pool.submit(self._one, work, item) for item in items]
        try:
            for done in futures:
                done.result()
        finally:
            for one in futures:
                one.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def _one(self, work: Work, item: Any) -> None:
        if not hasattr(self._of_thread, "client"):
            self._of_thread.client = Client(self._bucket, lambda: self._credentials[0])
            self._clients.append(self._of_thread.client)
        work(self._of_thread.client, item)


def _in_worker(work: Work, bucket: Bucket, credentials: Credentials, items: Sequence[Any]) -> None:
    """Do the work in a process that has one pool for its whole life."""
    if bucket not in _pools:
        _pools[bucket] = ConnectionPool(bucket)
    _pools[bucket].do(work, credentials, items)


def _through(
    pool: ProcessPoolExecutor, work: Work, bucket: Bucket, batches: List[List[Item]], keys: Keys, at_once: int
) -> Iterator[Item]:
    """Have as many batches in work as keep all processes busy, and no more: the others' credentials stay fresh."""
    waiting = iter(batches)
    running: Dict[Future[None], List[Item]] = {}
    while True:
        for batch in islice(waiting, at_once - len(running)):
            running[pool.submit(_in_worker, work, bucket, keys(), batch)] = batch
        if not running:
            return
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            done.result()
            yield from running.pop(done)


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _batches(items: List[Item], size: Callable[[Item], int]) -> List[List[Item]]:
    made: List[List[Item]] = []
    room, places = 0, 0
    for item in items:
        if places == 0 or size(item) > room:
            made.append([])
            room, places = _BATCH_BYTES, _BATCH_ITEMS
        made[-1].append(item)
        room, places = room - size(item), places - 1
    return made
