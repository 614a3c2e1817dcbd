"""Root disks of instances: what the image sets, what EC2 refuses (docs/aws-behaviour.md 2.34), and moto's records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance

IMAGE_GIB = 8
"""The size of the images' root disks."""
_SPEEDS = {"Iops": "iops", "Throughput": "throughput"}
Mapping = dict[str, Any]


def filled(mappings: Iterable[Mapping] | None) -> list[Mapping]:
    """Fill in the image's defaults: its root device is deleted with its instance."""
    from_image = {"VolumeSize": IMAGE_GIB, "DeleteOnTermination": True}
    given = [
        (mapping, {key: value for key, value in mapping.get("Ebs", {}).items() if value is not None})
        for mapping in mappings or []
    ]
    return [
        {**mapping, "Ebs": {**dict.fromkeys(mapping.get("Ebs", {})), **from_image, **ebs}} for mapping, ebs in given
    ]


def check(mappings: Iterable[Mapping]) -> None:
    """Raise EC2ClientError for a disk that EC2 refuses."""
    for volume in (mapping["Ebs"] for mapping in mappings):
        if int(volume["VolumeSize"]) < IMAGE_GIB:
            raise EC2ClientError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {volume['VolumeSize']}GB is smaller than snapshot 'snap-0fa1a9c0de000', expect size >="
                f" {IMAGE_GIB}GB",
            )
        if volume.get("Iops") and volume.get("VolumeType", "gp2") == "gp2":
            raise EC2ClientError("InvalidParameterCombination", "The parameter iops is not supported for gp2 volumes.")


def without_speed(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return the disks as moto makes them at a launch: it passes no IOPS on, and refuses types that need some."""
    return [{**one, "Ebs": {**one["Ebs"], "VolumeType": "gp3"}} if one["Ebs"].get("Iops") else one for one in mappings]


def set_speed(instance: Instance, mappings: Iterable[Mapping]) -> None:
    """Record the type, the IOPS and the throughput of an instance's disks."""
    made = dict(instance.get_block_device_mapping)
    for one in mappings:
        volume = instance.ec2_backend.get_volume(made[one["DeviceName"]].volume_id)
        volume.volume_type = one["Ebs"].get("VolumeType") or volume.volume_type
        for key, name in _SPEEDS.items():
            if one["Ebs"].get(key):
                setattr(volume, name, int(one["Ebs"][key]))
