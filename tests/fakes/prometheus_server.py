"""Debian's Prometheus on an exporter at a port of this machine, and the queries of docs/grafana.json."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ports import free_port

_PLACE = (Path(sys.prefix) / "prometheus").resolve()
_DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
_SETTINGS = """
scrape_configs:
  - job_name: phalanx
    scrape_interval: 4s
    scrape_timeout: 4s
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@contextmanager
def prometheus(place: Path, port: int) -> Iterator[str]:
    """Run Prometheus with its files in `place`; yield its address."""
    assert (_PLACE / ".complete").exists(), "scripts/prometheus unpacks what is missing here; `make test` calls it"
    own = free_port()
    (place / "prometheus.yml").write_text(_SETTINGS.format(port=port))
    argv = [str(_PLACE / "usr/bin/prometheus"), f"--config.file={place}/prometheus.yml"]
    argv += [f"--storage.tsdb.path={place}/data", f"--web.listen-address=127.0.0.1:{own}"]
    with (place / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log, cwd=place) as running:
        try:
            yield f"http://127.0.0.1:{own}"
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(30)


def results(address: str, query: str) -> list[dict[str, Any]]:
    """Return what Prometheus answers to a query now; nothing while it has not started yet."""
    try:
        asked = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 503, error.read()  # it starts
            return []
    except urllib.error.URLError as error:
        assert isinstance(error.reason, ConnectionError), error
        return []
    assert found["status"] == "success", found
    return found["data"]["result"]


def dashboard_queries() -> list[str]:
    """Return every query of the dashboard."""
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]
