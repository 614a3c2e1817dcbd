"""The local cloud of a terminal, asked directly: its API as the administrator, and its faults."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import boto3


def endpoint(terminal: Any) -> dict[str, Any]:
    """What a local cloud writes down about itself."""
    return json.loads((terminal.state / "local/endpoint.json").read_text())


def api(terminal: Any, service: str) -> Any:
    """boto3's client of a service."""
    there = endpoint(terminal)
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=there["url"],
        aws_access_key_id=there["access_key_id"],
        aws_secret_access_key=there["secret_access_key"],
    )


def break_on_purpose(terminal: Any, **faults: Any) -> None:
    """Set faults (phalanx.localcloud.faults)."""
    there = endpoint(terminal)
    request = urllib.request.Request(f"{there['url']}/_localcloud/faults", json.dumps(faults).encode())
    request.add_header("X-Localcloud-Key", there["secret_access_key"])
    urllib.request.urlopen(request, timeout=10).close()
