"""A stack with a role of its own, and all that it stores encrypted with a key of the account's.

CloudFormation acts with that role's rights, and the person may only pass it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from local_clouds import api
from needed_rights import used
from own_vpc import OwnVpc
from terminals import Terminal, a_terminal

from phalanx.plan.facts import KmsKey

pytestmark = pytest.mark.cluster

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/for-stacks"
SPEC = f"name: passed\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\ncloudformation_role: {ROLE}\n"
SPEC += f"kms_key: arn:aws:kms:us-east-1:{ACCOUNT}:alias/clusters\n"
START = "from phalanx.local import endpoint; endpoint.begin(); endpoint.wait()"
TRUST = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
KEYS = {"AWS_ACCESS_KEY_ID": "AccessKeyId", "AWS_SECRET_ACCESS_KEY": "SecretAccessKey"}
KEYS["AWS_SESSION_TOKEN"] = "SessionToken"


ROOT = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "kms:*", "Resource": "*"}


class Account:
    """An account whose administrator has made the role, and whose people have what `phalanx policy` prints."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        environment = {**os.environ, "PHALANX_STATE_DIR": str(terminal.state)}
        subprocess.run([sys.executable, "-c", START], env=environment, check=True, timeout=300)
        # With a VPC, it does not stop after each command that finds no cluster.
        OwnVpc(api(terminal, "ec2"))
        kms = api(terminal, "kms")
        self.key = kms.create_key(Policy=json.dumps({"Version": "2012-10-17", "Statement": [ROOT]}))["KeyMetadata"][
            "Arn"
        ]
        kms.create_alias(AliasName="alias/clusters", TargetKeyId=self.key)
        self.refused = terminal.phalanx("plan", "--json", check=False)
        users = KmsKey(self.key).users("us-east-1", ACCOUNT)
        statements = [statement(who, actions.split()) for who, (actions, _) in users.items()]
        document = {"Version": "2012-10-17", "Statement": [ROOT, *statements]}
        kms.put_key_policy(KeyId=self.key, PolicyName="default", Policy=json.dumps(document))
        self.printed = json.loads(terminal.phalanx("policy").stdout)
        self._make("for-stacks", **json.loads(terminal.phalanx("policy", "--service-role").stdout))

    def _make(self, name: str, AssumeRolePolicyDocument: Any, PolicyDocument: Any) -> str:
        iam = api(self.terminal, "iam")
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(AssumeRolePolicyDocument))["Role"]
        iam.put_role_policy(RoleName=name, PolicyName="phalanx", PolicyDocument=json.dumps(PolicyDocument))
        return role["Arn"]

    def become(self, patch: pytest.MonkeyPatch, name: str, policy: Any) -> None:
        """Go on as a person with this policy."""
        arn = self._make(name, {"Version": "2012-10-17", "Statement": [TRUST]}, policy)
        sts = api(self.terminal, "sts")
        issued = sts.assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
        patch.setenv("AWS_ENDPOINT_URL", sts.meta.endpoint_url)
        for variable, name_of_key in KEYS.items():
            patch.setenv(variable, issued[name_of_key])


def statement(who: str, actions: list[str]) -> dict[str, Any]:
    principal = {"AWS" if who.startswith("arn:") else "Service": who}
    return {"Effect": "Allow", "Principal": principal, "Action": actions, "Resource": "*"}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with a_terminal(SPEC) as terminal:
        yield Account(terminal)


def test_a_key_that_lets_in_nobody_is_refused_with_all_who_are_to_use_it(account):
    error = json.loads(account.refused.stdout)["error"]
    assert error["code"] == "key-unsuited"
    for user in KmsKey(account.key).users("us-east-1", ACCOUNT):
        assert user in error["message"]


def test_whoever_may_not_pass_the_role_is_told_so_at_once(account, monkeypatch):
    few = [one for one in account.printed["Statement"] if one["Sid"] != "PassServiceRole"]
    account.become(monkeypatch, "without", {**account.printed, "Statement": few})
    refused = account.terminal.phalanx("up", check=False)
    assert refused.returncode
    assert f"iam:PassRole on resource: {ROLE}" in refused.stderr
    assert json.loads(account.terminal.phalanx("ls", "--json").stdout) == []


def test_a_role_that_is_not_there_is_named(account):
    lost = account.terminal.beside("lost", SPEC.replace("for-stacks", "forgotten"))
    refused = lost.phalanx("up", "--json", check=False)
    error = json.loads(refused.stdout)["error"]
    assert (error["code"], refused.returncode) == ("role-unusable", 3)
    assert ROLE.replace("for-stacks", "forgotten") in error["message"]


def test_nothing_is_left_of_a_creation_that_failed(account, monkeypatch):
    """Once the rollback has deleted the file system, it has no tag by which the person may delete it."""
    account.become(monkeypatch, "unlucky", account.printed)
    boot = account.terminal.beside("boot", SPEC + "boot: exit 1\n")
    refused = boot.phalanx("up", check=False)
    assert (refused.returncode, "could be deleted" in refused.stderr) == (4, False), refused.stderr


def test_a_cluster_s_life_needs_no_right_of_the_person_s_to_make_anything(account, monkeypatch):
    account.become(monkeypatch, "person", account.printed)
    phalanx = account.terminal.phalanx
    asked = json.loads(phalanx("plan", "--on-aws", "--json").stdout)["on_aws"]
    assert (asked["works"], asked["denied"], asked["refused"]) == (True, [], [])
    phalanx("up")
    try:
        ec2 = api(account.terminal, "ec2")
        volumes = ec2.describe_volumes(Filters=[{"Name": "attachment.status", "Values": ["attached"]}])["Volumes"]
        assert [one.get("KmsKeyId") for one in volumes] == [account.key] * 2
        assert phalanx("run", "--launcher", "mpi", "--", "hostname").stdout
        phalanx("scale", "3")
        file = account.terminal.directory / "phalanx.yaml"
        file.write_text(SPEC.replace("nodes: 2", "nodes: 3") + "tags: {team: vision}\n")
        phalanx("up", "--yes")
        file.write_text(file.read_text().replace("for-stacks", "another"))
        assert "cloudformation_role" in phalanx("up", "--yes", check=False).stderr
    finally:
        file.write_text(SPEC)
        phalanx("down", "--yes")
    state = account.terminal.state / "local"
    person, role = ({one.action for one in used(state, name)} for name in ("person", "for-stacks"))
    made = {"ec2:CreateVpc", "iam:CreateRole", "autoscaling:CreateAutoScalingGroup", "lambda:CreateFunction"}
    assert made <= role and not person & made
    assert "iam:PassRole" in person
