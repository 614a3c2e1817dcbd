"""The stack in which EC2 Image Builder makes a recipe's image: a small VPC, the components, and the image.

CloudFormation builds the image while it creates the stack, and deletes the AMI with it (docs/aws-behaviour.md 9.6).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from troposphere import AWSObject, GetAtt, If, Output, Parameter, Ref, Sub, Template, ec2, iam, imagebuilder, logs

from phalanx import __version__
from phalanx.images.base import Base
from phalanx.images.component import Component, components
from phalanx.images.place import OWN_NETWORK, Place
from phalanx.jobs.environments import Recipe
from phalanx.spec.own_tags import BASE_TAG, RECIPE_TAG, VERSION_TAG
from phalanx.template import encryption
from phalanx.template.access import EC2, add_partitions, trust

DIGEST_TAG, MANIFEST_TAG = "phalanx:digest", "phalanx:manifest"
"""Further tags of the stack and of its AMI: a hash of what it was made from, and the SHA-256 of what it contains."""

STACKS = "phalanx-image-"
"""How the names of all stacks of images begin."""

# A parameter's value may have 4,096 bytes (docs/aws-behaviour.md 1.14).
_VALUE = 4096
_NETWORK = "10.0.0.0/24"
_ANYWHERE = "0.0.0.0/0"
# A DLAMI is larger than that.
_PLAIN_GIB = 30
_TESTS_MIN = 90
# The base's instance profile, and what deletes an AMI with its snapshots (docs/aws-behaviour.md 9.4, 9.9).
_BUILD_POLICIES = ("EC2InstanceProfileForImageBuilder", "AmazonSSMManagedInstanceCore")
_DELETE_POLICY = "service-role/EC2ImageBuilderLifecycleExecutionPolicy"


@dataclass(frozen=True)
class Order:
    """An image to make: of this recipe, on this base, as this version, on machines of this type."""

    recipe: Recipe
    base: Base
    version: str
    instance_type: str
    architecture: str = "x86_64"
    place: Place = OWN_NETWORK

    @property
    def stack(self) -> str:
        """The stack's name."""
        return f"{stack_prefix(self.recipe.name)}{self.version.replace('.', '-')}"

    @property
    def name(self) -> str:
        """The image's name in Image Builder, which its log group has, too."""
        return f"phalanx-{self.recipe.name}"

    @property
    def log_group(self) -> str:
        return f"/aws/imagebuilder/{self.stack}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the stack and of the AMI."""
        return {
            **self.place.tags,
            RECIPE_TAG: self.recipe.name,
            VERSION_TAG: self.version,
            BASE_TAG: self.base.alias,
            DIGEST_TAG: self.recipe.environment.digest,
        }

    @property
    def parent(self) -> str:
        """The base image, as Image Builder's recipes name it: a parameter of Systems Manager."""
        arch = {"x86_64": "amd64"}.get(self.architecture, self.architecture)
        return "ssm:" + self.base.row["parameter"].format(cpu=self.architecture, arch=arch)


def stack_prefix(recipe: str) -> str:
    """Return how the names of the stacks of a recipe's images begin."""
    return f"{STACKS}{recipe}-"


def request(order: Order) -> tuple[str, dict[str, str]]:
    """Return the document and the parameters of the stack. Raises JobError for a base without the recipe's Python."""
    made = components(order.recipe, order.base, order.version)
    values = {name: value for one in made for name, value in _values(one).items()}
    template = Template(Description=f"An image of {order.recipe.name}, made by phalanx {__version__}")
    template.set_version()
    add_partitions(template)
    for name in values:
        template.add_parameter(Parameter(name, Type="String"))
    if order.place.boundary:
        template.add_parameter(Parameter("Boundary", Type="String", Default=order.place.boundary))
    for resource in (*_network(order.place), *_roles(order.place), *_recipe(order, made), *_image(order)):
        template.add_resource(resource)
    if order.place.key:
        template.add_parameter(Parameter(encryption.KEY, Type="String", Default=order.place.key))
        encryption.add_to(template)
    template.add_output(Output("ImageId", Value=GetAtt("Image", "ImageId"), Description="The AMI"))
    template.add_output(Output("LogGroup", Value=Ref("LogGroup"), Description="What its build has printed"))
    return json.dumps(template.to_dict(), separators=(",", ":"), ensure_ascii=False), values


def _title(component: Component) -> str:
    return "".join(word.title() for word in component.name.split("-"))


def _values(component: Component) -> dict[str, str]:
    """Return the parameters that carry a component's packed files."""
    packed = component.packed
    starts = range(0, len(packed), _VALUE)
    return {f"{_title(component)}Part{start // _VALUE + 1}": packed[start : start + _VALUE] for start in starts}


def _data(component: Component) -> Any:
    if not component.packed:
        return component.document
    parts = "".join(f"${{{name}}}" for name in _values(component))
    return Sub(component.document.replace(component.packed, parts))


def _network(place: Place) -> Iterator[AWSObject]:
    """Make a group that lets nobody connect, and a network unless there is one: an account may have no default VPC."""
    if not place.subnet:
        yield from _own_network(place.zone)
    yield ec2.SecurityGroup(
        "SecurityGroup",
        GroupDescription="Machines that build an image: they may reach everything, and nothing may reach them",
        VpcId=place.vpc or Ref("Vpc"),
        SecurityGroupEgress=[{"IpProtocol": "-1", "CidrIp": _ANYWHERE, "Description": "Packages"}],
    )


def _own_network(zone: str) -> Iterator[AWSObject]:
    yield ec2.VPC("Vpc", CidrBlock=_NETWORK, EnableDnsHostnames=True)
    yield ec2.InternetGateway("InternetGateway")
    yield ec2.VPCGatewayAttachment("GatewayAttachment", VpcId=Ref("Vpc"), InternetGatewayId=Ref("InternetGateway"))
    where: dict[str, Any] = {"AvailabilityZone": zone} if zone else {}
    yield ec2.Subnet("Subnet", CidrBlock=_NETWORK, VpcId=Ref("Vpc"), MapPublicIpOnLaunch=True, **where)
    yield ec2.RouteTable("RouteTable", VpcId=Ref("Vpc"))
    yield ec2.Route(
        "Route",
        RouteTableId=Ref("RouteTable"),
        DestinationCidrBlock=_ANYWHERE,
        GatewayId=Ref("InternetGateway"),
        DependsOn="GatewayAttachment",
    )
    yield ec2.SubnetRouteTableAssociation("Routes", SubnetId=Ref("Subnet"), RouteTableId=Ref("RouteTable"))


def _roles(place: Place) -> Iterator[AWSObject]:
    bound = {"PermissionsBoundary": Ref("Boundary")} if place.boundary else {}
    yield _role("BuildRole", EC2, _BUILD_POLICIES, bound)
    yield iam.InstanceProfile("BuildProfile", Roles=[Ref("BuildRole")])
    yield _role("DeletionRole", "imagebuilder.amazonaws.com", [_DELETE_POLICY], bound)


def _role(title: str, service: str | If, policies: Any, bound: dict[str, Any]) -> iam.Role:
    return iam.Role(
        title,
        AssumeRolePolicyDocument=trust({"Service": service}),
        ManagedPolicyArns=[Sub(f"arn:${{AWS::Partition}}:iam::aws:policy/{name}") for name in policies],
        **bound,
    )


def _recipe(order: Order, made: list[Component]) -> Iterator[AWSObject]:
    for one in made:
        yield imagebuilder.Component(
            _title(one), Name=f"{order.stack}-{one.name}", Platform="Linux", Version="1.0.0", Data=_data(one)
        )
    disk: dict[str, Any] = {"DeleteOnTermination": True, "VolumeType": "gp3"}
    if not order.base.row["mpi"]:
        disk["VolumeSize"] = _PLAIN_GIB
    if order.place.encrypted:
        disk["Encrypted"] = True
    mapping = imagebuilder.InstanceBlockDeviceMapping(
        DeviceName=order.base.row["root_device"], Ebs=imagebuilder.EbsInstanceBlockDeviceSpecification(**disk)
    )
    disks: dict[str, Any] = {"BlockDeviceMappings": [mapping]} if disk.keys() & {"VolumeSize", "Encrypted"} else {}
    yield imagebuilder.ImageRecipe(
        "Recipe",
        Name=order.stack,
        Version="1.0.0",
        ParentImage=order.parent,
        Components=[imagebuilder.ComponentConfiguration(ComponentArn=Ref(_title(one))) for one in made],
        **disks,
    )


def _image(order: Order) -> Iterator[AWSObject]:
    place = order.place
    more: dict[str, Any] = {} if place.subnet else {"DependsOn": ["Route", "Routes"]}
    if place.tags:
        more["ResourceTags"] = dict(place.tags)
    yield imagebuilder.InfrastructureConfiguration(
        "Infrastructure",
        Name=order.stack,
        InstanceProfileName=Ref("BuildProfile"),
        InstanceTypes=[order.instance_type],
        InstanceMetadataOptions=imagebuilder.InstanceMetadataOptions(HttpTokens="required"),
        SubnetId=place.subnet or Ref("Subnet"),
        SecurityGroupIds=[Ref("SecurityGroup")],
        TerminateInstanceOnFailure=True,
        **more,
    )
    ami = imagebuilder.AmiDistributionConfiguration(
        # Image Builder demands the date: names of AMIs are unique. The base says who may log in.
        Name=f"{order.name}-{order.version} {order.base.alias} {{{{ imagebuilder:buildDate }}}}",
        AmiTags=order.tags,
    )
    yield imagebuilder.DistributionConfiguration(
        "Distribution",
        Name=order.stack,
        Distributions=[imagebuilder.Distribution(Region=Ref("AWS::Region"), AmiDistributionConfiguration=ami)],
    )
    # The log of a failed build outlives the roll-back, for whoever follows it; phalanx deletes it.
    kept: Any = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
    yield logs.LogGroup("LogGroup", LogGroupName=order.log_group, **kept)
    yield imagebuilder.Image(
        "Image",
        ImageRecipeArn=Ref("Recipe"),
        InfrastructureConfigurationArn=Ref("Infrastructure"),
        DistributionConfigurationArn=Ref("Distribution"),
        EnhancedImageMetadataEnabled=False,
        ImageTestsConfiguration=imagebuilder.ImageTestsConfiguration(ImageTestsEnabled=True, TimeoutMinutes=_TESTS_MIN),
        LoggingConfiguration=imagebuilder.ImageLoggingConfiguration(LogGroupName=Ref("LogGroup")),
        DeletionSettings=imagebuilder.DeletionSettings(ExecutionRole=GetAtt("DeletionRole", "Arn")),
    )
