"""What EMR would refuse of a spec, looked up before anything is created: bucket, release, applications, types, role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from phalanx.clouds.buckets import refusals
from phalanx.clouds.refusals import code
from phalanx.errors import CloudError, SpecError
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_emr import DEFAULT_APPLICATIONS, DEFAULT_RELEASE, logs_bucket

_NEWEST = 3


class Api(Protocol):
    region: str

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]: ...
    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]: ...
    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None: ...


def require(api: Api, spec: ClusterSpec) -> None:
    """Raise SpecError for the first thing that is not there."""
    wanted = spec.emr or {}
    for refusal in refusals(api, logs_bucket(wanted), " (logs)"):
        raise SpecError(f"emr: {refusal}", "`aws s3 ls` lists your buckets, and `aws s3 mb` makes one.")
    release = wanted.get("release", DEFAULT_RELEASE)
    _require_release(api, release, wanted)
    _require_type(api, spec.type, release)
    role = wanted.get("service_role")
    if role and not api.exists("iam", "get_role", RoleName=role):
        raise SpecError(f"emr: service_role: there is no role '{role}'", "Remove it: the stack makes one.")


def _require_release(api: Api, release: str, wanted: Mapping[str, Any]) -> None:
    try:
        known = api.call("emr", "describe_release_label", ReleaseLabel=release)
    except CloudError as error:
        said = code(error.__cause__) if isinstance(error.__cause__, Exception) else ""
        if said not in ("ValidationException", "InvalidRequestException"):
            raise
        raise SpecError(f"emr: release: EMR has no {release} in {api.region}", _newest(api)) from error
    there = {one["Name"] for one in known.get("Applications", [])}
    missing = [name for name in wanted.get("applications", DEFAULT_APPLICATIONS) if there and name not in there]
    if missing:
        raise SpecError(
            f"emr: applications: {release} has no {' and no '.join(missing)}", f"It has {', '.join(sorted(there))}."
        )


def _newest(api: Api) -> str:
    labels = api.call("emr", "list_release_labels").get("ReleaseLabels", [])
    numbered = sorted((_number(label), label) for label in labels if label.startswith("emr-"))
    return f"The newest are {', '.join(label for _, label in numbered[-_NEWEST:][::-1])}."


def _number(label: str) -> list[int]:
    return [int(part) for part in label.removeprefix("emr-").split(".") if part.isdecimal()]


def _require_type(api: Api, instance_type: str, release: str) -> None:
    pages = api.pages("emr", "list_supported_instance_types", "SupportedInstanceTypes", ReleaseLabel=release)
    supported = {one["Type"] for one in pages}
    if supported and instance_type not in supported:
        family = instance_type.partition(".")[0]
        same = sorted(one for one in supported if one.partition(".")[0] == family)
        hint = (
            f"Of this family it has {', '.join(same)}."
            if same
            else "`aws emr list-supported-instance-types` lists them."
        )
        raise SpecError(f"type: EMR has no {instance_type} for {release}", hint)
