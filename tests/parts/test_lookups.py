"""What a plan on AWS asks before anything is created, answered by the local cloud."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from clusters import aws_spec
from error_codes import each, raises_code
from moto.ec2.models import ec2_backends
from stack_fakes import Stacks, stacks

from localcloud.api import moto_setup
from localcloud.daemon import faults
from localcloud.ec2 import account_quotas
from localcloud.images import store
from localcloud.images.imagebuilder import registered
from phalanx.aws import lookups
from phalanx.data import table
from phalanx.errors import CloudError, SpecError
from phalanx.plan.plan import make_plan
from phalanx.plan.plan_text import explain, warnings


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture
def aws(local) -> AwsHere:
    faults.apply(local.context, {"vcpu_limit": None, "address_limit": None, "vpc_limit": None})
    return AwsHere(local.client)


class FewEndpoints(AwsHere):
    """AWS, where a service has no endpoint in some zones."""

    without: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def pages(self, service, operation, key, **arguments):
        for one in super().pages(service, operation, key, **arguments):
            if operation == "describe_vpc_endpoint_services":
                gone = self.without.get(one["ServiceName"].rpartition(".")[2], ())
                one["AvailabilityZones"] = [zone for zone in one["AvailabilityZones"] if zone not in gone]
            yield one


def private_spec(**fields):
    return aws_spec(network={"access": "private"}, ssh_from="", image="dlami-base", type="c5.large", **fields)


def test_a_private_cluster_is_in_a_zone_with_all_of_its_endpoints(local):
    aws = FewEndpoints(local.client)
    everywhere = lookups.facts(aws, private_spec(), "").zones
    assert everywhere == lookups.facts(aws, aws_spec(type="c5.large"), "").zones
    aws.without = {"sns": everywhere[:1], "ssmmessages": everywhere[:2]}
    assert lookups.facts(aws, private_spec(), "").zones == everywhere[2:]
    assert lookups.facts(aws, aws_spec(type="c5.large"), "").zones == everywhere


def test_a_zone_without_an_endpoint_is_refused_and_those_with_all_are_named(local):
    aws = FewEndpoints(local.client)
    zones = lookups.facts(aws, private_spec(), "").zones
    aws.without = {"sns": zones[:1], "ssmmessages": zones[:2]}
    with raises_code("no-endpoint-service", zones[0], "sns", "ssmmessages") as refused:
        lookups.facts(aws, private_spec(zones=[zones[0], zones[1]]), "")
    assert refused.value.hint == f"These zones have all: {', '.join(zones[2:])}."
    assert lookups.facts(aws, private_spec(zones=[zones[0], zones[2]]), "").zones == zones[2:]


def test_an_opted_in_local_zone_is_never_chosen(local, aws):
    """It is first in AWS's list and in the alphabet, and it offers the type."""
    zones = local.client("ec2").describe_availability_zones()["AvailabilityZones"]
    assert (zones[0]["ZoneName"], zones[0]["ZoneType"]) == ("us-east-1-atl-2a", "local-zone")
    spec = aws_spec(type="c5.large")
    facts = lookups.facts(aws, spec, "")
    assert make_plan(spec, facts).zone == "us-east-1a"
    assert all(len(zone) == len("us-east-1a") for zone in facts.zones)


def test_the_first_zone_of_the_list_that_offers_the_type_is_chosen(aws):
    """us-east-1e offers no c6i types."""
    spec = aws_spec(type="c6i.large", zones=["us-east-1e", "us-east-1c"])
    assert make_plan(spec, lookups.facts(aws, spec, "")).zone == "us-east-1c"


def test_the_types_whose_prices_are_known_here_are_ec2s(local):
    """Otherwise `plan` accepts one, and CloudFormation fails."""
    # The short list: that of all types with what they have takes four seconds of CPU time.
    listed = local.client("ec2").get_paginator("describe_instance_type_offerings").paginate()
    there = {one["InstanceType"] for page in listed for one in page["InstanceTypeOfferings"]}
    assert not table("prices")["usd_per_hour"].keys() - there


@pytest.mark.parametrize("kind", ["p3.16xlarge", "g2.2xlarge"])
def test_a_type_that_aws_has_retired_is_refused_and_others_with_gpus_are_named(aws, kind):
    with pytest.raises(SpecError, match=f"has no instance type '{kind}'") as refused:
        lookups.facts(aws, aws_spec(type=kind), "")
    assert "AWS has retired G2, G3, P2 and P3" in refused.value.hint and "p4d.24xlarge eight" in refused.value.hint


@pytest.fixture
def images(local) -> Iterator[dict[str, str]]:
    """Register three images of recipes; yield their ids by version."""
    backend = ec2_backends[local.context.account]["us-east-1"]
    tags = {"phalanx:recipe": "torch", "phalanx:base": "ubuntu-24.04", "localcloud:machine": "x86_64"}
    made = {}
    for version, machine in (("2026.930.1200", "x86_64"), ("2026.1001.7", "x86_64"), ("2026.1102.8", "aarch64")):
        own = {**tags, "phalanx:version": version, "localcloud:machine": machine}
        image = store.Image("x", "", "", 0, 0, 0, registered.new_id(), f"torch {version}", own)
        backend.amis[image.ami] = moto_setup.ami_of(backend, image)
        made[version] = image.ami
    yield made
    for ami in made.values():
        backend.amis.pop(ami)


def test_an_image_is_found_by_its_recipe_the_newest_for_the_processor(aws, images):
    for named, version in (("torch", "2026.1001.7"), ("torch@2026.930.1200", "2026.930.1200")):
        spec = aws_spec(type="c5.large", image=f"recipe:{named}")
        facts = lookups.facts(aws, spec, "")
        assert facts.image and (facts.image.image_id, facts.image.recipe) == (images[version], f"torch@{version}")
        assert make_plan(spec, facts).image_parameter == images[version]


def test_a_recipe_without_an_image_is_refused_with_the_command_that_makes_one(aws):
    with raises_code("no-image", "us-east-1", "mxnet") as refused:
        lookups.facts(aws, aws_spec(type="c5.large", image="recipe:mxnet"), "")
    assert "phalanx image build mxnet" in refused.value.hint


def test_an_unknown_recipe_or_version_is_refused_with_those_that_there_are(aws, images):
    with raises_code("no-recipe", "'mxnett'") as refused:
        lookups.facts(aws, aws_spec(type="c5.large", image="recipe:mxnett"), "")
    assert "jax, mpich, mxnet" in refused.value.hint
    with raises_code("no-image", "torch@2026.1.1") as refused:
        lookups.facts(aws, aws_spec(type="c5.large", image="recipe:torch@2026.1.1"), "")
    assert all(f"torch@{version}" in refused.value.hint for version in images)


def test_types_a_file_system_and_an_image_that_are_missing_are_named_at_once(aws):
    missing = {
        "type": "c5.tiny",
        "head": {"type": "m5.tiny"},
        "storage": "lustre",
        "file_system": "fs-0123456789abcdef0",
        "image": "ami-0123456789abcdef0",
    }
    with pytest.raises(SpecError) as refused:
        lookups.facts(aws, aws_spec(**missing), "")
    keys = [line.partition(":")[0] for line in str(refused.value).splitlines() if not line.startswith("  ")]
    assert keys == ["type", "head", "file_system", "image"]
    with pytest.raises(SpecError) as refused:
        lookups.facts(aws, aws_spec(type="c5.large", image="recipe:mxnet", key_pair="none-such"), "")
    keys = [line.partition(":")[0] for line in str(refused.value).splitlines() if not line.startswith("  ")]
    assert keys == ["key_pair", "image"]


def test_every_type_of_a_list_is_looked_up_and_all_that_are_missing_are_named(aws):
    """us-east-1e offers no c6i types."""
    spec = aws_spec(type=["m4.large", "c6i.large"], zones=["us-east-1e", "us-east-1c"])
    made = make_plan(spec, lookups.facts(aws, spec, ""))
    (other,) = made.alternatives
    assert (made.zone, other.zone) == ("us-east-1e", "us-east-1c")
    assert "us-east-1e" in made.facts.zones and "us-east-1e" not in other.facts.zones
    with pytest.raises(SpecError) as refused:
        lookups.facts(aws, aws_spec(type=["c5.large", "c5.tiny", "c6i.tiny"], key_pair="none-such"), "")
    lines = [line for line in str(refused.value).splitlines() if not line.startswith("  ")]
    assert [line.rpartition(" ")[2] for line in lines] == ["'none-such'", "'c5.tiny'", "'c6i.tiny'"]


class Counting(AwsHere):
    """AWS, with the operations that were called."""

    def __init__(self, clients) -> None:
        super().__init__(clients)
        self.called: list[str] = []

    def call(self, service, operation, **arguments):
        self.called.append(operation)
        return super().call(service, operation, **arguments)


def test_several_types_are_not_asked_about_the_same_again(local):
    one, two = Counting(local.client), Counting(local.client)
    lookups.facts(one, aws_spec(type="c5.large"), "")
    lookups.facts(two, aws_spec(type=["c5.large", "c5.xlarge"]), "")
    more = Counter(two.called)
    more.subtract(one.called)
    assert {*+more} <= {"describe_instance_types", "describe_instance_type_offerings", "get_products"}


def vcpus_of_instances(local: Stacks) -> int:
    """Count the vCPUs of instances that other tests of this process have left running."""
    pages = local.client("ec2").get_paginator("describe_instances").paginate()
    instances = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    alive = [one["InstanceType"] for one in instances if one["State"]["Name"] in ("pending", "running")]
    sizes = local.client("ec2").describe_instance_types(InstanceTypes=sorted({"c5.large", *alive}))["InstanceTypes"]
    cores = {size["InstanceType"]: size["VCpuInfo"]["DefaultVCpus"] for size in sizes}
    return sum(cores[name] for name in alive)


def gateway_endpoints(local: Stacks) -> list[str]:
    every = local.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
    return [one["VpcEndpointId"] for one in every if one["VpcEndpointType"] == "Gateway"]


def test_what_the_account_may_have_and_has_is_asked(local, aws):
    spec = aws_spec(nodes=4, min=2, type="c5.large")
    vcpus_in_use = vcpus_of_instances(local)
    # Other tests of this process may have left any number.
    in_use = len(local.client("ec2").describe_addresses()["Addresses"]) + 1
    vpcs_in_use = len(local.client("ec2").describe_vpcs()["Vpcs"])
    limits = {"address_limit": in_use + 50, "vpc_limit": vpcs_in_use + 50}
    faults.apply(local.context, {"vcpu_limit": vcpus_in_use + 6, **limits})
    address = local.client("ec2").allocate_address(Domain="vpc")
    facts = lookups.facts(aws, spec, "")
    local.client("ec2").release_address(AllocationId=address["AllocationId"])
    vcpus, addresses, vpcs, gateways = facts.quotas
    assert gateways.used == len(gateway_endpoints(local))
    assert facts.quotas_unknown == ""
    assert (vcpus.limit, vcpus.used) == (vcpus_in_use + 6, vcpus_in_use)
    assert (addresses.limit, addresses.used) == (in_use + 50, in_use)
    assert (vpcs.limit, vpcs.used) == (vpcs_in_use + 50, vpcs_in_use)
    assert any("not all nodes can start" in warning for warning in warnings(make_plan(spec, facts)))


def test_a_plan_that_can_t_succeed_is_refused(local, aws):
    in_use = len(local.client("ec2").describe_addresses()["Addresses"])
    faults.apply(local.context, {"vcpu_limit": None, "address_limit": in_use + 1, "vpc_limit": None})
    spec = aws_spec(type="c5.large")
    with raises_code("quota", "2 Elastic IPs", f"1 of {in_use + 1} "):
        make_plan(spec, lookups.facts(aws, spec, ""))


def test_ec2_refuses_what_exceeds_the_quotas_that_it_shows(local):
    ec2 = local.client("ec2")
    account_quotas.limit(account_quotas.ADDRESSES, len(ec2.describe_addresses()["Addresses"]))
    account_quotas.limit(account_quotas.VPCS, len(ec2.describe_vpcs()["Vpcs"]))
    with pytest.raises(ClientError, match="AddressLimitExceeded"):
        ec2.allocate_address(Domain="vpc")
    with pytest.raises(ClientError, match="VpcLimitExceeded"):
        ec2.create_vpc(CidrBlock="10.0.0.0/16")


def test_all_buckets_that_jobs_could_not_use_are_named_before_anything_is_made(local, aws):
    s3 = local.client("s3")
    s3.create_bucket(Bucket="my-data-here")
    s3.create_bucket(Bucket="my-data-far", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    usable = aws_spec(data={"a": "s3://my-data-here/x rw"})
    assert any(
        "my-data-here/x/ (read, write)" in line for line in explain(make_plan(usable, lookups.facts(aws, usable, "")))
    )
    spec = aws_spec(data={"a": "s3://my-data-here", "b": "s3://my-data-far", "c": "s3://my-data-nowhere"})
    with raises_code("bucket-elsewhere", "my-data-far (b) is in eu-west-1", "my-data-nowhere (c)") as caught:
        lookups.facts(aws, spec, "")
    assert [code for code, _ in each(caught.value)] == ["bucket-elsewhere", "no-bucket"]


class Forbidding(AwsHere):
    """AWS, where one bucket belongs to others: HeadBucket says 403, and where it is."""

    region_of_theirs = "us-east-1"

    def call(self, service, operation, **arguments):
        if operation == "head_bucket" and arguments["Bucket"] == "theirs":
            headers = {"x-amz-bucket-region": self.region_of_theirs}
            answer = {"Error": {"Code": "403"}, "ResponseMetadata": {"HTTPStatusCode": 403, "HTTPHeaders": headers}}
            raise CloudError("Forbidden") from ClientError(answer, "HeadBucket")  # pyright: ignore[reportArgumentType]
        return super().call(service, operation, **arguments)


def test_a_bucket_that_this_user_may_not_list_is_named_with_what_is_wrong(local):
    aws = Forbidding(local.client)
    spec = aws_spec(data={"a": "s3://theirs/x"})
    with raises_code("bucket-denied", "data: ", "theirs (a)"):
        lookups.facts(aws, spec, "")
    aws.region_of_theirs = "eu-west-1"
    with raises_code("bucket-elsewhere", "theirs (a)", "eu-west-1", "us-east-1"):
        lookups.facts(aws, spec, "")
