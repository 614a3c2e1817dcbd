"""`phalanx exporter`: who may read the metrics, and what they say when the cluster gives no answer."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from error_codes import raises_code
from fleet_fakes import until
from prometheus_server import dashboard_queries, prometheus, results

from phalanx.cli import exporter
from phalanx.errors import ClusterError
from phalanx.jobs.loads import NodeLoad, Seen
from phalanx.jobs.metrics import Metrics
from phalanx.runner.load import Load
from phalanx.runner.rank_progress import Progress, RankProgress

TOKEN = "swordfish-in-water"
GPUS = Load(
    cores=1.5, node_cores=2, node_cores_total=4, gpus=8, gpu_busy=12.5, gpu_memory=3 << 30, gpu_memory_total=4 << 30
)
JOB = "261127-0000"
SEEN = Seen(
    [NodeLoad(JOB, "worker1", 1.0, 5.0, GPUS), NodeLoad("other", "worker1", 1.0, 5.0, GPUS)],
    {JOB: [RankProgress('rank "0"\n', "worker1", 1.0, Progress(12, 1.5, {"loss": 0.25}))], "other": []},
)


class Served:
    """A server for the metrics of `found`, or none, and what it answers."""

    def __init__(self, token: str = "", is_loopback: bool = True) -> None:
        self.found: Seen | None = SEEN
        self.looks = 0
        self.errors: list[str] = []
        metrics = Metrics("demo", self._look, self.errors.append)
        self.server = exporter._serve(("127.0.0.1", 0), is_loopback, token.encode(), metrics.text)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def _look(self) -> Seen:
        self.looks += 1
        if self.found is None:
            raise ClusterError("the head is away")
        return self.found

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[type[Served]]:
    made: list[Served] = []

    class Kept(Served):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    yield Kept
    for one in made:
        one.server.shutdown()
        one.server.server_close()


def test_metrics_have_the_names_of_dcgm_and_escaped_labels(served):
    status, text = served().get()
    assert status == 200
    for line in (
        'phalanx_up{cluster="demo"} 1.0',
        'phalanx_node_cores_busy{cluster="demo",node="worker1"} 2.0',
        f'phalanx_job_cores_busy{{cluster="demo",job_id="{JOB}",node="worker1"}} 1.5',
        'DCGM_FI_DEV_GPU_UTIL{Hostname="worker1",cluster="demo",gpu="all"} 12.5',
        'DCGM_FI_DEV_FB_FREE{Hostname="worker1",cluster="demo",gpu="all"} 1024.0',
        f'phalanx_rank_step{{cluster="demo",job_id="{JOB}",node="worker1",rank="rank \\"0\\"\\n"}} 12.0',
    ):
        assert line in text.splitlines(), text
    assert text.count("phalanx_node_cores{") == 1 and 'name="loss"' in text


def test_pages_of_other_sites_are_refused_and_so_is_everything_but_reading(served):
    one = served()
    for host in ("attacker.example", f"attacker.example:{one.port}", "127.0.0.1", "", f"127.0.0.1.nip.io:{one.port}"):
        assert one.get(Host=host) == (403, ""), host
    assert one.get(Host=f"localhost:{one.port}")[0] == 200
    assert one.get("/") == (404, "") and one.get("/../metrics") == (404, "")
    assert one.get(method="POST")[0] == 501
    assert one.looks == 1


def test_connections_that_say_nothing_keep_no_request_waiting_and_take_no_threads(served):
    one = served()
    before = threading.active_count()  # those of other tests
    with ExitStack() as held:
        for number in range(300):
            silent = held.enter_context(socket.create_connection(("127.0.0.1", one.port), 10))
            silent.sendall(b"GET /metrics HTTP/1.1\r\nHost: " if number % 2 else b"G")
        assert one.get()[0] == 200
        until(lambda: threading.active_count() < before + 100, "few threads are left")


def test_another_address_needs_the_token(served):
    one = served(TOKEN, False)
    for given in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \u00e9"):
        assert one.get(Authorization=given.encode().decode("latin-1")) == (401, "")
    assert one.looks == 0
    assert one.get(Authorization=f"Bearer {TOKEN}", Host="anything")[0] == 200


def test_a_cluster_without_an_answer_is_down_and_its_figures_are_gone(served):
    one = served()
    one.found = None
    status, text = one.get()
    assert (status, one.errors) == (200, ["the head is away"])
    assert 'phalanx_up{cluster="demo"} 0.0' in text and "phalanx_node" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "0.0.0.0:9400"), "--token-file is needed"),
        (("--listen", "[::]:9400"), "--token-file is needed"),
        (("--listen", "9400"), "not of the form"),
        (("--listen", "example.com:9400"), "not of the form"),
        (("--listen", "127.0.0.1:x"), "not of the form"),
        (("--token-file", "short"), "has no token"),
    ],
)
def test_what_would_serve_anybody_is_refused(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short\n")
    done = CliRunner().invoke(exporter.command, list(arguments))
    assert done.exit_code == 2 and said in done.output, done.output


def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for name in ("phalanx.jobs.metrics", "phalanx.cli.exporter"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("phalanx.jobs.metrics")
    without = importlib.import_module("phalanx.cli.exporter")
    with raises_code("extra-missing"):
        CliRunner().invoke(without.command, [], standalone_mode=False, catch_exceptions=False)


def test_a_port_that_is_taken_is_named(served):
    with raises_code("port-taken"):
        exporter._serve(("127.0.0.1", served().port), True, b"", bytes)


def test_every_query_of_the_dashboard_has_a_result_in_prometheus(served, tmp_path):
    with prometheus(tmp_path, served().port) as address:
        until(lambda: bool(results(address, "phalanx_up")), 60)
        queries = dashboard_queries()
        assert len(queries) >= 12
        for query in queries:
            assert results(address, query), query
        (gpu,) = results(address, "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)")
        assert (gpu["metric"], gpu["value"][1]) == ({"Hostname": "worker1"}, "12.5")
