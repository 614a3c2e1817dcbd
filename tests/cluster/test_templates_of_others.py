"""Templates that phalanx did not make, in the shape of public samples, on real nodes: the AWS CLI deploys each with a
change set; it becomes complete, does what it says, and leaves nothing after its deletion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import account
import local_clouds
import pytest
from aws_cli import AwsCli, RefusedByCliError, aws_cli, install
from fleet_fakes import until
from terminals import a_terminal

pytestmark = pytest.mark.cluster

DIRECTORY = Path(__file__).parents[1] / "data/templates"
TEMPLATES = sorted(DIRECTORY.glob("*.*"))
GIVEN = {
    "CodeBucket": "bucket-with-code",
    "KeyName": "mine",
    "NetworkStack": "network",
    "PublicKey": account.PUBLIC_KEY,
}
# What a stack may leave, and the text that lists it.
LISTS = {
    "ec2 describe-vpcs": "Vpcs[?!IsDefault].VpcId",
    "ec2 describe-instances": "Reservations[].Instances[?State.Name!='terminated'][].InstanceId",
    "ec2 describe-launch-templates": "LaunchTemplates[].LaunchTemplateId",
    "ec2 describe-placement-groups": "PlacementGroups[].GroupName",
    "ec2 describe-addresses": "Addresses[].PublicIp",
    "ec2 describe-key-pairs": "KeyPairs[].KeyName",
    "ec2 describe-security-groups": "SecurityGroups[?GroupName!='default'].GroupId",
    "autoscaling describe-auto-scaling-groups": "AutoScalingGroups[].AutoScalingGroupName",
    "iam list-roles": "Roles[].RoleName",
    "iam list-instance-profiles": "InstanceProfiles[].InstanceProfileName",
    "iam list-policies --scope Local": "Policies[].PolicyName",
    "sqs list-queues": "QueueUrls || `[]`",
    "sns list-topics": "Topics[].TopicArn",
    "lambda list-functions": "Functions[].FunctionName",
    "dynamodb list-tables": "TableNames",
    "s3api list-buckets": "Buckets[].Name",
    "efs describe-file-systems": "FileSystems[].FileSystemId",
    "logs describe-log-groups": "logGroups[].logGroupName",
    "ssm describe-parameters": "Parameters[].Name",
    "cloudformation list-exports": "Exports[].Name",
}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCli]:
    """The AWS CLI, in an account with a key pair, a function's code in a bucket, and a network that exports itself."""
    install()
    with a_terminal("") as terminal:
        terminal.phalanx("local", "start")
        with aws_cli(local_clouds.endpoint(terminal), terminal.state) as run:
            code = tmp_path_factory.mktemp("code") / "function.zip"
            code.write_bytes(account.code())
            run("ec2", "import-key-pair", "--key-name", "mine", "--public-key-material", account.PUBLIC_KEY)
            run("s3", "mb", "s3://bucket-with-code")
            run("s3", "cp", str(code), "s3://bucket-with-code/function.zip")
            before = left(run)
            deploy(run, DIRECTORY / "network-for-others.yaml", "network")
            yield run
            delete(run, "network")
            assert left(run) == before


def left(aws: AwsCli) -> dict[str, Any]:
    """Return what is in the account."""
    return {words: aws(*words.split(), "--query", query, "--output", "json") for words, query in LISTS.items()}


def deploy(aws: AwsCli, template: Path, stack: str, **parameters: str) -> None:
    """Deploy a template as its user does; show the stack's history if that fails."""
    summary = aws("cloudformation", "get-template-summary", "--template-body", f"file://{template}")
    asked = {one["ParameterKey"] for one in summary["Parameters"]}
    given = [f"{key}={value}" for key, value in {**GIVEN, **parameters}.items() if key in asked]
    options = ["--capabilities", "CAPABILITY_NAMED_IAM", *(["--parameter-overrides", *given] if given else [])]
    try:
        aws("cloudformation", "deploy", "--template-file", str(template), "--stack-name", stack, *options)
    except RefusedByCliError as error:
        raise AssertionError("\n".join([str(error), *history(aws, stack)])) from error


def history(aws: AwsCli, stack: str) -> list[str]:
    fields = "StackEvents[].[LogicalResourceId, ResourceStatus, ResourceStatusReason]"
    events = aws("cloudformation", "describe-stack-events", "--stack-name", stack, "--query", fields)
    return [" ".join(map(str, event)) for event in reversed(events)]


def delete(aws: AwsCli, stack: str) -> None:
    aws("cloudformation", "delete-stack", "--stack-name", stack)
    aws("cloudformation", "wait", "stack-delete-complete", "--stack-name", stack)


def outputs(aws: AwsCli, stack: str) -> dict[str, str]:
    found = aws("cloudformation", "describe-stacks", "--stack-name", stack)["Stacks"][0]
    return {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", [])}


def evidence(aws: AwsCli, instance: str, last: str) -> list[str]:
    """Return what the user data of an instance says about itself on its console, once `last` is there."""

    def lines() -> list[str]:
        shown = aws("ec2", "get-console-output", "--instance-id", instance)["Output"]
        return [line.removeprefix("evidence: ") for line in shown.splitlines() if line.startswith("evidence: ")]

    return until(lambda: (found := lines()) and last in found[-1] and found, last)


def it_sets_itself_up(aws: AwsCli, stack: str) -> None:
    found = evidence(aws, outputs(aws, stack)["Machine"], '"base"')
    assert found[:3] == [
        "640 robot readers from base64",
        '{"zone": "us-east-1", "sizes": [1, 2]}',
        "hello &amp; welcome|hello & welcome|ada,alan,",
    ]
    assert found[3].startswith("/srv/robot/plain.txt uid=601(robot)")
    assert found[3].endswith("600(readers),599(writers)")
    assert found[4].startswith("green in /srv/robot a b decoded.txt environment ")
    assert found[4].endswith(" cfn-hup.service robot.service")
    assert found[5:7] == ["started", '[ "accounts" ]']
    assert "AccessDenied: Instance i-" in found[7] and found[7].endswith("DescribeStackResource for another")
    assert json.loads(found[8])["base"] == ["accounts"]


def it_waits_for_what_the_machine_reports(aws: AwsCli, stack: str) -> None:
    found = outputs(aws, stack)
    assert json.loads(found["Said"]) == {"first": "ready", found["Machine"]: "Linux"}


def its_machines_are_replaced(aws: AwsCli, stack: str) -> None:
    def machines() -> set[str]:
        found = aws(
            "autoscaling", "describe-auto-scaling-groups", "--query", "AutoScalingGroups[].Instances[].InstanceId"
        )
        return set(found)

    old = machines()
    deploy(aws, DIRECTORY / f"{stack}.yaml", stack, Version="two")
    assert len(machines()) == len(old) == 2
    assert not machines() & old
    shown = "\n".join(history(aws, stack))
    assert shown.count("Waiting on 1 resource signal(s) with a timeout of PT5M") == 2
    for machine in machines():
        assert f"Received SUCCESS signal with UniqueId {machine}" in shown


CHECKS: dict[str, Callable[[AwsCli, str], None]] = {
    "machine-that-sets-itself-up": it_sets_itself_up,
    "machine-with-a-wait": it_waits_for_what_the_machine_reports,
    "group-that-reports": its_machines_are_replaced,
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_it_is_deployed_does_what_it_says_and_is_deleted(aws, template):
    deploy(aws, template, template.stem)
    if template.stem in CHECKS:
        CHECKS[template.stem](aws, template.stem)
    delete(aws, template.stem)


def test_an_instance_needs_no_more_than_an_image_and_a_type(aws, tmp_path):
    """It gets a subnet and the group of the default VPC; its key pair is installed, and served by its metadata."""
    script = tmp_path / "script"
    script.write_text(
        "#!/bin/bash\nmine() { python3 - <<END\nimport urllib.request as http\nat = 'http://169.254.169.254/latest/'\n"
        "ask = http.Request(at + 'api/token', method='PUT', headers={'X-aws-ec2-metadata-token-ttl-seconds': '60'})\n"
        "token = {'X-aws-ec2-metadata-token': http.urlopen(ask).read().decode()}\n"
        "key = at + 'meta-data/public-keys/0/openssh-key'\n"
        "print(http.urlopen(http.Request(key, headers=token)).read().decode())\nEND\n}\n"
        'echo "evidence: $(mine)"\necho "evidence: $(cat /home/*/.ssh/authorized_keys)"\n'
    )
    image = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    options = ["--instance-type", "t3.micro", "--key-name", "mine", "--user-data", f"file://{script}"]
    name = image.removeprefix("resolve:ssm:")
    found = aws("ssm", "get-parameter", "--name", name, "--query", "Parameter.Value", "--output", "text").strip()
    (made,) = aws("ec2", "run-instances", "--image-id", found, *options)["Instances"]
    aws("ec2", "wait", "instance-running", "--instance-ids", made["InstanceId"])
    subnet = aws("ec2", "describe-subnets", "--subnet-ids", made["SubnetId"])["Subnets"][0]
    assert subnet["DefaultForAz"]
    assert [group["GroupName"] for group in made["SecurityGroups"]] == ["default"]
    until(lambda: len(evidence(aws, made["InstanceId"], "")) == 2)
    assert evidence(aws, made["InstanceId"], "") == [account.PUBLIC_KEY, account.PUBLIC_KEY]
    aws("ec2", "terminate-instances", "--instance-ids", made["InstanceId"])
    aws("ec2", "wait", "instance-terminated", "--instance-ids", made["InstanceId"])


@pytest.mark.parametrize(
    "command",
    [
        "ec2 monitor-instances --instance-ids i-0123456789abcdef0",
        "ssm send-command --document-name AWS-RunShellScript --instance-ids i-0123456789abcdef0",
        "rds create-db-instance --db-instance-identifier a --db-instance-class b --engine c",
        "elbv2 create-load-balancer --name a",
        "route53 create-hosted-zone --name a --caller-reference b",
        "cloudformation create-stack-set --stack-set-name a",
    ],
)
def test_what_is_not_served_says_so_by_name(aws, command):
    service, operation = command.split()[:2]
    with pytest.raises(RefusedByCliError, match=r"\(UnsupportedOperation\).*does not serve \w+:") as refused:
        aws(*command.split())
    words = operation.replace("-", "")
    assert words in str(refused.value).lower().replace("-", ""), service


def test_a_template_with_types_that_are_not_served_makes_nothing(aws, tmp_path):
    kinds = ("AWS::RDS::DBInstance", "AWS::ElasticLoadBalancingV2::LoadBalancer")
    resources = {f"Other{number}": {"Type": kind, "Properties": {}} for number, kind in enumerate(kinds)}
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}, **resources}}))
    named = r"does not support the resource types: \[AWS::ElasticLoad\S+, AWS::RDS::DBInstance\]"
    with pytest.raises(RefusedByCliError, match=named):
        aws("cloudformation", "deploy", "--template-file", str(template), "--stack-name", "unserved")
    with pytest.raises(RefusedByCliError, match="does not exist"):
        aws("cloudformation", "describe-stacks", "--stack-name", "unserved")


def test_there_are_more_than_thirty():
    assert len(TEMPLATES) > 30
    assert set(CHECKS) <= {template.stem for template in TEMPLATES}
