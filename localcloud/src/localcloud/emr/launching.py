"""Launches the instances of a cluster: EMR's own user data starts the controller on each."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from localcloud.api import moto_setup
from localcloud.context import Context
from localcloud.ec2 import zones
from localcloud.ec2.placement import zones_offering
from localcloud.emr import requests, validation
from localcloud.emr.records import Cluster, Group, Life, Member, new_id

DOOR_PATH = "/_emr/"
JOB_FLOW_TAG, ROLE_TAG = "aws:elasticmapreduce:job-flow-id", "aws:elasticmapreduce:instance-group-role"
_ROOT_DEVICE = "/dev/xvda"
_USER_DATA = """\
#!/bin/sh
# EMR's own: fetches the controller of this instance, and starts it now and after each restart.
set -e
home=/emr/instance-controller url={url}
mkdir -p $home
umask 077
echo "$url" > $home/url
until /usr/bin/python3 -Ic 'import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1]).read().decode())' \
  $url/controller > $home/controller.py
do
  sleep 1
done
unit=/etc/systemd/system/instance-controller.service
mkdir -p ${unit%/*}/multi-user.target.wants
cat > $unit <<'END'
[Service]
ExecStart=/usr/bin/python3 -I /emr/instance-controller/controller.py
Restart=on-failure
RestartSec=2
END
ln -sf $unit ${unit%/*}/multi-user.target.wants/
exec setsid -f /sbin/service $unit
"""


def place(cluster: Cluster) -> Any:
    """Return the subnet of the cluster: the requested one, else one of the default VPC's."""
    backend = ec2_backends[cluster.account][cluster.region]
    if subnet_id := validation.subnet_of(cluster.instances):
        return backend.get_subnet(subnet_id)
    zone = (cluster.instances.get("Placement") or {}).get("AvailabilityZone")
    defaults = backend.get_default_subnets()
    chosen = (defaults[name] for name in ([zone] if zone else _zones(cluster)) if name in defaults)
    found = next(chosen, None)
    if found is None:
        raise validation.Invalid(f"{validation.SUBNET}: There is no default subnet.")
    return found


def _zones(cluster: Cluster) -> list[str]:
    """Return the ordinary zones, first those that offer all types: a VPC has no default subnet in a Local Zone."""
    ordinary = zones.ordinary(RegionsAndZonesBackend.zones[cluster.region])
    types = {group.instance_type for group in cluster.groups}
    return sorted(ordinary, key=lambda zone: any(zone not in zones_offering(one, cluster.region) for one in types))


def launch(context: Context, cluster: Cluster, group: Group, subnet_id: str) -> Member:
    """Launch one instance of a group. Raises EC2ClientError."""
    backend = ec2_backends[cluster.account][cluster.region]
    token = secrets.token_urlsafe(24)
    image_id = _image(backend, group)
    script = _USER_DATA.replace("{url}", f"{context.url_nodes}{DOOR_PATH}{token}")
    data = Base64EncodedString(base64.b64encode(script.encode()).decode())
    arguments = _arguments(cluster, group, image_id, subnet_id)
    instance = backend.run_instances(image_id, 1, data, [], **arguments).instances[0]
    profile = cluster.wanted["JobFlowRole"].rpartition("/")[2]
    backend.associate_iam_instance_profile(instance.id, iam_instance_profile_name=profile)
    return Member(new_id("ci"), token, group, Life("PROVISIONING", context.clock.now()), instance)


def _image(backend: EC2Backend, group: Group) -> str:
    """Return the custom AMI, or the release's own image for the type's architecture."""
    found = backend.describe_instance_types([group.instance_type])[0]["ProcessorInfo"]["SupportedArchitectures"]
    return group.custom_ami or moto_setup.AMAZON_LINUX["x86_64" if "x86_64" in found else "arm64"]


def _arguments(cluster: Cluster, group: Group, image_id: str, subnet_id: str) -> dict[str, Any]:
    wanted = cluster.wanted
    least = max(requests.least_root_gib(wanted["ReleaseLabel"]), moto_setup.root_gib(image_id))
    disk = {"VolumeSize": int(wanted.get("EbsRootVolumeSize") or least), "VolumeType": "gp3"}
    tags = {**cluster.tags, JOB_FLOW_TAG: cluster.id, ROLE_TAG: group.role}
    return {
        "instance_type": group.instance_type,
        "is_instance_type_default": False,
        "region_name": cluster.region,
        "subnet_id": subnet_id,
        "key_name": cluster.instances.get("Ec2KeyName"),
        "security_group_ids": list(cluster.master_groups if group.is_master else cluster.slave_groups),
        "block_device_mappings": [{"DeviceName": _ROOT_DEVICE, "Ebs": disk}],
        "tags": {"instance": tags},
        "disable_api_termination": cluster.protected,
        "instance_initiated_shutdown_behavior": "terminate",
        "associate_public_ip": None,
    }
