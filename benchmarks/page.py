"""How long a line of a job takes to the page of `phalanx ui`: from a rank's write to the event that a browser gets."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import PHALANX, Figure, show

LINES, EVERY_S = 60, 0.23
WITHIN_S = 0.2
# The nodes are on this machine, and have its clock.
PROGRAM = f"import time\nfor _ in range(1000):\n    print('at', time.time(), flush=True)\n    time.sleep({EVERY_S})\n"


@contextmanager
def page(cluster: BenchCluster) -> Iterator[tuple[http.client.HTTPConnection, dict[str, str]]]:
    """Yield a connection to the page, and the headers of a browser that has opened its link."""
    argv = [PHALANX, "ui"]
    with subprocess.Popen(
        argv,
        cwd=cluster.directory,
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout
        link = urlsplit(serving.stdout.readline().strip())
        headers = {"Host": link.netloc, "Origin": f"http://{link.netloc}"}
        connection = http.client.HTTPConnection("127.0.0.1", link.port or 0, timeout=60)
        try:
            connection.request("POST", "/enter", headers={**headers, "X-Phalanx-Key": link.fragment})
            entered = connection.getresponse()
            entered.read()
            cookie = (entered.getheader("Set-Cookie") or "").partition(";")[0]
            yield connection, {**headers, "Cookie": cookie}
        finally:
            connection.close()
            serving.send_signal(signal.SIGINT)


def delays(connection: http.client.HTTPConnection, headers: dict[str, str], job: str) -> Iterator[float]:
    """Yield how old each line is that comes after those that were there already."""
    connection.request("GET", f"/api/clusters/bench/jobs/{job}/log", headers=headers)
    answer, began = connection.getresponse(), time.time()
    while line := answer.readline():
        now = time.time()
        if line.startswith(b"data: "):
            written = (float(text.split()[1]) for _, _, text in json.loads(line[6:])["lines"])
            yield from (now - at for at in written if at > began + 2)


def figures() -> Iterator[Figure]:
    with bench_cluster(nodes=1) as cluster:
        cluster.up()
        argv = ("run", "--launcher", "exec", "-n", "1", "--detach", "--", "python3", "-c", PROGRAM)
        job = cluster.output(*argv, timeout_s=120).strip()
        with page(cluster) as (connection, headers):
            found = tuple(one for one, _ in zip(delays(connection, headers, job), range(LINES), strict=False))
        yield Figure("a line on the page after it was written", found, target=WITHIN_S)
        yield Figure("  the slowest of 20", (sorted(found)[-LINES // 20],), target=WITHIN_S)
        cluster.phalanx("stop", job)
        cluster.down()


if __name__ == "__main__":
    show(list(figures()))
