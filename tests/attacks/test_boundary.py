"""Whoever runs phalanx with exactly what `phalanx policy` prints can't undo the permissions boundary of the file."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from stack_fakes import Stacks, stacks

ACCOUNT = "123456789012"
BOUNDARY, OTHER = (f"arn:aws:iam::{ACCOUNT}:policy/{name}" for name in ("attacked-boundary", "another-boundary"))
ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
EC2 = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
HOLDER = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
NUMBERS = itertools.count(1)
CLUSTER = f"name: demo\nnodes: 2\npermissions_boundary: {BOUNDARY}\n"


def trust(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def made(create: Any, **arguments: Any) -> None:
    """Make something, unless it is there: moto keeps what it has for as long as the process lives."""
    with contextlib.suppress(ClientError):
        create(**arguments)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """An account with a boundary, a role of the cluster `demo` that has it, and one of an administrator's."""
    with stacks(tmp_path_factory.mktemp("state")) as running:
        iam = running.client("iam")
        for arn in (BOUNDARY, OTHER):
            made(iam.create_policy, PolicyName=arn.rpartition("/")[2], PolicyDocument=json.dumps(EVERYTHING))
        for name, bound in (("demo-BoundRole", {"PermissionsBoundary": BOUNDARY}), ("boundary-admin", {})):
            made(iam.create_role, RoleName=name, AssumeRolePolicyDocument=trust(EC2), **bound)
        made(iam.create_instance_profile, InstanceProfileName="demo-profile")
        yield running


@pytest.fixture
def holder(cloud, phalanx):
    """Return clients of someone with exactly the policy that phalanx prints for the file."""
    Path("phalanx.yaml").write_text(CLUSTER)
    assert phalanx("policy", "--offline") == 0
    iam, name = cloud.client("iam"), f"holder-{next(NUMBERS)}"
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust(HOLDER))["Role"]["Arn"]
    for number, statement in enumerate(json.loads(phalanx.out)["Statement"]):
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_role_policy(RoleName=name, PolicyName=f"p{number}", PolicyDocument=document)
    keys = cloud.client("sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    return lambda service: cloud.client_of(service, keys)


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    return error.value.response["Error"]["Code"]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("create_role", {"RoleName": "demo-free", "AssumeRolePolicyDocument": trust(EC2)}),
        (
            "create_role",
            {"RoleName": "demo-free", "AssumeRolePolicyDocument": trust(EC2), "PermissionsBoundary": OTHER},
        ),
        ("delete_role_permissions_boundary", {"RoleName": "demo-BoundRole"}),
        ("put_role_permissions_boundary", {"RoleName": "demo-BoundRole", "PermissionsBoundary": OTHER}),
        ("attach_role_policy", {"RoleName": "demo-BoundRole", "PolicyArn": ADMIN}),
        ("add_role_to_instance_profile", {"RoleName": "boundary-admin", "InstanceProfileName": "demo-profile"}),
    ],
)
def test_no_call_to_iam_undoes_the_boundary(cloud, holder, operation, arguments):
    assert refused(getattr(holder("iam"), operation), **arguments) == "AccessDenied"
    role = cloud.client("iam").get_role(RoleName="demo-BoundRole")["Role"]
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY


def test_a_role_of_the_cluster_that_somebody_made_without_the_boundary_gets_no_rights(cloud, holder):
    made(cloud.client("iam").create_role, RoleName="demo-unbound", AssumeRolePolicyDocument=trust(EC2))
    given = {"RoleName": "demo-unbound", "PolicyName": "all", "PolicyDocument": json.dumps(EVERYTHING)}
    assert refused(holder("iam").put_role_policy, **given) == "AccessDenied"
    holder("iam").put_role_policy(**{**given, "RoleName": "demo-BoundRole"})


@pytest.mark.parametrize("boundary", [{}, {"PermissionsBoundary": OTHER}], ids=["none", "another"])
def test_a_stack_makes_no_role_without_the_boundary(cloud, holder, boundary):
    role = {"AssumeRolePolicyDocument": json.loads(trust(EC2)), **boundary}
    body = json.dumps({"Resources": {"Role": {"Type": "AWS::IAM::Role", "Properties": role}}})
    stack = holder("cloudformation").create_stack(StackName="demo", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])[
        "StackId"
    ]
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "is not authorized to perform: iam:" in cloud.reason(stack, "Role", "CREATE_FAILED")
    cloud.cloudformation.delete_stack(StackName=stack)


def test_a_policy_of_a_stack_is_judged_on_each_of_its_roles(cloud, holder):
    made(cloud.client("iam").create_role, RoleName="demo-second", AssumeRolePolicyDocument=trust(EC2))
    policy = {"PolicyName": "all", "PolicyDocument": EVERYTHING, "Roles": ["demo-BoundRole", "demo-second"]}
    body = json.dumps({"Resources": {"All": {"Type": "AWS::IAM::Policy", "Properties": policy}}})
    stack = holder("cloudformation").create_stack(StackName="demo", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])[
        "StackId"
    ]
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert cloud.client("iam").list_role_policies(RoleName="demo-second")["PolicyNames"] == []
    cloud.cloudformation.delete_stack(StackName=stack)


def test_a_function_gets_no_role_but_the_cluster_s(holder):
    code = {"ZipFile": b"x"}
    given = {"FunctionName": "demo-f", "Runtime": "python3.12", "Handler": "a.b", "Code": code}
    assert refused(holder("lambda").create_function, **given, Role=f"arn:aws:iam::{ACCOUNT}:role/boundary-admin") in (
        "AccessDenied",
        "AccessDeniedException",
    )
