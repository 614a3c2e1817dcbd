"""Instances in a local cloud whose runner only records."""

from __future__ import annotations

from fleet_fakes import IMAGE, Cloud


def run(local: Cloud, subnet: str, **kwargs) -> dict:
    arguments = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large", **kwargs}
    return local.client("ec2").run_instances(SubnetId=subnet, **arguments)["Instances"][0]


def described(local: Cloud, instance_id: str) -> dict:
    reservations = local.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
    return reservations[0]["Instances"][0]


def state(local: Cloud, instance_id: str) -> str:
    return described(local, instance_id)["State"]["Name"]
