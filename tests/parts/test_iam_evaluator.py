"""Policy evaluation through signed requests of a role."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import wsgi_clients
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from clusters import plan
from fleet_fakes import IMAGE, REGION, Cloud, cloud, endpoint, name, until

from localcloud import autoscaling
from localcloud.context import Issued
from localcloud.iam import credentials
from phalanx.node import nfs_metrics, sigv4
from phalanx.node.aws_client import Aws
from phalanx.template.document import build


def allow(**statement) -> dict:
    return {"Effect": "Allow", "Action": "*", "Resource": "*", **statement}


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


def as_role(local: Cloud, *statements: dict) -> tuple[str, Issued]:
    """Create a role with these permissions; return it with credentials like a Lambda function's."""
    role = local.role("lambda.amazonaws.com", *statements)
    arn = f"arn:aws:iam::{local.context.account}:role/{role}"
    return role, credentials.for_function(local.context, arn, name("function")).issued


def refusal(call, **arguments) -> dict:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]


def test_a_role_may_send_to_its_queue_and_do_nothing_else(local):
    url, arn = local.queue()
    other, _ = local.queue()
    role, issued = as_role(local, {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": arn})
    sqs = local.client("sqs", issued)
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    error = refusal(sqs.send_message, QueueUrl=other, MessageBody="x")
    assert error["Code"].startswith("AccessDenied")
    assert error["Message"].startswith(f"User: arn:aws:sts::{local.context.account}:assumed-role/{role}/function-")
    assert error["Message"].endswith(
        f"is not authorized to perform: sqs:SendMessage on resource: arn:aws:sqs:{REGION}:{local.context.account}:"
        f"{other.rpartition('/')[2]} because no identity-based policy allows the sqs:SendMessage action"
    )
    assert refusal(sqs.receive_message, QueueUrl=url)["Code"].startswith("AccessDenied")
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "a batch needs the same right"}])


def test_a_node_sends_metrics_of_its_namespace_and_of_no_other(local, monkeypatch):
    """With exactly the statement that nodes of a cluster with `metrics` have."""
    made = build(plan(metrics="yes")).to_dict()["Resources"]["NodePolicy"]["Properties"]["PolicyDocument"]
    (allowed,) = (one for one in made["Statement"] if "cloudwatch:PutMetricData" in one["Action"])
    _, issued = as_role(local, allowed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", local.context.url_host)
    keys = sigv4.Credentials(issued.access_key_id, issued.secret_access_key, issued.session_token)
    values = {"NfsReadBytes": (4096, "Bytes"), "NfsReadTime": (2.5, "Milliseconds")}
    nfs_metrics.send(Aws(REGION, "amazonaws.com", lambda _fresh: keys), "demo", "i-1", values)
    found = local.client("cloudwatch").list_metrics(Namespace="phalanx")["Metrics"]
    assert sorted(one["MetricName"] for one in found) == ["NfsReadBytes", "NfsReadTime"]
    assert {"Name": "Cluster", "Value": "demo"} in found[0]["Dimensions"]
    other = local.client("cloudwatch", issued).put_metric_data
    data = [{"MetricName": "x", "Value": 1}]
    assert refusal(other, Namespace="AWS/EC2", MetricData=data)["Code"].startswith("Access")
    _, issued = as_role(local)
    without = local.client("cloudwatch", issued).put_metric_data
    assert refusal(without, Namespace="phalanx", MetricData=data)["Code"].startswith("Access")


def test_every_protocol_refuses_in_its_own_format(local):
    deny = {"Effect": "Deny", "Action": "autoscaling:*", "Resource": "*"}
    _, issued = as_role(local, {"Effect": "Allow", "Action": "autoscaling:*", "Resource": "*"}, deny)
    describe = local.client("autoscaling", issued).describe_auto_scaling_groups
    error = refusal(describe)
    assert error["Code"] == "AccessDenied"
    assert error["Message"].endswith("with an explicit deny in an identity-based policy")
    assert refusal(local.client("ec2", issued).describe_instances)["Code"] == "UnauthorizedOperation"
    get = local.client("dynamodb", issued).get_item
    assert refusal(get, TableName="t", Key={"item": {"S": "x"}})["Code"] == "AccessDeniedException"
    assert refusal(local.client("lambda", issued).list_functions)["Code"] == "AccessDeniedException"


def test_a_head_may_resize_only_its_own_workers(local):
    mine, other = name("demo-workers"), name("other-workers")
    api = local.client("autoscaling")
    _, subnets = local.network()
    for group in (mine, other):
        api.create_auto_scaling_group(
            AutoScalingGroupName=group,
            LaunchTemplate={"LaunchTemplateId": local.template()},
            VPCZoneIdentifier=subnets[0],
            MinSize=0,
            MaxSize=3,
        )
    resource = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{mine}"
    _, issued = as_role(local, {"Effect": "Allow", "Action": "autoscaling:SetDesiredCapacity", "Resource": resource})
    set_desired = local.client("autoscaling", issued).set_desired_capacity
    set_desired(AutoScalingGroupName=mine, DesiredCapacity=0)
    assert refusal(set_desired, AutoScalingGroupName=other, DesiredCapacity=0)["Code"] == "AccessDenied"


def test_leading_keys_restrict_a_table_by_its_partition_key(local):
    table = name("table")
    local.client("dynamodb").create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    only = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["roster"]}}
    _, issued = as_role(local, {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*", "Condition": only})
    api = local.client("dynamodb", issued)
    api.get_item(TableName=table, Key={"item": {"S": "roster"}})
    api.put_item(TableName=table, Item={"value": {"S": "authority"}, "item": {"S": "roster"}})
    assert refusal(api.get_item, TableName=table, Key={"item": {"S": "authority"}})["Code"] == "AccessDeniedException"
    item = {"value": {"S": "roster"}, "item": {"S": "authority"}}
    assert refusal(api.put_item, TableName=table, Item=item)["Code"] == "AccessDeniedException"


def test_logs_are_written_to_streams_of_one_group(local):
    group = name("/phalanx")
    local.client("logs").create_log_group(logGroupName=group)
    resource = f"arn:aws:logs:{REGION}:{local.context.account}:log-group:{group}:*"
    actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
    _, issued = as_role(local, {"Effect": "Allow", "Action": actions, "Resource": resource})
    logs = local.client("logs", issued)
    logs.create_log_stream(logGroupName=group, logStreamName="i-1")
    assert refusal(logs.create_log_stream, logGroupName="other", logStreamName="i-1")["Code"] == "AccessDeniedException"


def test_an_address_is_given_only_to_instances_with_the_right_tag(local):
    _, (subnet,) = local.network()
    ec2 = local.client("ec2")
    made = ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="c5.large", SubnetId=subnet)
    instance = made["Instances"][0]["InstanceId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    ours = {"StringEquals": {"ec2:ResourceTag/cluster": "demo"}}
    _, issued = as_role(
        local,
        {"Effect": "Allow", "Action": "ec2:AssociateAddress", "Resource": "*", "Condition": ours},
        {"Effect": "Allow", "Action": "ec2:AssociateAddress", "Resource": "arn:aws:ec2:*:*:elastic-ip/*"},
    )
    associate = local.client("ec2", issued).associate_address
    error = refusal(associate, AllocationId=address, InstanceId=instance)
    assert error["Code"] == "UnauthorizedOperation"
    assert f"instance/{instance}" in error["Message"]
    ec2.create_tags(Resources=[instance], Tags=[{"Key": "cluster", "Value": "demo"}])
    associate(AllocationId=address, InstanceId=instance)


def test_attached_policies_count_too(local):
    url, arn = local.queue()
    role, issued = as_role(local)
    document = {"Version": "2012-10-17", "Statement": [allow(Action="sqs:SendMessage", Resource=arn)]}
    iam = local.client("iam")
    made = iam.create_policy(PolicyName=name("policy"), PolicyDocument=json.dumps(document))
    iam.attach_role_policy(RoleName=role, PolicyArn=made["Policy"]["Arn"])
    local.client("sqs", issued).send_message(QueueUrl=url, MessageBody="hello")


def test_a_policy_without_a_version_has_no_variables(local):
    """Its version is 2008-10-17, in which `${aws:PrincipalAccount}` is a text like any other."""
    (url, _), (role, issued) = local.queue(), as_role(local)
    queue = url.rpartition("/")[2]
    for version, is_allowed in ({}, False), ({"Version": "2012-10-17"}, True):
        statement = allow(Action="sqs:SendMessage", Resource=f"arn:aws:sqs:{REGION}:${{aws:PrincipalAccount}}:{queue}")
        text = json.dumps({**version, "Statement": statement})
        local.client("iam").put_role_policy(RoleName=role, PolicyName="mine", PolicyDocument=text)
        sqs = local.client("sqs", issued)
        if is_allowed:
            sqs.send_message(QueueUrl=url, MessageBody="hello")
        else:
            assert refusal(sqs.send_message, QueueUrl=url, MessageBody="hello")["Code"].startswith("AccessDenied")
    plain = json.dumps({"Statement": allow(Action="sqs:SendMessage")})
    local.client("iam").put_role_policy(RoleName=role, PolicyName="mine", PolicyDocument=plain)
    sqs.send_message(QueueUrl=url, MessageBody="hello")


def test_the_policies_of_aws_s_own_allow_what_they_say(local):
    (url, _), (role, issued) = local.queue(), as_role(local)
    local.client("iam").attach_role_policy(RoleName=role, PolicyArn="arn:aws:iam::aws:policy/AmazonSQSReadOnlyAccess")
    sqs = local.client("sqs", issued)
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x")["Code"].startswith("AccessDenied")


def test_an_action_without_a_rule_is_judged_as_one_on_all_resources(local):
    _, issued = as_role(local, allow(Action="sqs:*", Resource="*"))
    assert local.client("sqs", issued).list_queues()
    _, issued = as_role(local, allow(Action="sns:*", Resource="*"))
    assert refusal(local.client("sqs", issued).list_queues)["Code"].startswith("AccessDenied")


def test_a_policy_about_single_resources_of_such_an_action_is_not_called_missing(local):
    _, issued = as_role(local, allow(Action="sqs:*", Resource="arn:aws:sqs:*:*:mine"))
    error = refusal(local.client("sqs", issued).list_queues)
    assert error["Code"] == "UnsupportedOperation"
    assert "can't judge sqs:ListQueues on single resources" in error["Message"]


def test_keys_that_were_never_issued_and_wrong_tokens_are_refused(local):
    _, issued = as_role(local, allow())
    stranger = Issued("ASIA" + "X" * 16, "secret", "token", "admin")
    assert refusal(local.client("ec2", stranger).describe_instances)["Code"] == "AuthFailure"
    assert refusal(local.client("sqs", stranger).list_queues)["Code"] == "UnrecognizedClientException"
    without_token = Issued(issued.access_key_id, issued.secret_access_key, "", issued.principal)
    assert refusal(local.client("ec2", without_token).describe_instances)["Code"] == "AuthFailure"


def test_a_wrong_secret_is_refused_in_every_protocol(local):
    _, issued = as_role(local, allow())
    forged = Issued(issued.access_key_id, "another secret", issued.session_token, issued.principal)
    clients = {service: local.fresh_client(service, forged) for service in ("ec2", "sqs", "lambda")}
    assert refusal(clients["ec2"].describe_instances)["Code"] == "SignatureDoesNotMatch"
    assert refusal(clients["sqs"].list_queues)["Code"] == "InvalidSignatureException"
    assert refusal(clients["lambda"].get_function, FunctionName="f")["Code"] == "InvalidSignatureException"


def test_paths_and_queries_are_signed_as_they_were_sent(local):
    api = local.client("lambda")
    assert refusal(api.get_function, FunctionName="a:b", Qualifier="$LATEST")["Code"] == "ResourceNotFoundException"
    local.client("efs").describe_mount_targets(FileSystemId=local.client("efs").create_file_system()["FileSystemId"])


def test_role_credentials_end_after_six_hours(local):
    _, issued = as_role(local, allow())
    sqs = local.client("sqs", issued)
    local.clock.advance(6 * 3600)
    url = local.queue()[0]
    assert refusal(sqs.receive_message, QueueUrl=url)["Code"] == "ExpiredTokenException"


def test_a_role_is_given_only_to_the_service_it_trusts(local):
    role = local.role("ec2.amazonaws.com", allow())
    with pytest.raises(credentials.AssumeRoleError, match="cannot be assumed by lambda"):
        credentials.for_function(local.context, f"arn:aws:iam::{local.context.account}:role/{role}", "f")


@pytest.fixture
def ambiguous(local):
    """Send ambiguous requests, signed by a role that may only describe groups; return (status, text)."""
    _, issued = as_role(local, {"Effect": "Allow", "Action": "autoscaling:Describe*", "Resource": "*"})

    def ask(body: str, path: str = "/", method: str = "POST", service: str = "autoscaling", **headers: str):
        keys = Credentials(issued.access_key_id, issued.secret_access_key, issued.session_token)
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        request = AWSRequest(method, f"{local.context.url_host}{path}", headers, body)
        SigV4Auth(keys, service, REGION).add_auth(request)
        answer = wsgi_clients.answer(endpoint().app, request.prepare())
        return answer.status_code, answer.text

    return ask


DELETE = "AutoScalingGroupName=not-mine&ForceDelete=true&Action=DeleteAutoScalingGroup"


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (f"{DELETE}&Action=DescribeAutoScalingGroups", {}),
        (f"Action=DescribeAutoScalingGroups&{DELETE}", {}),
        ("Action=DescribeAutoScalingGroups", {"path": f"/?{DELETE}", "Content-Type": "text/plain; urlencoded"}),
        (DELETE, {"X-Amz-Target": "AutoScaling.DescribeAutoScalingGroups"}),
        (DELETE, {"X-Amz-Target": "A.DescribeAutoScalingGroups", "Content-Type": "application/x-amz-json-1.1"}),
        ("Action=DescribeAutoScalingGroups", {"path": "/moto-api/reset"}),
        ("Action=DescribeAutoScalingGroups", {"path": "/moto-api/data.json", "method": "GET"}),
        ("Action=GetCallerIdentity", {"path": "/moto-api/reset", "service": "sts"}),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(local, ambiguous, body, more):
    assert ambiguous("Action=DescribeAutoScalingGroups")[0] == 200
    status, text = ambiguous(body, **more)
    assert (status, "AccessDenied" in text) == (403, True)


def test_text_that_looks_like_a_form_stays_text(local):
    url, arn = local.queue()
    _, issued = as_role(local, {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": arn})
    text = "GET /?a=b&Action=PurgeQueue&x={é}"
    local.client("sqs", issued).send_message(QueueUrl=url, MessageBody=text)
    (received,) = local.client("sqs").receive_message(QueueUrl=url)["Messages"]
    assert received["Body"] == text


def test_the_group_of_an_instance_is_the_one_it_is_in(local):
    mine, other = name("mine"), name("other")
    _, subnets = local.network()
    sizes = {"MinSize": 1, "MaxSize": 1, "VPCZoneIdentifier": subnets[0]}
    api = local.client("autoscaling")
    for group in (mine, other):
        template = {"LaunchTemplateId": local.template()}
        api.create_auto_scaling_group(AutoScalingGroupName=group, LaunchTemplate=template, **sizes)
    (instance,) = until(lambda: list(autoscaling.group_named(REGION, other).members))
    resource = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{mine}"
    _, issued = as_role(local, {"Effect": "Allow", "Action": "autoscaling:*", "Resource": resource})
    client = local.client("autoscaling", issued)
    client.meta.events.register(
        "before-call", lambda params, **_: params["body"].update(AutoScalingGroupName=mine), unique_id="confuse"
    )
    error = refusal(
        client.terminate_instance_in_auto_scaling_group, InstanceId=instance, ShouldDecrementDesiredCapacity=False
    )
    assert error["Code"] == "AccessDenied"


def test_an_address_is_checked_under_every_name_it_is_given(local):
    address = local.client("ec2").allocate_address(Domain="vpc")
    one = "arn:aws:ec2:*:*:elastic-ip/eipalloc-of-mine"
    instances = "arn:aws:ec2:*:*:instance/*"
    _, issued = as_role(local, {"Effect": "Allow", "Action": "ec2:AssociateAddress", "Resource": [one, instances]})
    error = refusal(local.client("ec2", issued).associate_address, PublicIp=address["PublicIp"], InstanceId="i-1")
    assert address["AllocationId"] in error["Message"]
    assert refusal(local.client("ec2", issued).associate_address)["Code"] == "UnauthorizedOperation"
