"""A cluster's managed security groups: the user's own or EMR's, with the rules that EMR adds to both.

Source: docs/aws-behaviour.md 7.10. The groups that EMR makes stay after the cluster.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from moto.ec2.exceptions import InvalidPermissionDuplicateError
from moto.ec2.models import EC2Backend, ec2_backends

from localcloud.emr.records import Cluster
from localcloud.emr.validation import Invalid
from localcloud.network import reading

_PUBLIC = ("ElasticMapReduce-master", "ElasticMapReduce-slave")
_PRIVATE = ("ElasticMapReduce-Master-Private", "ElasticMapReduce-Slave-Private")
_SERVICE_PORT, _REPORT_PORT = 8443, 9443
_PROTOCOLS = (("tcp", 0, 65535), ("udp", 0, 65535), ("icmp", -1, -1))


def arrange(cluster: Cluster, subnet: Any) -> None:
    """Record the cluster's security groups, made if they are not there, and add EMR's rules."""
    backend = ec2_backends[cluster.account][cluster.region]
    instances, private = cluster.instances, not reading.routes_to_internet(backend, subnet.vpc_id, subnet.id)
    names = _PRIVATE if private else _PUBLIC
    given = [instances.get(f"EmrManaged{role}SecurityGroup") for role in ("Master", "Slave")]
    master, slave = (own or _made(backend, name, subnet.vpc_id) for own, name in zip(given, names, strict=True))
    service = instances.get("ServiceAccessSecurityGroup") or ""
    if private and all(given):
        _check_service_group(backend, master, service)
    if private:
        service = service or _made(backend, "ElasticMapReduce-ServiceAccess", subnet.vpc_id)
        _allow(backend, master, slave, service)
    else:
        _allow(backend, master, slave)
    cluster.master_groups = [master, *(instances.get("AdditionalMasterSecurityGroups") or [])]
    cluster.slave_groups = [slave, *(instances.get("AdditionalSlaveSecurityGroups") or [])]
    cluster.service_group = service


def _check_service_group(backend: EC2Backend, master: str, service: str) -> None:
    """Refuse own groups in a private subnet without a group for EMR itself that lets the master report."""
    if not service:
        raise Invalid(
            "You must also specify a ServiceAccessSecurityGroup if you use custom security groups when creating a"
            " cluster in a private subnet."
        )
    group: Any = backend.get_security_group_from_id(service)
    rules = [rule for rule in group.ingress_rules if (rule.source_group or {}).get("GroupId") == master]
    if not any(rule.ip_protocol == "-1" or rule.from_port <= _REPORT_PORT <= rule.to_port for rule in rules):
        raise Invalid(
            "ServiceAccessSecurityGroup is missing ingress rule from EmrManagedMasterSecurityGroup on port"
            f" {_REPORT_PORT}"
        )


def _made(backend: EC2Backend, name: str, vpc_id: str) -> str:
    found = backend.get_security_group_by_name_or_id(name, vpc_id)
    group = found or backend.create_security_group(name, f"{name} for Elastic MapReduce", vpc_id)
    return str(group.id)


def _allow(backend: EC2Backend, master: str, slave: str, service: str = "") -> None:
    """Open both groups to each other, and to EMR's own port from the service's group."""
    for group in dict.fromkeys((master, slave)):
        for source in dict.fromkeys((master, slave)):
            for protocol, first, last in _PROTOCOLS:
                _add(backend, group, source, protocol, first, last)
        if service:
            _add(backend, group, service, "tcp", _SERVICE_PORT, _SERVICE_PORT)


def _add(backend: EC2Backend, group: str, source: str, protocol: str, first: int, last: int) -> None:
    with suppress(InvalidPermissionDuplicateError):
        backend.authorize_security_group_ingress(
            group_name_or_id=group,
            ip_protocol=protocol,
            from_port=str(first),
            to_port=str(last),
            ip_ranges=[],
            source_groups=[{"GroupId": source}],
        )
