"""What the choices of options name, made in a local cloud with AWS's API, and deleted again: a VPC, a reservation …"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.options import BLOCK, BUCKETS, FAST, FILE_SYSTEM, HEAD_SUBNET, IMAGE, MINE, RESERVATION, WORKER_SUBNET
from phalanx.local.this_machine import LocalAws

_ANY = "0.0.0.0/0"
_ALLOWED = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}


class Account:
    """Makes what a choice names, in one zone of its region. `ids` are the real ids by those that the choice has.

    `ends_with_it`: whether the cluster's end deletes the file system (`keep: no`).
    """

    def __init__(self, api: LocalAws, zone: str, ends_with_it: bool) -> None:
        self._api, self._zone, self._ends_with_it = api, zone, ends_with_it
        self.ids: dict[str, str] = {}
        self.block = ""
        self._deletions: list[Callable[[], object]] = []
        # A local cloud with a VPC does not stop by itself.
        self._vpc = self._ec2("create_vpc", CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        self._later("ec2", "delete_vpc", VpcId=self._vpc)

    def _ec2(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._api.call("ec2", operation, **arguments)

    def _later(self, service: str, operation: str, **arguments: Any) -> None:
        self._deletions.append(lambda: self._api.call(service, operation, **arguments))

    def make(self, text: str, is_private: bool) -> None:
        """Make what a text, a phalanx.yaml, names."""
        if HEAD_SUBNET in text:
            self._make_subnets(is_private)
        for named, make in (
            (f'"{MINE}"', self._make_mine),
            (FILE_SYSTEM, self._make_file_system),
            (IMAGE, self._find_image),
            ("policy/p", self._make_policy),
            (BUCKETS[0], self._make_buckets),
            (RESERVATION, self._make_reservation),
            (BLOCK, self._buy_block),
        ):
            if named in text:
                make()

    def delete(self) -> None:
        """Delete all that was made. Raises CloudError while anything of somebody else is in it."""
        while self._deletions:
            self._deletions.pop()()

    def _make_subnets(self, is_private: bool) -> None:
        self._ec2("modify_vpc_attribute", VpcId=self._vpc, EnableDnsHostnames={"Value": True})
        (head, table), (workers, own) = (self._subnet(f"10.1.{number}.0/24") for number in range(2))
        self.ids |= {HEAD_SUBNET: head, WORKER_SUBNET: workers}
        if not is_private:
            self._open(head, table, own)

    def _subnet(self, block: str) -> tuple[str, str]:
        """Make a subnet and its route table; return their ids."""
        made = self._ec2("create_subnet", VpcId=self._vpc, CidrBlock=block, AvailabilityZone=self._zone)
        subnet = made["Subnet"]["SubnetId"]
        self._later("ec2", "delete_subnet", SubnetId=subnet)
        table = self._ec2("create_route_table", VpcId=self._vpc)["RouteTable"]["RouteTableId"]
        self._later("ec2", "delete_route_table", RouteTableId=table)
        association = self._ec2("associate_route_table", RouteTableId=table, SubnetId=subnet)["AssociationId"]
        self._later("ec2", "disassociate_route_table", AssociationId=association)
        return subnet, table

    def _open(self, head: str, table: str, own: str) -> None:
        """Give the head's subnet a way out through an internet gateway, the workers' one through a NAT gateway."""
        gateway = self._ec2("create_internet_gateway")["InternetGateway"]["InternetGatewayId"]
        self._later("ec2", "delete_internet_gateway", InternetGatewayId=gateway)
        self._ec2("attach_internet_gateway", InternetGatewayId=gateway, VpcId=self._vpc)
        self._later("ec2", "detach_internet_gateway", InternetGatewayId=gateway, VpcId=self._vpc)
        self._ec2("create_route", RouteTableId=table, DestinationCidrBlock=_ANY, GatewayId=gateway)
        self._later("ec2", "delete_route", RouteTableId=table, DestinationCidrBlock=_ANY)
        address = self._ec2("allocate_address", Domain="vpc")["AllocationId"]
        self._later("ec2", "release_address", AllocationId=address)
        made = self._ec2("create_nat_gateway", SubnetId=head, AllocationId=address)["NatGateway"]
        self._later("ec2", "delete_nat_gateway", NatGatewayId=made["NatGatewayId"])
        self._ec2("create_route", RouteTableId=own, DestinationCidrBlock=_ANY, NatGatewayId=made["NatGatewayId"])

    def _make_mine(self) -> None:
        self._ec2("create_key_pair", KeyName=MINE)
        self._later("ec2", "delete_key_pair", KeyName=MINE)
        self._ec2("create_placement_group", GroupName=MINE, Strategy="cluster")
        self._later("ec2", "delete_placement_group", GroupName=MINE)

    def _make_file_system(self) -> None:
        made = self._api.call("efs", "create_file_system", CreationToken=MINE)["FileSystemId"]
        self.ids[FILE_SYSTEM] = made
        if not self._ends_with_it:
            self._later("efs", "delete_file_system", FileSystemId=made)

    def _find_image(self) -> None:
        images = self._ec2("describe_images", Owners=["amazon"])["Images"]
        self.ids[IMAGE] = next(one["ImageId"] for one in images if one["Architecture"] == "x86_64")

    def _make_policy(self) -> None:
        made = self._api.call("iam", "create_policy", PolicyName="p", PolicyDocument=json.dumps(_ALLOWED))
        self._later("iam", "delete_policy", PolicyArn=made["Policy"]["Arn"])

    def _make_buckets(self) -> None:
        for bucket in BUCKETS:
            elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": self._api.region}}
            where = {} if self._api.region == "us-east-1" else elsewhere
            self._api.call("s3", "create_bucket", Bucket=bucket, **where)
            self._later("s3", "delete_bucket", Bucket=bucket)

    def _make_reservation(self) -> None:
        where = {"AvailabilityZone": self._zone, "InstancePlatform": "Linux/UNIX", "InstanceType": "c5.large"}
        wanted = {**where, "InstanceCount": 2, "InstanceMatchCriteria": "targeted"}
        made = self._ec2("create_capacity_reservation", **wanted)["CapacityReservation"]["CapacityReservationId"]
        self.ids[RESERVATION] = made
        self._later("ec2", "cancel_capacity_reservation", CapacityReservationId=made)

    def _buy_block(self) -> None:
        """Buy a block, which nobody can cancel: the local cloud ends with it."""
        wanted = {"InstanceType": FAST, "InstanceCount": 2, "CapacityDurationHours": 24}
        offers = self._ec2("describe_capacity_block_offerings", **wanted)["CapacityBlockOfferings"]
        offer = next(one["CapacityBlockOfferingId"] for one in offers if one["AvailabilityZone"] == self._zone)
        bought = self._ec2("purchase_capacity_block", CapacityBlockOfferingId=offer, InstancePlatform="Linux/UNIX")
        self.ids[BLOCK] = self.block = bought["CapacityReservation"]["CapacityReservationId"]
