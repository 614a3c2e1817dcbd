"""The stack's outputs, for people and for tools."""

from __future__ import annotations

from typing import Any

from troposphere import GetAtt, If, Join, Output, Ref, Select, Split, Sub, Template

from phalanx.plan.plan import Plan
from phalanx.template import storage
from phalanx.template.naming import FILE_SYSTEM
from phalanx.template.rendezvous import condition_name
from phalanx.template.userdata import agent_version


def add_to(template: Template, plan: Plan) -> None:
    for name, (value, description) in for_people(plan).items():
        template.add_output(Output(name, Value=value, Description=description))
    for name, value in _for_tools(plan).items():
        template.add_output(Output(name, Value=value))


def for_people(plan: Plan, login: str = "ubuntu@… or ec2-user@…, by the image") -> dict[str, tuple[Any, str]]:
    outcome = (_text_of(condition_name(plan)), "Nodes asked for and launched, and why any is missing")
    if plan.spec.is_private:
        return {"Outcome": outcome}
    return {
        "ClusterMasterPublicDNS": (_public_name(), f"Log in here: ssh {login}"),
        "Login": (Sub("ssh phalanx@${HeadAddress}"), "With the key of SshPublicKey"),
        "HeadAddress": (Ref("HeadAddress"), "Public address of the head, also of a later one"),
        "Outcome": outcome,
    }


def _for_tools(plan: Plan) -> dict[str, Any]:
    """Return the outputs that need no description."""
    removal = {"DownAfter": str(plan.spec.down_after_s)} if plan.spec.down_after_s else {}
    return common(plan) | {name: Ref(name) for name in ("HeadGroup", "WorkersGroup", "FleetTopic")} | removal


def common(plan: Plan) -> dict[str, Any]:
    """Return the outputs that tools read of every cluster."""
    made = ("RosterTable", "HeadQueue", "JobRole", "LogGroup")
    groups = ["NodeSecurityGroup", *([] if plan.spec.is_private else ["HeadSecurityGroup"])]
    groups += ["EndpointSecurityGroup"] if plan.endpoints else []
    more: dict[str, Any] = {"AgentVersion": agent_version()}
    if plan.uses_efs:
        groups += [] if plan.mount_target else ["StorageSecurityGroup"]
        more["SharedFileSystem"] = FILE_SYSTEM
    if plan.uses_lustre:
        groups += ["StorageSecurityGroup"] if plan.makes_lustre else []
        more["SharedFileSystem"] = Ref("FileSystem") if plan.makes_lustre else plan.spec.file_system
        more["Lustre"] = storage.lustre_place(plan)
    return {name: Ref(name) for name in made} | {"SecurityGroups": Join(",", [Ref(one) for one in groups]), **more}


def _public_name() -> Sub:
    """Build the public name: ec2-1-2-3-4.compute-1.amazonaws.com, or ec2-1-2-3-4.REGION.compute.SUFFIX."""
    return Sub(
        "ec2-${Dashed}.${Domain}.${AWS::URLSuffix}",
        Dashed=Join("-", Split(".", Ref("HeadAddress"))),
        Domain=If("InUsEast1", "compute-1", Sub("${AWS::Region}.compute")),
    )


def _text_of(condition: str) -> Select:
    """Return the signal's data in a way that cfn-lint accepts: it is text (aws-behaviour 1.11), not an object."""
    return Select("0", [GetAtt(condition, "Data")])
