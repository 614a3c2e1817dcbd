"""What `phalanx run` says of the mounted prefixes that a command names: many small objects take long to read there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.plan import mounted_data
from phalanx.spec.spec_data import mounted

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster


def scattered(cluster: Cluster, command: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each such prefix; its objects are counted now, with the user's own rights."""
    data = cluster.spec.get("data") or {}
    words = " ".join(command)
    named = {
        place.name: data[place.name]
        for place in mounted(data)
        if re.search(rf"{re.escape(place.directory)}(?![\w-])", words)
    }
    if named:
        from phalanx.aws import buckets  # here: it loads botocore, which few runs need

        api: Any = cluster.aws()
        yield from mounted_data.scattered(named, buckets.count(api, named))
