"""Read a cluster's roster from the table that only the head's role may write. `exec` and `ssh` wait for this."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from phalanx.aws import tables
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import read_roster, roster_of
from phalanx.errors import CloudError, ClusterError
from phalanx.local import endpoint
from phalanx.node import services, wire
from phalanx.node.roster import Roster
from phalanx.node.sigv4 import Credentials, Request, signed_headers
from phalanx.spec.cloud_names import is_local

if TYPE_CHECKING:
    pass

_ANSWERS_WITHIN_S = 10.0


def read(cluster: Cluster) -> Roster:
    """Return the current roster. Raises CloudError if it is invalid, ClusterError if there is none."""
    roster = _local(cluster) if is_local(cluster.cloud) else read_roster(cluster.aws(), cluster.table)
    if roster is None:
        raise ClusterError(f"cluster {cluster.name} has no roster", "`phalanx status` shows more.")
    return roster


def settle_by(cluster: Cluster, command: str) -> None:
    """Write the command into the table with the user's permissions, which no job or worker has. Raises CloudError."""
    tables.put(cluster.aws(), cluster.table, "settle", command={"S": command})


def _local(cluster: Cluster) -> Roster | None:
    """Read the local cloud's table without botocore, whose import takes ten times as long as the call."""
    here = endpoint.running()
    request = Request("POST", f"{here.url}/", _HEADERS, _get_item(cluster.table))
    keys = Credentials(here.access_key_id, here.secret_access_key)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = signed_headers(request, keys, cluster.region, "dynamodb", now)
    try:
        answer = wire.fetch(Request("POST", request.url, headers, request.body), _ANSWERS_WITHIN_S)
    except wire.HttpError as error:
        raise ClusterError(f"cluster {cluster.name} has no roster table", "`phalanx status` shows more.") from error
    except OSError as error:
        endpoint.require_alive(here)
        raise CloudError(f"the local cloud did not answer: {error}") from error
    item = json.loads(answer).get("Item")
    return roster_of(services.plain(item["roster"])) if item else None


_HEADERS = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "DynamoDB_20120810.GetItem"}


def _get_item(table: str) -> bytes:
    key = {"item": {"S": "roster"}}
    return json.dumps({"TableName": table, "Key": key, "ConsistentRead": True}).encode()
