"""What a file grants: its author may be a stranger, and `plan` names it in one line."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.counts import counted
from phalanx.data import table
from phalanx.plan import mounted_data
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import ANYWHERE

_SUBNETS, _ROLES = ("head_subnet", "worker_subnet"), ("service_role", "node_role")


def of(spec: ClusterSpec) -> Iterator[str]:
    """Name each key by which the file gives rights, or has something run as root: its author may be a stranger."""
    if spec.boot:
        yield f"boot: root runs {counted(len(spec.boot.splitlines()), 'line')} of it on every node"
    if spec.image and spec.image not in table("images")["images"]:
        yield f"image: everything on every node, root's programs included, is from {spec.image}"
    if spec.policies:
        yield f"policies: jobs may do in AWS what {', '.join(spec.policies)} allow"
    if spec.cloudformation_role:
        yield f"cloudformation_role: CloudFormation may do for this stack what {spec.cloudformation_role} allows"
    places = list(mounted_data.places(spec.data))
    if places:
        changed = [one.url for one in places if one.is_writable]
        yield f"data: jobs may read {', '.join(one.url for one in places)}" + (
            f", and change {', '.join(changed)}" if changed else ""
        )
    yield from _by_others(spec)


def _by_others(spec: ClusterSpec) -> Iterator[str]:
    """Name the keys that name things of the account, or of others: what is there counts for this cluster, too."""
    if spec.network and (subnets := [spec.network[key] for key in _SUBNETS if key in spec.network]):
        yield f"network: jobs reach what {' and '.join(subnets)} can reach"
    if spec.emr and (roles := [spec.emr[key] for key in _ROLES if key in spec.emr]):
        yield f"emr: EMR and root on its nodes may do in AWS what {' and '.join(roles)} may"
    if spec.kms_key:
        yield f"kms_key: whoever controls {spec.kms_key} can keep everybody from all that is stored"
    if spec.bucket:
        yield f"bucket: whoever may write to {spec.bucket} can change the document that CloudFormation reads"
    if spec.file_system:
        yield f"file_system: jobs may read and change all of {spec.file_system}"
    if spec.key_pair:
        yield f"key_pair: whoever has the private key of {spec.key_pair} may log in as administrator"
    if spec.mail:
        yield f"mail: {spec.mail} gets a mail before the nodes are stopped"
    if ANYWHERE in spec.ssh_sources:
        yield "ssh_from: everyone on the internet may try to log in"
