"""An account of the local cloud with one of everything, by name: what the requests in data/refusals.yaml refer to."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from botocore.exceptions import ClientError
from fleet_fakes import IMAGE, REGION, until
from stack_fakes import TOPIC, Stacks

from localcloud.api import moto_setup

ALLOW = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGB2dHhXZWV6b29vb29vb29vb29vb29vb29vb29vb29v me@here"


def trust(service: str) -> str:
    """Return a trust policy for a service of AWS."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def code() -> bytes:
    """Return the archive of a function that does nothing."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): pass\n")
    return held.getvalue()


def furnished(cloud: Stacks) -> dict[str, Any]:
    """Make the account's resources; return their ids by name."""
    role = {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": json.loads(trust("ec2.amazonaws.com"))},
    }
    made = {
        "image": IMAGE,
        "arm_image": moto_setup.IMAGES["arm64"],
        "long_user_data": "x" * 16_385,
        "trust": trust("ec2.amazonaws.com"),
        "allow": json.dumps(ALLOW),
        "long_policy": json.dumps({**ALLOW, "Id": "i" * 10_240}),
        "code": code(),
        "template_body": json.dumps({"Resources": {"Topic": TOPIC}}),
        "role_body": json.dumps({"Resources": {"Role": role}}),
    }
    for part in (_network, _groups, _roles, _machines, _services, _lustre):
        made |= part(cloud, made)
    return made


def _network(cloud: Stacks, _made: dict[str, Any]) -> dict[str, Any]:
    ec2 = cloud.client("ec2")
    vpc, other = (ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"] for _ in range(2))
    subnet, other_subnet = (_subnet(ec2, there) for there in (vpc, other))
    gateway, spare = (ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"] for _ in range(2))
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table, spare_table = (ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"] for _ in range(2))
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    main = ec2.describe_route_tables(
        Filters=[{"Name": "vpc-id", "Values": [vpc]}, {"Name": "association.main", "Values": ["true"]}]
    )["RouteTables"][0]["RouteTableId"]
    routed = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    s3 = {"VpcId": vpc, "ServiceName": f"com.amazonaws.{REGION}.s3"}
    gateways = [ec2.create_vpc_endpoint(**s3, RouteTableIds=one)["VpcEndpoint"] for one in ([routed], [])]
    return {
        "table_with_endpoint": routed,
        "gateway_endpoint": gateways[1]["VpcEndpointId"],
        "vpc": vpc,
        "other_vpc": other,
        "subnet": subnet,
        "other_subnet": other_subnet,
        "gateway": gateway,
        "spare_gateway": spare,
        "table_in_use": table,
        "spare_table": spare_table,
        "main_table": main,
    }


def _lustre(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    """Make a file system with a link to S3, and one that is too old for links."""
    ec2, fsx = cloud.client("ec2"), cloud.client("fsx")
    subnet = ec2.create_subnet(VpcId=made["vpc"], CidrBlock="10.0.9.0/24")["Subnet"]["SubnetId"]
    groups = [
        ec2.create_security_group(GroupName=name, Description=name, VpcId=made["vpc"])["GroupId"]
        for name in ("lustre", "no-lustre")
    ]
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [{"GroupId": groups[0]}]}
    ec2.authorize_security_group_ingress(GroupId=groups[0], IpPermissions=[rule])
    given = {"FileSystemType": "LUSTRE", "StorageCapacity": 1200, "SubnetIds": [subnet], "SecurityGroupIds": groups[:1]}
    new, old = (
        fsx.create_file_system(
            **given, FileSystemTypeVersion=version, LustreConfiguration={"DeploymentType": "SCRATCH_2"}
        )
        for version in ("2.15", "2.10")
    )
    lustre, old_lustre = (one["FileSystem"]["FileSystemId"] for one in (new, old))
    url = "s3://bucket-of-tests/linked/"
    fsx.create_data_repository_association(FileSystemId=lustre, FileSystemPath="/data/linked", DataRepositoryPath=url)
    return {
        "lustre": lustre,
        "old_lustre": old_lustre,
        "lustre_subnet": subnet,
        "lustre_group": groups[0],
        "no_lustre_group": groups[1],
    }


def _subnet(ec2: Any, vpc: str) -> str:
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone=f"{REGION}a")
    return made["Subnet"]["SubnetId"]


def _groups(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    ec2 = cloud.client("ec2")
    places = {"used": "vpc", "named": "vpc", "naming": "vpc", "other": "other_vpc"}
    found = {
        f"{name}_group": ec2.create_security_group(GroupName=name, Description=name, VpcId=made[place])["GroupId"]
        for name, place in places.items()
    }
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    everyone = [{**ssh, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.authorize_security_group_ingress(GroupId=found["used_group"], IpPermissions=everyone)
    members = [{**ssh, "UserIdGroupPairs": [{"GroupId": found["named_group"]}]}]
    ec2.authorize_security_group_ingress(GroupId=found["naming_group"], IpPermissions=members)
    chosen = [{"Name": "vpc-id", "Values": [made["vpc"]]}, {"Name": "group-name", "Values": ["default"]}]
    return {**found, "default_group": ec2.describe_security_groups(Filters=chosen)["SecurityGroups"][0]["GroupId"]}


def _roles(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    iam = cloud.client("iam")
    role = iam.create_role(RoleName="role", AssumeRolePolicyDocument=made["trust"])["Role"]["Arn"]
    iam.put_role_policy(RoleName="role", PolicyName="inline", PolicyDocument=made["allow"])
    of_functions = iam.create_role(RoleName="functions", AssumeRolePolicyDocument=trust("lambda.amazonaws.com"))
    iam.create_policy(PolicyName="policy", PolicyDocument=made["allow"])
    iam.create_instance_profile(InstanceProfileName="profile")
    iam.add_role_to_instance_profile(InstanceProfileName="profile", RoleName="role")
    return {"role_arn": role, "lambda_role": of_functions["Role"]["Arn"]}


def _machines(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    ec2 = cloud.client("ec2")
    ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=PUBLIC_KEY.encode())
    first, second, kept = (_instance(cloud, made) for _ in range(3))
    ec2.modify_instance_attribute(InstanceId=kept["InstanceId"], DisableApiTermination={"Value": True})
    addresses = [ec2.allocate_address(Domain="vpc")["AllocationId"] for _ in range(2)]
    ec2.associate_address(AllocationId=addresses[0], InstanceId=first["InstanceId"])
    data = {"ImageId": IMAGE, "InstanceType": "c5.large"}
    template = ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData=data)
    template_id = template["LaunchTemplate"]["LaunchTemplateId"]
    group = {"AutoScalingGroupName": "group", "MinSize": 1, "MaxSize": 2, "VPCZoneIdentifier": made["subnet"]}
    cloud.client("autoscaling").create_auto_scaling_group(**group, LaunchTemplate={"LaunchTemplateId": template_id})
    return {
        "instance": first["InstanceId"],
        "second_instance": second["InstanceId"],
        "protected_instance": kept["InstanceId"],
        "interface_in_use": first["NetworkInterfaces"][0]["NetworkInterfaceId"],
        "address": addresses[0],
        "spare_address": addresses[1],
        "template": template_id,
    }


def _instance(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    ec2 = cloud.client("ec2")
    place = {"SubnetId": made["subnet"], "SecurityGroupIds": [made["used_group"]]}
    asked = {"ImageId": IMAGE, "InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1, **place}
    instance = ec2.run_instances(**asked)["Instances"][0]

    def runs() -> bool:
        found = ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0]["Instances"][0]
        return found["State"]["Name"] == "running"

    until(runs)
    return instance


def _services(cloud: Stacks, made: dict[str, Any]) -> dict[str, Any]:
    queue = cloud.client("sqs").create_queue(QueueName="queue")["QueueUrl"]
    topic = cloud.client("sns").create_topic(Name="topic")["TopicArn"]
    key = {"KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST"}
    keys = [{"AttributeName": "id", "AttributeType": "S"}]
    cloud.client("dynamodb").create_table(TableName="table", AttributeDefinitions=keys, **key)
    function = {"Runtime": "python3.12", "Role": made["lambda_role"], "Handler": "index.handler"}
    cloud.client("lambda").create_function(FunctionName="function", Code={"ZipFile": made["code"]}, **function)
    cloud.client("logs").create_log_group(logGroupName="logs")
    cloud.client("s3").create_bucket(Bucket="bucket-of-tests")
    cloud.client("s3").put_object(Bucket="bucket-of-tests", Key="a", Body=b"a")
    cloud.client("ssm").put_parameter(Name="/mine", Value="a", Type="String", Overwrite=True)
    efs = cloud.client("efs")
    kept, spare = (efs.create_file_system(CreationToken=token)["FileSystemId"] for token in ("token", "spare"))
    efs.create_mount_target(FileSystemId=kept, SubnetId=made["subnet"])
    stack = cloud.create({"Topic": TOPIC}, StackName="stack")
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    named = {"queue": queue, "no_queue": queue.replace("queue", "nobodys"), "topic": topic}
    return {**named, "file_system": kept, "spare_file_system": spare}


def refusal(client: Any, operation: str, given: Any, account: dict[str, Any]) -> str:
    """Make a request; return the error code of its answer, "" if it was accepted."""
    return refused(client, operation, given, account).get("Code", "")


def refused(client: Any, operation: str, given: Any, account: dict[str, Any]) -> dict[str, Any]:
    """Make a request; return the error of its answer, {} if it was accepted."""
    try:
        client._make_api_call(operation, _filled(given, account))
    except ClientError as error:
        return dict(error.response["Error"])
    return {}


def _filled(given: Any, account: dict[str, Any]) -> Any:
    if isinstance(given, dict):
        return {key: _filled(value, account) for key, value in given.items()}
    if isinstance(given, list):
        return [_filled(value, account) for value in given]
    return account[given[1:]] if isinstance(given, str) and given.startswith("$") else given
