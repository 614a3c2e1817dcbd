"""Every host and port that the nodes of a cluster contact, for networks that let nothing else out.

AWS's services are those that the nodes' roles allow, since an agent calls nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.plan.lustre_storage import PORTS
from phalanx.plan.plan import Plan, image_choice
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec_data import mounted
from phalanx.template.document import build

_HTTP, _HTTPS, _NFS = 80, 443, 2049
_ROLES = ("HeadRole", "WorkerRole", "NodePolicy", "NodeRole")
# The one is mounted, and the other is called by the services that store with a key: nodes call neither.
_NO_API = ("elasticfilesystem", "kms")
LOCAL_API = ("169.254.1.1", _HTTPS)
"""Where the local cloud's nodes find AWS's API."""

EVERY_BOOT, PACKAGES, ENVIRONMENTS, PYTHONS, DATA = (
    "every boot",
    "packages that the image lacks",
    "environments of jobs",
    "Pythons that the image lacks",
    "data of jobs",
)


# Services whose endpoint has another name than their actions.
_ENDPOINTS = {"cloudwatch": "monitoring"}


@dataclass(frozen=True)
class Egress:
    """A host, or a block of addresses in the cluster's own network, and when nodes need it."""

    host: str
    port: int
    what: str
    needed_for: str


def of(plan: Plan, domain: str) -> list[Egress]:
    """Return what nodes contact; `domain` is that of AWS's services in the region, such as amazonaws.com."""
    outside = () if plan.is_offline else _registries()
    return [*_inside(plan), *_aws(plan, domain), *_packages(plan, domain), *outside]


def services(plan: Plan) -> list[str]:
    """Return the services that nodes call, by the names in their endpoints."""
    made = build(plan).to_dict()["Resources"]
    actions = {action for role in _ROLES if role in made for action in _actions(made[role]["Properties"])}
    # A job's credentials are those of a role that its node's agent assumes.
    prefixes = {action.partition(":")[0] for action in actions}.difference(_NO_API) | {"sts"}
    return sorted(_ENDPOINTS.get(prefix, prefix) for prefix in prefixes)


def _actions(properties: Mapping[str, Any]) -> Iterator[str]:
    documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [properties])]
    for document in documents:
        for statement in document["Statement"]:
            yield from statement["Action"]


def _inside(plan: Plan) -> Iterator[Egress]:
    """Yield the file system's place; nodes reach each other on all ports, beside it."""
    workers = plan.facts.vpc.workers if plan.facts.vpc else None
    block = workers.cidr or workers.subnet_id if workers else plan.network.private
    if plan.uses_lustre:
        for first, last in PORTS:
            for port in range(first, last + 1):
                yield Egress(block, port, "the shared directory's servers (Lustre)", EVERY_BOOT)
    if not plan.uses_efs:
        return
    yield Egress(block, _NFS, "the shared directory's mount target", EVERY_BOOT)


def _aws(plan: Plan, domain: str) -> Iterator[Egress]:
    region = plan.spec.region
    if is_local(plan.spec.cloud):
        yield Egress(*LOCAL_API, "AWS's API of the local cloud", EVERY_BOOT)
        if plan.is_offline:
            for block in plan.facts.vpc.blocks if plan.facts.vpc else (plan.network.private,):
                yield Egress(block, _HTTPS, "the endpoints of AWS's API", EVERY_BOOT)
        return
    for service in services(plan):
        yield Egress(f"{service}.{region}.{domain}", _HTTPS, f"AWS: {service}", EVERY_BOOT)
    # docs/aws-behaviour.md 1.40
    handles = f"cloudformation-waitcondition-{region}.s3"
    place = "" if region == "us-east-1" else f".{region}"
    yield Egress(f"{handles}{place}.{domain}", _HTTPS, "AWS: the head's signal to CloudFormation", EVERY_BOOT)
    if plan.spec.data:
        yield Egress(f"*.s3.{region}.{domain}", _HTTPS, "AWS: buckets of `data`", DATA)


def _packages(plan: Plan, domain: str) -> Iterator[Egress]:
    """Yield the distribution's mirrors (docs/aws-behaviour.md 5.20)."""
    image = image_choice(plan.spec, plan.facts)
    if is_local(plan.spec.cloud) and "local" not in (image.contents or {}):
        return  # nodes have this machine's programs
    region = plan.spec.region
    system = (image.contents or {}).get("distribution", "")
    if plan.is_offline and not system.startswith("Amazon Linux 2023"):
        return  # only Amazon Linux has its packages in S3
    if system.startswith("Ubuntu"):
        arm = plan.facts.architecture == "arm64"
        hosts = ("ec2.ports", "ports.ubuntu.com") if arm else ("ec2.archive", "security.ubuntu.com")
        for host in (f"{region}.{hosts[0]}.ubuntu.com", hosts[1]):
            yield Egress(host, _HTTP, "Ubuntu's packages", PACKAGES)
        if plan.uses_lustre:
            for host in ("fsx-lustre-client-repo", "fsx-lustre-client-repo-public-keys"):
                yield Egress(f"{host}.s3.amazonaws.com", _HTTPS, "Lustre's client", PACKAGES)
        if mounted(plan.spec.data):
            yield Egress("s3.amazonaws.com", _HTTPS, "Mountpoint for S3", PACKAGES)
    elif system.startswith("Amazon Linux 2023"):
        host = f"al2023-repos-{region}-de612dc2.s3.dualstack.{region}.{domain}"
        yield Egress(host, _HTTPS, "Amazon Linux's packages", PACKAGES)
    else:
        yield Egress("?", _HTTPS, f"the package mirrors of {system or plan.image_parameter}", PACKAGES)


def _registries() -> Iterator[Egress]:
    """Yield the hosts of environments, unless `--build-env` names others."""
    for host in ("pypi.org", "files.pythonhosted.org"):
        yield Egress(host, _HTTPS, "PyPI", ENVIRONMENTS)
    for host in ("github.com", "release-assets.githubusercontent.com"):
        yield Egress(host, _HTTPS, "Python builds for uv", PYTHONS)
