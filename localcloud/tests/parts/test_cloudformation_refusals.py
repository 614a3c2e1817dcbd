"""The local cloud refuses what AWS refuses: at CreateStack, with AWS's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import name
from stack_fakes import HANDLE, TOPIC, Stacks, stacks, waits

from localcloud.cloudformation.engine import Engine
from localcloud.cloudformation.errors import Refused

VPC = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}
ROLE = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17"}}}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def body(resources=None, **sections) -> str:
    return json.dumps({"Resources": {"Topic": TOPIC} if resources is None else resources, **sections})


def named(**properties):
    return {"Topic": {"Type": "AWS::SNS::Topic", "Properties": properties}}


TEMPLATES = {
    "broken JSON": ('{"Resources": ', r"JSON not well-formed. \(line 1, column 15\)"),
    "broken YAML": ("Resources:\n  - a\n b: c", r"YAML not well-formed. \(line 3"),
    "a list": ("- a\n- b", "unsupported structure"),
    "an unknown section": (body(Resorces={}), r"Invalid template property or properties \[Resorces\]"),
    "no resources": (body({}), "At least one Resources member must be defined"),
    "a bad logical id": (body({"my-topic": TOPIC}), "Resource name my-topic is non alphanumeric"),
    "no type": (body({"Topic": {"Properties": {}}}), "must contain a Type member"),
    "an unknown attribute of a resource": (
        body({"Topic": {**TOPIC, "Propertys": {}}}),
        "template resource property 'Propertys'",
    ),
    "a custom resource": (
        body({"A": {"Type": "Custom::Lookup", "Properties": {"ServiceToken": "arn"}}}),
        r"The local cloud does not serve custom resources: \[Custom::Lookup\]",
    ),
    "an unknown type": (body({"A": {"Type": "AWS::SNS::Topik"}}), r"Unrecognized resource types: \[AWS::SNS::Topik\]"),
    "a type that is not here": (
        body({"A": {"Type": "AWS::Redshift::Cluster"}}),
        r"does not support the resource types: \[AWS::Redshift::Cluster\]",
    ),
    "a dangling Ref": (body(named(DisplayName={"Ref": "Nope"})), r"dependencies \[Nope\] in the Resources block"),
    "a dangling Sub": (body(named(DisplayName={"Fn::Sub": "${Nope.Arn}"})), r"dependencies \[Nope\] in the Resources"),
    "a dangling DependsOn": (body({"A": {**TOPIC, "DependsOn": "Nope"}}), r"dependencies \[Nope\] in the Resources"),
    "a dangling output": (body(Outputs={"O": {"Value": {"Ref": "Nope"}}}), r"\[Nope\] in the Outputs block"),
    "an output without value": (body(Outputs={"O": {"Description": "x"}}), "must contain a Value object"),
    "an unknown attribute": (
        body(Outputs={"O": {"Value": {"Fn::GetAtt": ["Topic", "Color"]}}}),
        "resource Topic does not support attribute type Color in Fn::GetAtt",
    ),
    "a circle": (
        body({"A": {**TOPIC, "DependsOn": "B"}, "B": {**TOPIC, "DependsOn": "A"}, "C": {**TOPIC, "DependsOn": "A"}}),
        r"Circular dependency between resources: \[A, B\]",
    ),
    "an unknown condition": (body({"A": {**TOPIC, "Condition": "Nope"}}), "Unresolved condition dependency Nope"),
    "a condition on a resource": (
        body(Conditions={"C": {"Fn::Equals": [{"Ref": "Topic"}, "x"]}}),
        "Cannot reference resources in the Conditions block",
    ),
    "a creation policy where none works": (
        body({"A": {**TOPIC, "CreationPolicy": {"ResourceSignal": {}}}}),
        "CreationPolicy is not supported for AWS::SNS::Topic",
    ),
    "an unknown deletion policy": (
        body({"A": {**TOPIC, "DeletionPolicy": "Keep"}}),
        "Unrecognized DeletionPolicy Keep",
    ),
    "an unknown function": (body(named(DisplayName={"Fn::Reverse": "x"})), "does not support the function Fn::Reverse"),
    "501 resources": (
        json.dumps({"Resources": {f"T{n}": TOPIC for n in range(501)}}, separators=(",", ":")),
        "Number of resources, 501, is greater than maximum allowed, 500",
    ),
    "201 parameters": (
        body(Parameters={f"P{n}": {"Type": "String", "Default": ""} for n in range(201)}),
        "Template format error: Parameter count 201 is greater than max allowed 200",
    ),
    "a transform": (body(Transform="AWS::Serverless-2016-10-31"), "does not serve Transform"),
    "a transform of all": (body(**{"Fn::Transform": {"Name": "AWS::Include"}}), "does not serve Fn::Transform"),
    "a transform of resources": (
        body({"Fn::Transform": {"Name": "AWS::Include", "Parameters": {}}}),
        "does not serve Fn::Transform",
    ),
    "a default of a mapping": (
        body(named(DisplayName={"Fn::FindInMap": ["M", "x", "y", {"DefaultValue": "z"}]}), Mappings={"M": {}}),
        "every Fn::FindInMap object requires three parameters",
    ),
    "another version": (body(AWSTemplateFormatVersion="2011-01-01"), "unsupported value for AWSTemplateFormatVersion"),
    "a long description": (body(Description="x" * 1025), "'Description' length is greater than 1024"),
    "a transform with its section": (
        body(Transform="AWS::Serverless-2016-10-31", Globals={"Function": {"Timeout": 3}}),
        "does not serve Transform",
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates(case):
    text, message = TEMPLATES[case]
    with pytest.raises(Refused, match=message):
        Engine.validated(text)


@pytest.mark.parametrize(
    ("rules", "value", "message"),
    [
        ({"Type": "String"}, None, r"Parameters: \[P\] must have values"),
        ({"Type": "Sting"}, "x", "Unrecognized parameter type: Sting"),
        ({"Type": "String", "AllowedValues": ["a", "b"]}, "c", "Parameter 'P' must be one of AllowedValues"),
        ({"Type": "String", "AllowedPattern": "[a-z]+"}, "abc1", r"Parameter 'P' must match pattern \[a-z\]\+"),
        ({"Type": "String", "AllowedPattern": "x", "ConstraintDescription": "say x"}, "y", "satisfy constraint: say x"),
        ({"Type": "String", "MinLength": 2}, "a", "at least 2 characters"),
        ({"Type": "String", "MaxLength": "2"}, "abc", "at most 2 characters"),
        ({"Type": "Number"}, "many", "Parameter 'P' must be a number"),
        ({"Type": "Number", "MinValue": 1}, "0", "not less than 1"),
        ({"Type": "Number", "MaxValue": 9}, "10", "not greater than 9"),
        ({"Type": "String"}, "x" * 4097, "must not exceed 4096 bytes"),
        (
            {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"},
            "/aws/service/deeplearning/ami/x86_64/typo/latest/ami-id",
            r"Unable to fetch parameters \[/aws/service/deeplearning/ami/x86_64/typo/latest/ami-id\]",
        ),
        (
            {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"},
            "/aws/service/debian/release/12/latest/amd64",
            "The local cloud does not serve the image /aws/service/debian/release/12/latest/amd64",
        ),
    ],
)
def test_parameters(cloud, rules, value, message):
    given = [] if value is None else [{"ParameterKey": "P", "ParameterValue": value}]
    with pytest.raises(ClientError, match=message) as refused:
        cloud.create({"Topic": TOPIC}, sections={"Parameters": {"P": rules}}, Parameters=given)
    assert refused.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize(
    ("rules", "given", "value"),
    [
        ({"Type": "Number", "Default": 3}, None, "3"),
        ({"Type": "String", "Default": True}, None, "true"),
        ({"Type": "CommaDelimitedList"}, "a, b", "a|b"),
        ({"Type": "List<AWS::EC2::Subnet::Id>"}, "s-1,s-2", "s-1|s-2"),
        (
            {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"},
            "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
            "ami-0fa1a9c0de0000064",
        ),
    ],
)
def test_parameter_values(cloud, rules, given, value):
    joined = {"Fn::Join": ["|", {"Ref": "P"}]} if "List" in rules["Type"] else {"Ref": "P"}
    sections = {"Parameters": {"P": rules}, "Outputs": {"O": {"Value": joined}}}
    parameters = [{"ParameterKey": "P", "ParameterValue": given}] if given else []
    stack = cloud.made({"Topic": TOPIC}, sections=sections, Parameters=parameters)
    assert cloud.outputs(stack)["O"] == value
    if "SSM" in rules["Type"]:
        assert cloud.describe(stack)["Parameters"][0]["ResolvedValue"] == value


def test_parameters_that_the_template_lacks(cloud):
    with pytest.raises(ClientError, match=r"Parameters: \[Nope\] do not exist in the template"):
        cloud.create({"Topic": TOPIC}, Parameters=[{"ParameterKey": "Nope", "ParameterValue": "x"}])


@pytest.mark.parametrize(
    ("properties", "needed", "given"),
    [
        ({}, "CAPABILITY_IAM", []),
        ({"RoleName": "mine"}, "CAPABILITY_NAMED_IAM", ["CAPABILITY_IAM"]),
    ],
)
def test_iam_needs_its_capability(cloud, properties, needed, given):
    role = {**ROLE, "Properties": {**ROLE["Properties"], **properties}}
    with pytest.raises(ClientError, match=rf"Requires capabilities : \[{needed}\]") as refused:
        cloud.create({"Role": role}, Capabilities=given)
    assert refused.value.response["Error"]["Code"] == "InsufficientCapabilitiesException"
    answer = cloud.cloudformation.validate_template(TemplateBody=json.dumps({"Resources": {"Role": role}}))
    assert answer["Capabilities"] == [needed]


@pytest.mark.parametrize("bad", ["1stack", "a_b", "a" * 129])
def test_stack_names(cloud, bad):
    with pytest.raises(ClientError, match=r"1 validation error detected: Value|Member must"):
        cloud.create({"Topic": TOPIC}, StackName=bad)


def test_a_name_in_use(cloud):
    stack = name("taken")
    cloud.made({"Topic": TOPIC}, StackName=stack)
    with pytest.raises(ClientError, match=rf"Stack \[{stack}\] already exists") as refused:
        cloud.create({"Topic": TOPIC}, StackName=stack)
    assert refused.value.response["Error"]["Code"] == "AlreadyExistsException"


def test_on_failure_and_disable_rollback_exclude_each_other(cloud):
    with pytest.raises(ClientError, match="either DisableRollback or OnFailure"):
        cloud.create({"Topic": TOPIC}, DisableRollback=False, OnFailure="DELETE")


def launch_template(**data):
    return {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": {"ImageId": "ami-1", **data}}}


def group(**properties):
    launch = {"LaunchTemplateId": {"Ref": "Template"}, "Version": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}}
    given = {
        "MinSize": "0",
        "MaxSize": "1",
        "VPCZoneIdentifier": [{"Ref": "Subnet"}],
        "LaunchTemplate": launch,
        **properties,
    }
    return {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": given}


def function(runtime: str):
    given = {"Role": "arn:aws:iam::1:role/r", "Runtime": runtime, "Code": {"ZipFile": "x"}}
    return {"Type": "AWS::Lambda::Function", "Properties": given}


SUBNET = {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.0.0.0/24"}}
PLACE = {"Vpc": VPC, "Subnet": SUBNET}
FACES = [{"DeviceIndex": 0, "Groups": ["sg-1"]}, {"DeviceIndex": 1, "AssociatePublicIpAddress": True}]
FAILURES = {
    "an unknown property": (
        {"Bad": {"Type": "AWS::SNS::Topic", "Properties": {"Colour": "red"}}},
        "Properties validation failed for resource Bad with message: #: extraneous key [Colour] is not permitted",
    ),
    "an unknown property deep inside": (
        {"Bad": launch_template(MetadataOptions={"HttpToken": "required"})},
        "#/LaunchTemplateData/MetadataOptions: extraneous key [HttpToken] is not permitted",
    ),
    "a missing property": ({"Bad": {"Type": "AWS::EC2::Subnet"}}, "#: required key [VpcId] not found"),
    "a list for a text": ({"Bad": {**VPC, "Properties": {"CidrBlock": ["10.0.0.0/16"]}}}, "found: JSONArray"),
    "a wait of more than twelve hours": (
        {"Handle": HANDLE, "Bad": waits(Timeout="43201")},
        "#/Timeout: 43201 is not less or equal to 43200",
    ),
    "user data of 16,385 bytes": (
        {"Bad": launch_template(UserData={"Fn::Base64": "x" * 16_385})},
        "User data is limited to 16384 bytes",
    ),
    "groups in two places": (
        {**PLACE, "Template": launch_template(NetworkInterfaces=FACES[:1], SecurityGroupIds=["sg-2"]), "Bad": group()},
        "You must use a valid fully-formed launch template. Network interfaces and an instance-level security groups",
    ),
    "a public address with many interfaces": (
        {**PLACE, "Template": launch_template(NetworkInterfaces=FACES), "Bad": group()},
        "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces",
    ),
    "more wanted than allowed": (
        {**PLACE, "Template": launch_template(), "Bad": group(DesiredCapacity="2")},
        "Desired capacity:2 must be between the specified min size:0 and max size:1",
    ),
    "a template without an image": (
        {**PLACE, "Template": launch_template(ImageId=""), "Bad": group()},
        "You must use a valid fully-formed launch template. The request must contain the parameter ImageId",
    ),
    "a subnet outside": (
        {
            "Vpc": VPC,
            "Bad": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "1.0.0.0/24"}},
        },
        "1.0.0.0/24",
    ),
    "a profile that is missing": (
        {**PLACE, "Template": launch_template(IamInstanceProfile={"Name": "nobodys"}), "Bad": group()},
        "You must use a valid fully-formed launch template. Value (nobodys) for parameter iamInstanceProfile.name is"
        " invalid. Invalid IAM Instance Profile name",
    ),
    "inline code for a runtime that has none": (
        {"Bad": function("java21")},
        "ZipFile can only be used when Runtime is set to either of nodejs or python",
    ),
    "a function in Node.js": (
        {"Bad": function("nodejs22.x")},
        "The local cloud runs functions in Python only, not in nodejs22.x",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_only_the_service_refuses_fails_the_resource_and_rolls_back(cloud, case):
    resources, message = FAILURES[case]
    stack = cloud.create(resources)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert message in cloud.reason(stack, "Bad", "CREATE_FAILED")


def test_user_data_of_16384_bytes_is_taken(cloud):
    cloud.made({"Good": launch_template(UserData={"Fn::Base64": "x" * 16_384})})


def test_yaml_with_short_forms(cloud):
    text = """
AWSTemplateFormatVersion: 2010-09-09
Parameters:
  Word: {Type: String, Default: hi}
Resources:
  Topic:
    Type: AWS::SNS::Topic
    Properties:
      DisplayName: !Sub "${Word}-${AWS::Region}"
Outputs:
  Name:
    Value: !Join ["/", [!GetAtt Topic.TopicName, !Ref Word]]
"""
    sid = cloud.cloudformation.create_stack(StackName=name("yaml"), TemplateBody=text)["StackId"]
    assert cloud.settled(sid) == "CREATE_COMPLETE"
    assert cloud.outputs(sid)["Name"].endswith("/hi")


AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
OF_AWS_ALONE = [
    "/aws/service/ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2",
    "/aws/service/debian/release/12/latest/amd64",
    "/aws/service/canonical/ubuntu/server/20.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
    "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id",
]


@pytest.mark.parametrize("in_template", [False, True])
def test_the_name_of_an_image_is_resolved_at_the_launch(cloud, in_template):
    ec2, image = cloud.client("ec2"), {"ImageId": f"resolve:ssm:{AMAZON_LINUX}"}
    if in_template:
        template = ec2.create_launch_template(LaunchTemplateName=name("resolves"), LaunchTemplateData=image)
        image = {"LaunchTemplate": {"LaunchTemplateId": template["LaunchTemplate"]["LaunchTemplateId"]}}
    launch = {"InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    made = ec2.run_instances(**launch, **image)["Instances"][0]
    found = cloud.client("ssm").get_parameter(Name=AMAZON_LINUX)["Parameter"]["Value"]
    assert made["ImageId"] == found
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        ec2.run_instances(**launch, ImageId="resolve:ssm:/nobody/has/this")


@pytest.mark.parametrize("image", OF_AWS_ALONE)
def test_the_name_of_an_image_that_only_aws_has_is_not_served(cloud, image):
    launch = {"InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    for ask in (
        lambda: cloud.client("ssm").get_parameter(Name=image),
        lambda: cloud.client("ssm").get_parameters(Names=[AMAZON_LINUX, image]),
        lambda: cloud.client("ec2").run_instances(ImageId=f"resolve:ssm:{image}", **launch),
    ):
        with pytest.raises(ClientError, match="does not serve") as refused:
            ask()
        assert refused.value.response["Error"]["Code"] == "UnsupportedOperation"
        assert image in refused.value.response["Error"]["Message"]
