"""The rules of `emr`, and of the keys that a cluster of Amazon EMR can't have (docs/aws-behaviour.md 7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phalanx.spec import makers
from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_key import Key
from phalanx.spec.spec_rules import matching, text, whole, word, words

DEFAULT_RELEASE = "emr-7.9.0"
DEFAULT_APPLICATIONS = ("Hadoop", "Spark")
MOST_APPLICATIONS = 20
# Of releases with Amazon Linux 2023, whose Python is 3.9: the agent needs that.
FIRST_RELEASE = 7
ROOT_GIB = (15, 100)
"""The bounds of EbsRootVolumeSize for these releases."""
_LABEL = r"emr-([0-9]{1,2})\.[0-9]{1,2}\.[0-9]{1,2}"
# Without what IAM reads as a wildcard.
# The document's description names it, of which CloudFormation takes 1,024 bytes.
_BUCKET = r"(?!.{513})s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.()-]+)*/?"
_ROLE = r"[A-Za-z0-9_+=,.@-]{1,64}"

NEVER_STOPS = "EMR ends a cluster with its nodes, and can't stop it", "`phalanx down` ends it and keeps the data"


def release(value: str) -> str:
    """Check a release label: the agent needs the Python of Amazon Linux 2023."""
    found = re.fullmatch(_LABEL, value)
    if not found:
        raise WrongError(
            f"'{checks.cut(value)}' is not a release label", f"such as {DEFAULT_RELEASE}", code="bad-release"
        )
    if int(found[1]) < FIRST_RELEASE:
        raise WrongError(
            f"{value} is Amazon Linux 2 with Python 3.7, and a node needs 3.9",
            f"write emr-{FIRST_RELEASE}.0.0 or newer, such as {DEFAULT_RELEASE}",
            code="bad-release",
        )
    return value


_GROUP = matching(
    r"sg-[0-9a-f]{8}(?:[0-9a-f]{9})?", "'{}' is not the id of a security group", "such as sg-0123456789abcdef0"
)

EMR = group(
    {
        "logs": matching(_BUCKET, "'{}' is not a place in S3", "such as s3://my-bucket/emr; at most 512 characters"),
        "release": text(
            release, lambda: {"pattern": whole(_LABEL.replace("?P<major>", ""))}, f"a label such as {DEFAULT_RELEASE}"
        ),
        "applications": words(r"[A-Za-z][A-Za-z0-9]{0,39}", MOST_APPLICATIONS, "the name of an application"),
        # YARN starts containers as the user who asked for them, which EMR's own setting does not let it.
        "via_yarn": word(("yes", "no")),
        "service_role": matching(_ROLE, "'{}' can't be the name of a role", "such as EMR_DefaultRole_V2"),
        "node_role": matching(_ROLE, "'{}' can't be the name of a role", "such as EMR_EC2_DefaultRole"),
        "master_group": _GROUP,
        "core_group": _GROUP,
    }
)


EXAMPLE = {"logs": "s3://my-bucket/emr", "release": DEFAULT_RELEASE, "applications": [*DEFAULT_APPLICATIONS]}
_APPLICATIONS = " and ".join(DEFAULT_APPLICATIONS)
UNSET = f"none; of its keys: {DEFAULT_RELEASE}, {_APPLICATIONS}, no jobs through YARN, roles and groups of the stack's"


def logs_bucket(emr: Mapping[str, Any]) -> str:
    """Return the bucket of the agent and EMR's logs."""
    return str(emr["logs"]).removeprefix("s3://").partition("/")[0]


def fitting(key: Key, value: Any, above: Mapping[str, Any]) -> Any:
    """Return a key's value if it suits the cloud. Raises WrongError."""
    field = key.field
    wanted = makers.maker_of(above.get("cloud", "")) is makers.EMR
    if field == "emr" and wanted != (value is not None) and "cloud" in above:
        raise (
            _missing()
            if wanted
            else WrongError("is for EMR", "write `cloud: emr`, or `cloud: local-emr`", code="only-on-emr")
        )
    if wanted and value is not None and key.not_on_emr:
        raise WrongError(*key.not_on_emr, code="not-on-emr")
    if wanted and value is not None and field in _CHECKS:
        _CHECKS[field](value)
    if wanted and field == "emr" and value:
        _in_a_vpc(value, above.get("network") or {})
    return value


def _missing() -> WrongError:
    return WrongError(
        "is missing: where in S3 do the agent and the logs go?",
        "such as emr: {logs: s3://my-bucket/emr}",
        code="missing-key",
    )


def _complete(value: Mapping[str, Any]) -> None:
    if "logs" not in value:
        raise _missing()
    if ("master_group" in value) != ("core_group" in value):
        raise WrongError(
            "needs master_group and core_group, or neither: EMR takes both",
            "write the other one, too",
            code="conflicting-keys",
        )


def _in_a_vpc(value: Mapping[str, Any], network: Mapping[str, Any]) -> None:
    if "master_group" in value and "head_subnet" not in network:
        raise WrongError(
            "has security groups, which belong to a VPC, without a subnet of it",
            "write network: {head_subnet: subnet-…}",
            code="conflicting-keys",
        )


def _no_adapters(value: str) -> None:
    if value == "yes":
        raise WrongError("can't be yes: EMR attaches no Elastic Fabric Adapters", "remove the line", code="not-on-emr")


def _no_reservation(value: str) -> None:
    if value.startswith("cr-"):
        raise WrongError(
            "can't be a reservation: uniform instance groups take none", "write on-demand or spot", code="not-on-emr"
        )


def _root_volume(value: Mapping[str, Any]) -> None:
    """Check `disk` against what EMR lets its root volume be: gp3, of one size on all nodes."""
    if value.get("type", "gp3") != "gp3":
        raise WrongError(
            f"type can't be {value['type']}: EMR's root volume is gp3", "remove the type", code="not-on-emr"
        )
    least, most = ROOT_GIB
    if not least <= value.get("size_gib", least) <= most:
        raise WrongError(
            f"size_gib must be from {least} to {most} for EMR, is {value['size_gib']}", code="out-of-range"
        )


def _one_public_subnet(value: Mapping[str, Any]) -> None:
    if value.get("worker_subnet", value.get("head_subnet")) != value.get("head_subnet"):
        raise WrongError(
            "has a worker_subnet: uniform instance groups are in one subnet",
            "write only head_subnet",
            code="not-on-emr",
        )
    if checks.is_private(value):
        raise WrongError("access can't be private: EMR's nodes are in a public subnet", "remove it", code="not-on-emr")


_CHECKS = {
    "emr": _complete,
    "efa": _no_adapters,
    "capacity": _no_reservation,
    "disk": _root_volume,
    "network": _one_public_subnet,
}
