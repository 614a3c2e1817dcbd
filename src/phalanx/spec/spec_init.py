"""The phalanx.yaml that `phalanx init` writes: the keys that most people set, some of them as comments."""

from __future__ import annotations

from typing import Any

from phalanx.spec.cloud_names import is_local
from phalanx.spec.makers import EMR, maker_of
from phalanx.spec.spec import KEYS

_OPENING = """\
# A phalanx cluster. `phalanx plan` shows what this makes, `phalanx up` makes it.
# docs/phalanx-yaml.md describes these keys and all others.
"""
_MEANINGS = {
    "name": "Name of the cluster and of its stack",
    "cloud": "Where it runs: local is this machine; or aws, emr, local-emr",
    "region": "AWS region",
    "nodes": "Number of machines, the head included",
    "min": "With fewer nodes, `up` fails and deletes everything again",
    "type": "EC2 instance type",
    "capacity": "How machines are bought; default: on-demand",
    "ssh_from": "Networks that may reach the head by ssh",
    "data": "S3 prefixes that jobs may read",
    "lease": "Time after which AWS stops all nodes",
    "emr": "Place in S3 for the agent and EMR's logs",
}
_DATA = {"pets": "s3://my-bucket/pets"}
_EMR = {"logs": "s3://my-bucket/emr"}
_WIDTH = 24


def init_text(name: str, cloud: str = "local") -> str:
    """Return the commented file. On AWS, `ssh_from` is left empty for the user to fill in."""
    given: dict[str, Any] = {"name": name, "cloud": cloud, "region": "us-east-1", "nodes": 4, "min": 2}
    given["type"] = maker_of(cloud).default_type
    if not is_local(cloud):
        given["ssh_from"] = ""
    of_emr = maker_of(cloud) is EMR
    if of_emr:
        given["emr"] = _EMR
    other = "lease" if of_emr else "emr"
    lines = [_line(key, given.get(key)) for key in _MEANINGS if key != other]
    return "\n".join([_OPENING, *lines, ""])


def _line(key: str, given: Any) -> str:
    """Return a key with its value and meaning; one without a given value as a comment with an example."""
    example = _DATA if key == "data" else KEYS[key].example
    text = f"# {KEYS[key].line(example)}" if given is None else KEYS[key].line(given)
    return f"{text:<{_WIDTH}}  # {_MEANINGS[key]}"
