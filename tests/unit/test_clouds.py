"""Calls of AWS's API: errors, pages, leftover resources; without network and credentials."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from botocore import exceptions as boto
from botocore.loaders import JSONFileLoader
from clusters import aws_spec
from error_codes import each, raises_code

from phalanx import connection
from phalanx.aws import log_groups, lookups, sessions, stacks
from phalanx.aws.auto_scaling import AutoScaling
from phalanx.aws.aws import Aws
from phalanx.aws.inventory import remains
from phalanx.aws.model import Resource
from phalanx.aws.policies import require_policies
from phalanx.aws.refusals import is_gone, translate
from phalanx.aws.usage import ask
from phalanx.cluster import ssh_access
from phalanx.errors import CloudError, SpecError
from phalanx.plan import quotas
from phalanx.plan.capacity import Reservation
from phalanx.plan.machine_images import Image
from phalanx.spec.spec import ClusterSpec


def refused(code, message="", operation="CreateStack"):
    return boto.ClientError({"Error": {"Code": code, "Message": message}}, operation)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (boto.NoCredentialsError(), "no AWS credentials were found", "AWS_ACCESS_KEY_ID"),
        (refused("ExpiredToken"), "have expired", "aws sso login"),
        (refused("InvalidClientTokenId"), "does not know these credentials", "aws configure"),
        (
            refused("AccessDenied", "User: x is not authorized to perform: iam:CreateRole on resource: y"),
            "may not call iam:CreateRole",
            "a policy that allows iam:CreateRole",
        ),
        (refused("UnauthorizedOperation", "no"), "may not call cloudformation:CreateStack", "a policy that allows"),
        (refused("Throttling", "Rate exceeded"), "throttled cloudformation:CreateStack", "Try again"),
        (boto.EndpointConnectionError(endpoint_url="https://x"), "AWS in r does not answer", "network"),
        (refused("LimitExceeded", "Limit of stacks"), "refused (LimitExceeded): Limit of stacks", ""),
    ],
)
def test_a_refusal_says_what_failed_and_the_way_out(error, message, hint):
    reported = translate(error, "cloudformation:CreateStack", "AWS in r")
    assert message in reported.message
    assert hint in reported.hint


@pytest.mark.parametrize(
    ("code", "message", "gone"),
    [
        ("ValidationError", "Stack with id demo does not exist", True),
        ("ResourceNotFoundException", "", True),
        ("InvalidVpcID.NotFound", "", True),
        ("AWS.SimpleQueueService.NonExistentQueue", "", True),
        ("NoSuchEntity", "", True),
        ("ValidationError", "1 validation error detected", False),
        ("AccessDenied", "role not found in policy", False),
    ],
)
def test_gone_is_distinguished_from_refused(code, message, gone):
    assert is_gone(refused(code, message)) is gone


class Scripted(Aws):
    """Answers calls from a table: (service, operation) → an answer, an error, or a list of them."""

    def __init__(self, answers):
        super().__init__("us-east-1")
        self.machines = AutoScaling(self)
        self.answers = {key: list(value) if isinstance(value, list) else value for key, value in answers.items()}
        self.asked = []

    def call(self, service, operation, **arguments):
        self.asked.append((operation, arguments))
        answer = self.answers.get((service, operation), {})
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise translate(answer, f"{service}:{operation}", "AWS") from answer
        return answer


class WithoutRegion(Aws):
    """AWS for an account that has not enabled eu-south-1."""

    def client(self, service):
        answer = {"Error": {"Code": "AuthFailure"}, "ResponseMetadata": {"HTTPStatusCode": 401}}

        def create_vpc(**_):
            raise boto.ClientError(answer, "CreateVpc")

        found = {"Regions": [{"OptInStatus": "not-opted-in"}]} if self.region == "us-east-1" else {}
        return SimpleNamespace(create_vpc=create_vpc, describe_regions=lambda **_: found)


def test_keys_that_a_region_does_not_know_are_explained_by_the_region_and_nothing_was_done():
    with raises_code("region-off", "eu-south-1") as told:
        WithoutRegion("eu-south-1").call("ec2", "create_vpc")
    assert told.value.was_refused
    with raises_code("unknown-credentials"):
        WithoutRegion("us-east-1").call("ec2", "create_vpc")


@pytest.mark.parametrize("kind", ["AuthFailure", "SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed"])
@pytest.mark.parametrize(("off_s", "how"), [(7200, "120 minutes ahead"), (-86_400, "1440 minutes behind"), (60, "")])
def test_a_wrong_clock_is_no_wrong_key(kind, off_s, how):
    """The services have six codes for a signature of another time, and most of them speak of keys."""
    date = format_datetime(datetime.fromtimestamp(time.time() - off_s, timezone.utc), usegmt=True)
    about = {"HTTPStatusCode": 403, "HTTPHeaders": {"date": date}}
    refused = translate(boto.ClientError({"Error": {"Code": kind}, "ResponseMetadata": about}, "X"), "ec2:X", "AWS")
    assert (refused.code == "wrong-clock") == bool(how)
    assert how in str(refused)


def entry(number):
    at = datetime(2026, 11, 21, tzinfo=timezone.utc)
    return {"EventId": f"e{number}", "Timestamp": at, "LogicalResourceId": f"r{number}", "ResourceStatus": "X"}


def test_events_come_oldest_first_and_only_new_pages_are_read():
    pages = [
        {"StackEvents": [entry(4), entry(3)], "NextToken": "n"},
        {"StackEvents": [entry(2), entry(1)], "NextToken": "m"},
    ]
    cloud = Scripted({("cloudformation", "describe_stack_events"): pages})
    assert [event.event_id for event in stacks.events(cloud, "arn", "e1")] == ["e2", "e3", "e4"]
    assert len(cloud.asked) == 2


def test_the_boot_logs_of_more_nodes_than_a_page_holds_are_read():
    streams = [
        {"logStreams": [{"logStreamName": name}], **more} for name, more in (("a", {"nextToken": "n"}), ("b", {}))
    ]
    lines = [{"events": [{"message": f"boot of {name}\n"}]} for name in "ab"]
    answers = {("logs", "describe_log_streams"): [{}, *streams], ("logs", "get_log_events"): lines}
    cloud = Scripted(answers)
    assert log_groups.read(cloud, "group") == {"a": "boot of a", "b": "boot of b"}


def test_an_empty_or_short_page_is_not_the_end_of_a_boot_log():
    lines = [
        {"events": [], "nextBackwardToken": "b1"},
        {"events": [{"message": "3"}, {"message": "4\n"}], "nextBackwardToken": "b2"},
        {"events": [{"message": "1"}, {"message": "2"}], "nextBackwardToken": "b3"},
        {"events": [], "nextBackwardToken": "b3"},
    ]
    answers = {
        ("logs", "describe_log_streams"): [{}, {"logStreams": [{"logStreamName": "a"}]}],
        ("logs", "get_log_events"): lines,
    }
    assert log_groups.read(Scripted(answers), "group") == {"a": "1\n2\n3\n4"}


def test_a_stack_that_is_not_there_is_none():
    gone = refused("ValidationError", "Stack with id demo does not exist")
    assert stacks.describe(Scripted({("cloudformation", "describe_stacks"): gone}), "demo") is None


def test_a_stack_that_can_t_be_asked_about_is_an_error():
    with pytest.raises(CloudError, match="may not call"):
        stacks.describe(Scripted({("cloudformation", "describe_stacks"): refused("AccessDenied")}), "demo")


def test_remains_are_named_and_what_is_ending_does_not_count():
    resources = [
        Resource("HeadQueue", "https://queue", "AWS::SQS::Queue"),
        Resource("HeadRole", "role", "AWS::IAM::Role"),
        Resource("FileSystem", "fs-1", "AWS::EFS::FileSystem"),
    ]
    tags = [{"Key": "phalanx:cluster", "Value": "demo"}]
    instances = [{"InstanceId": "i-1", "State": {"Name": s}, "Tags": tags} for s in ("terminated", "shutting-down")]
    cloud = Scripted(
        {
            ("ec2", "describe_instances"): {"Reservations": [{"Instances": instances}]},
            ("ec2", "describe_nat_gateways"): {
                "NatGateways": [
                    {"NatGatewayId": "nat-1", "State": "deleted", "Tags": tags},
                    {
                        "NatGatewayId": "nat-2",
                        "State": "available",
                        "Tags": [{"Key": "phalanx:cluster", "Value": "other"}],
                    },
                ]
            },
            ("ec2", "describe_volumes"): {"Volumes": [{"VolumeId": "vol-1", "State": "available", "Tags": tags}]},
            ("sqs", "get_queue_attributes"): refused("AWS.SimpleQueueService.NonExistentQueue"),
            ("efs", "describe_file_systems"): refused("FileSystemNotFound"),
            ("iam", "get_role"): {"Role": {}},
        }
    )
    assert remains.find(cloud, "demo", resources) == ["instance i-1 (shutting-down)", "volume vol-1", "HeadRole role"]


def test_what_only_a_later_page_lists_remains_too():
    tags = [{"Key": "phalanx:cluster", "Value": "demo"}]
    instances = [[{"InstanceId": f"i-{s}", "State": {"Name": s}, "Tags": tags}] for s in ("terminated", "running")]
    first, last = ([{"Instances": page}] for page in instances)
    volumes = [{"Volumes": [{"VolumeId": "vol-1", "State": "available", "Tags": tags}]}]
    cloud = Scripted(
        {
            ("ec2", "describe_instances"): [{"Reservations": first, "NextToken": "n"}, {"Reservations": last}],
            ("ec2", "describe_volumes"): [{"Volumes": [], "NextToken": "n"}, *volumes],
        }
    )
    assert remains.find(cloud, "demo", []) == ["instance i-running (running)", "volume vol-1"]


def test_facts_are_read_from_what_ec2_says():
    described = {
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 48},
        "MemoryInfo": {"SizeInMiB": 196608},
        "GpuInfo": {"Gpus": [{"Count": 4, "Manufacturer": "NVIDIA"}, {"Count": 1, "Manufacturer": "AMD"}]},
        "NetworkInfo": {"MaximumNetworkCards": 1},
        "PlacementGroupInfo": {"SupportedStrategies": ["partition", "spread"]},
    }
    tags = [{"Key": "phalanx:cluster", "Value": "demo"}]
    free = {"FileSystemId": "fs-2", "LifeCycleState": "available", "NumberOfMountTargets": 0, "Tags": tags}
    free["CreationTime"] = 1
    mounted = {**free, "FileSystemId": "fs-1", "NumberOfMountTargets": 1, "CreationTime": 2}
    cloud = Scripted(
        {
            ("ec2", "describe_instance_types"): {"InstanceTypes": [described]},
            ("ec2", "describe_instance_type_offerings"): {
                "InstanceTypeOfferings": [
                    {"Location": "us-east-1c"},
                    {"Location": "us-east-1-atl-2a"},
                    {"Location": "us-east-1a"},
                ]
            },
            ("ec2", "describe_availability_zones"): {
                "AvailabilityZones": [{"ZoneName": f"us-east-1{letter}"} for letter in "abcd"]
            },
            ("ssm", "get_parameter"): {"Parameter": {"Value": "ami-1"}},
            ("ec2", "describe_images"): {"Images": [{"Architecture": "x86_64"}]},
            ("efs", "describe_file_systems"): {"FileSystems": [mounted, free]},
        }
    )
    facts = lookups.facts(cloud, ClusterSpec(name="demo", nodes=2, type="g5.12xlarge"), "key")
    assert facts.kept_file_system == "fs-2"
    assert (facts.vcpus, facts.gpus, facts.memory_gib, facts.zones) == (48, 4, 192, ("us-east-1a", "us-east-1c"))


WANTED = quotas.of(aws_spec(type="c5.large"), 2)


def test_quotas_are_asked_and_what_the_cluster_itself_has_does_not_count():
    own, spot = [{"Key": "phalanx:cluster", "Value": "demo"}], {"InstanceLifecycle": "spot"}
    running = [
        {"InstanceType": "c5.large"},
        {"InstanceType": "m5.xlarge"},
        {"InstanceType": "c5.large", "Tags": own},
        {"InstanceType": "c5.large", **spot},
        {"InstanceType": "c5.large", "InstanceLifecycle": "capacity-block"},
        {"InstanceType": "p5.48xlarge"},
    ]
    sizes = {"c5.large": 2, "m5.xlarge": 4}
    described = [{"InstanceType": name, "VCpuInfo": {"DefaultVCpus": vcpus}} for name, vcpus in sizes.items()]
    cloud = Scripted(
        {
            ("service-quotas", "get_service_quota"): [
                {"Quota": {"Value": 64.0}},
                refused("NoSuchResourceException"),
                {"Quota": {"Value": 9.0}},
                {"Quota": {"Value": 20.0}},
            ],
            ("service-quotas", "get_aws_default_service_quota"): {"Quota": {"Value": 5.0}},
            ("ec2", "describe_instances"): {"Reservations": [{"Instances": running}]},
            ("ec2", "describe_instance_types"): {"InstanceTypes": described},
            ("ec2", "describe_addresses"): {"Addresses": [{}, {}, {"Tags": own}]},
            ("ec2", "describe_vpcs"): {"Vpcs": [{}]},
            ("ec2", "describe_vpc_endpoints"): {"VpcEndpoints": [{}, {}, {"Tags": own}]},
        }
    )
    found, unknown = ask(cloud, "demo", WANTED)
    assert [(quota.unit, quota.used, quota.limit) for quota in found] == [
        ("vCPU", 6, 64),
        ("Elastic IP", 2, 5),
        ("VPC", 1, 9),
        ("gateway endpoint", 2, 20),
    ]
    assert unknown == ""


def test_quotas_that_may_not_be_asked_are_those_of_the_table():
    cloud = Scripted({("service-quotas", "get_service_quota"): refused("AccessDeniedException")})
    assert ask(cloud, "demo", WANTED) == (
        tuple(WANTED),
        "these AWS credentials may not call service-quotas:get_service_quota: ",
    )


SMALL = {
    "ProcessorInfo": {"SupportedArchitectures": ["i386", "x86_64"]},
    "VCpuInfo": {"DefaultVCpus": 2},
    "MemoryInfo": {"SizeInMiB": 4096},
    "NetworkInfo": {"MaximumNetworkCards": 1},
    "PlacementGroupInfo": {"SupportedStrategies": ["partition", "spread"]},
}


def with_image(*images):
    """Return a cloud where the image's parameter holds ami-1, and EC2 knows these images."""
    return Scripted(
        {
            ("ec2", "describe_instance_types"): {"InstanceTypes": [SMALL]},
            ("ec2", "describe_instance_type_offerings"): {"InstanceTypeOfferings": [{"Location": "us-east-1a"}]},
            ("ec2", "describe_availability_zones"): {"AvailabilityZones": [{"ZoneName": "us-east-1a"}]},
            ("ssm", "get_parameter"): {"Parameter": {"Value": "ami-1"}},
            ("ec2", "describe_images"): {"Images": list(images)} if images else refused("InvalidAMIID.NotFound"),
            ("efs", "describe_file_systems"): {"FileSystems": []},
        }
    )


def test_the_image_is_as_ec2_describes_it():
    disks = [
        {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 35}},
    ]
    described = {"Name": "mine", "Architecture": "x86_64", "RootDeviceName": "/dev/sda1", "BlockDeviceMappings": disks}
    facts = lookups.facts(with_image(described), ClusterSpec(name="demo", nodes=2, image="/my/image"), "")
    assert facts.image == Image("ami-1", "mine", "x86_64", "/dev/sda1", 35)


def test_a_parameter_with_an_image_of_others_is_the_user_s_mistake():
    with raises_code("no-image", "ami-1", "us-east-1"):
        lookups.facts(with_image(), ClusterSpec(name="demo", nodes=2, image="/my/image"), "")
    assert lookups.image(with_image(), "/my/image") is None
    unshared = with_image()
    # One that others keep for themselves is left out of the answer.
    unshared.answers[("ec2", "describe_images")] = {"Images": []}
    with raises_code("no-image", "ami-1", "us-east-1") as caught:
        lookups.facts(unshared, ClusterSpec(name="demo", nodes=2, image="/my/image"), "")
    assert "shared with you" in caught.value.hint


def test_an_image_by_its_id_needs_no_parameter():
    described = {"Name": "mine", "Architecture": "x86_64", "RootDeviceName": "/dev/xvda", "BlockDeviceMappings": []}
    cloud = with_image(described)
    facts = lookups.facts(cloud, ClusterSpec(name="demo", nodes=2, image="ami-0123abcd"), "")
    assert facts.image == Image("ami-0123abcd", "mine", "x86_64", "/dev/xvda", 0)
    assert ("ssm", "get_parameter") not in [asked[:2] for asked in cloud.asked]


def test_a_policy_that_is_not_there_is_the_user_s_mistake():
    named = ClusterSpec(name="demo", nodes=2, permissions_boundary="arn:aws:iam::123456789012:policy/b")
    with raises_code("no-policy", "permissions_boundary:", "arn:aws:iam::123456789012:policy/b"):
        require_policies(Scripted({("iam", "get_policy"): refused("NoSuchEntity")}), named)
    require_policies(Scripted({("iam", "get_policy"): refused("AccessDenied")}), named)
    with pytest.raises(CloudError):
        require_policies(Scripted({("iam", "get_policy"): refused("ServiceFailure")}), named)


def test_a_reservation_is_as_ec2_describes_it():
    entry = {
        "CapacityReservationId": "cr-0123abcd",
        "State": "active",
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-east-1b",
        "AvailableInstanceCount": 4,
        "ReservationType": "capacity-block",
        "EndDate": datetime(2026, 11, 23, 11, 30, tzinfo=timezone.utc),
    }
    wanted = aws_spec(capacity="cr-0123abcd")
    cloud = Scripted({("ec2", "describe_capacity_reservations"): {"CapacityReservations": [entry]}})
    found = lookups.find_reservation(cloud, wanted)
    ends = "2026-11-23 11:30 UTC"
    assert found == Reservation("cr-0123abcd", True, "active", "p5.48xlarge", "us-east-1b", 4, ends=ends)
    gone = {("ec2", "describe_capacity_reservations"): refused("InvalidCapacityReservationId.NotFound")}
    with raises_code("no-reservation", "cr-0123abcd", "us-east-1"):
        lookups.find_reservation(Scripted(gone), wanted)
    assert lookups.find_reservation(Scripted({}), aws_spec()) is None


def test_a_placement_group_that_is_not_there_is_the_user_s_mistake():
    gone = {("ec2", "describe_placement_groups"): refused("InvalidPlacementGroup.Unknown", "is unknown")}
    cloud = Scripted({**gone, ("ec2", "describe_instance_types"): {"InstanceTypes": [SMALL]}})
    with raises_code("no-placement-group", "us-east-1", "'mine'"):
        lookups.facts(cloud, ClusterSpec(name="demo", nodes=2, placement="mine"), "")


def test_a_network_is_allowed_once():
    there = {("ec2", "authorize_security_group_ingress"): refused("InvalidPermission.Duplicate")}
    allowed = Scripted({("ec2", "authorize_security_group_ingress"): {}})
    assert ssh_access.allow_network(allowed, "sg-1", "203.0.113.7/32") is True
    assert ssh_access.allow_network(Scripted(there), "sg-1", "203.0.113.7/32") is False
    with pytest.raises(CloudError, match="may not call"):
        ssh_access.allow_network(
            Scripted({("ec2", "authorize_security_group_ingress"): refused("UnauthorizedOperation")}), "sg-1", "x"
        )


def test_an_unknown_type_is_the_user_s_mistake():
    cloud = Scripted({("ec2", "describe_instance_types"): refused("InvalidInstanceType", "c5.huge")})
    with pytest.raises(SpecError, match=r"no instance type 'c5.huge'"):
        lookups.facts(cloud, ClusterSpec(name="demo", nodes=2, type="c5.huge"), "")


def test_a_key_pair_that_aws_does_not_have_is_the_user_s_mistake():
    cloud = with_image({"Architecture": "x86_64"})
    cloud.answers["ec2", "describe_key_pairs"] = refused("InvalidKeyPair.NotFound", "mine")
    with raises_code("no-key-pair", "us-east-1", "'mine'"):
        lookups.facts(cloud, aws_spec(key_pair="mine"), "")


def test_a_reservation_that_is_missing_is_named_with_the_rest():
    cloud = with_image()
    cloud.answers["ec2", "describe_capacity_reservations"] = {"CapacityReservations": []}
    with pytest.raises(SpecError) as refusal:
        lookups.facts(cloud, aws_spec(capacity="cr-0123456789abcdef0"), "")
    (first, capacity), (second, image) = each(refusal.value)
    assert (first, second) == ("no-reservation", "no-image")
    assert capacity.startswith("capacity: cr-0123456789abcdef0") and image.startswith("image: ami-1")


@pytest.mark.parametrize(
    ("wanted", "cloud", "hint"),
    [
        ("c5.lrge", "local", "Did you mean c5.large"),
        ("c5.lrge", "aws", "Did you mean c5.large"),
        ("zz9.plural-z", "local", "The local cloud has EC2's types"),
        ("zz9.plural-z", "aws", "aws ec2 describe-instance-types"),
    ],
)
def test_an_unknown_type_brings_the_nearest_or_what_fits_the_cloud(wanted, cloud, hint):
    scripted = Scripted({("ec2", "describe_instance_types"): refused("InvalidInstanceType", wanted)})
    scripted.name = cloud
    with pytest.raises(SpecError) as reported:
        lookups.facts(scripted, ClusterSpec(name="demo", nodes=2, type=wanted), "")
    assert hint in reported.value.hint


def test_an_unknown_cloud_is_reported():
    with raises_code("no-cloud", "'gcp'"):
        connection.connect("gcp", "r")


def test_clouds_of_one_command_parse_botocores_tables_once(monkeypatch):
    parsed = []
    load = JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: parsed.append(path) or load(self, path))
    sessions._loader.cache_clear()
    for _ in range(3):
        connection.connect("aws", "us-east-1").client("sqs")
    found = [path for path in parsed if path.endswith(("endpoints", "sqs/2012-11-05/service-2"))]
    assert len(found) == len(set(found)) == 2
