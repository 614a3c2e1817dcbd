"""The stack's parameters: those that a person can set in the console, with the plan's defaults, and the agent's."""

from __future__ import annotations

from typing import Any

from troposphere import Equals, Not, Parameter, Ref, Template

from phalanx.node.workers_group import workers_of
from phalanx.plan.machine_images import is_ami, is_of_recipe
from phalanx.plan.plan import Plan
from phalanx.spec.makers import maker_of
from phalanx.spec.spec_checks import SHARED
from phalanx.spec.spec_limits import FILE_SYSTEM, LONGEST_IDLE_S, LONGEST_NODE_TIMEOUT_S, MOST_NODES
from phalanx.template import encryption, storage, userdata
from phalanx.template.access import add_partitions
from phalanx.template.network import head_subnet

# Text that ends up in user data must not contain characters that could end a line or a quotation there.
_PUBLIC_KEY = (
    r"^$|^(ssh-ed25519|ssh-rsa|ecdsa-sha2-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/=]+( [A-Za-z0-9@._ +:/-]*)?$"
)
_MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_BLOCK = r"(\d{1,3}\.){3}\d{1,3}/\d{1,2}"

_GROUPS = (
    ("Cluster", ("Workers", "MinNodes", "InstanceType", "Image", "RootDevice", "Zone")),
    ("Network", ("Vpc", "PublicSubnet", "HeadSubnet", "PrivateSubnet", "Networks")),
    ("Access", ("SshLocation", "KeyPair", "SshPublicKey", "Boundary", "KmsKey")),
    ("Jobs and boot", ("Slots", "SharedDirectory", "FileSystemId", "NodeTimeout")),
    ("Money", ("LeaseEnd", "Idle", "Mail")),
)

_LABELS = {
    "Workers": "Workers",
    "MinNodes": "Fewest nodes",
    "InstanceType": "Instance type",
    "Image": "Machine image",
    "RootDevice": "Root device of the image",
    "Zone": "Availability Zone",
    "Vpc": "VPC",
    "PublicSubnet": "Subnet of the head",
    "HeadSubnet": "Subnet of the head",
    "PrivateSubnet": "Subnet of the workers",
    "Networks": "Address blocks of the subnets",
    "SshLocation": "ssh from",
    "KeyPair": "EC2 key pair",
    "SshPublicKey": "Your public ssh key",
    "Boundary": "Permissions boundary",
    "KmsKey": "KMS key",
    "Slots": "Processes per node",
    "SharedDirectory": "Shared directory",
    "FileSystemId": "Your own EFS file system",
    "NodeTimeout": "Time for a node to answer (s)",
    "LeaseEnd": "End of the lease",
    "Idle": "Unused time (s)",
    "Mail": "Mail address",
}


def add_to(template: Template, plan: Plan) -> None:
    add_common_to(template, plan)
    for name, settings in (_root_device(plan) | _money(plan)).items():
        template.add_parameter(Parameter(name, **settings))
    template.add_condition("HasLease", Not(Equals(Ref("LeaseEnd"), "")))
    template.add_condition("HasMail", Not(Equals(Ref("Mail"), "")))


def add_common_to(template: Template, plan: Plan) -> None:
    """Add the parameters and conditions of every cluster, whichever service makes its machines."""
    of_people = _sizes(plan) | _places(plan) | _network(plan) | _access(plan) | _jobs(plan)
    of_agent = {name: {"Type": "String", "Default": text} for name, text in agent(plan).items()}
    for name, settings in (of_people | of_agent).items():
        template.add_parameter(Parameter(name, **settings))
    if plan.uses_efs:
        template.add_condition("MakesFileSystem", Equals(Ref("FileSystemId"), ""))
    template.add_condition("HasKeyPair", Not(Equals(Ref("KeyPair"), "")))
    if not plan.spec.is_private:
        template.add_condition("InUsEast1", Equals(Ref("AWS::Region"), "us-east-1"))
    add_partitions(template)


def metadata(template: Template, plan: Plan) -> dict[str, Any]:
    """Group and label the parameters for the console.

    cfn-lint would warn of parameters that no resource uses: the head reads the agent's from the stack itself.
    """
    declared = template.parameters.keys()
    labelled = [(label, [name for name in names if name in declared]) for label, names in _GROUPS]
    labelled += [("Do not change", list(agent(plan)))]
    groups = [{"Label": {"default": label}, "Parameters": names} for label, names in labelled if names]
    return {
        "AWS::CloudFormation::Interface": {
            "ParameterGroups": groups,
            "ParameterLabels": {name: {"default": label} for name, label in _LABELS.items() if name in declared},
        },
        "cfn-lint": {"config": {"ignore_checks": ["W2001"]}},
    }


def _sizes(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "Workers": _number(workers_of(plan.spec.nodes), 0, workers_of(MOST_NODES), "Workers beside the head."),
        "MinNodes": _number(
            plan.spec.min, 1, MOST_NODES, "With fewer nodes, the head included, the stack is rolled back."
        ),
        "InstanceType": _text(
            plan.spec.type,
            "Of the nodes that train; the image must be for its processor.",
            r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$",
        ),
    }


def _places(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "Image": _image(plan.image_parameter),
    }


def _root_device(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "RootDevice": _text(
            plan.root_device,
            "As the image names it: Ubuntu /dev/sda1, Amazon Linux /dev/xvda.",
            "^/dev/[a-z0-9]+$",
        ),
    }


def _network(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the zone of a new VPC, or the VPC that exists, with its subnets."""
    vpc = plan.facts.vpc
    if vpc is None:
        what = "All nodes are here. It must offer the instance type."
        return {"Zone": _existing("AvailabilityZone::Name", plan.zone, what)}
    return {
        "Vpc": _existing("VPC::Id", vpc.vpc, "With DNS host names."),
        **_subnet_of_head(plan, vpc.head.subnet_id),
        "PrivateSubnet": _existing("Subnet::Id", vpc.workers.subnet_id, "In the zone of the head's subnet."),
        "Networks": _asked(
            _text(",".join(vpc.networks), "No node has an address elsewhere.", rf"^{_BLOCK}(,{_BLOCK})*$")
        ),
    }


def _subnet_of_head(plan: Plan, subnet: str) -> dict[str, dict[str, Any]]:
    """Return the head's subnet; nothing if all nodes of a private cluster are in one."""
    name = head_subnet(plan)
    if name == "PrivateSubnet":
        return {}
    way = "Without public addresses." if plan.spec.is_private else "With a route to an internet gateway."
    return {name: _existing("Subnet::Id", subnet, way)}


def _existing(kind: str, default: str, description: str) -> dict[str, Any]:
    return _asked({"Type": f"AWS::EC2::{kind}", "Default": default, "Description": description})


def _asked(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter, without a default if that is not known: the console then asks for its value."""
    return {key: value for key, value in settings.items() if key != "Default" or value}


def _image(image: str) -> dict[str, Any]:
    needs = "with Linux, Python 3.9+, sshd and cloud-init."
    kind, what = "AWS::EC2::Image::Id", "AMI"
    if is_of_recipe(image):
        image = ""  # nobody has looked it up
    elif not is_ami(image):
        kind, what = f"AWS::SSM::Parameter::Value<{kind}>", f"SSM parameter of an {what}"
    return _asked({"Type": kind, "Default": image, "Description": f"{what} {needs}"})


def _access(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        **({} if plan.spec.is_private else {"SshLocation": _source(plan)}),
        "KeyPair": _text(plan.spec.key_pair or "", "EC2 key pair for the image's own user. May be empty."),
        "SshPublicKey": {
            **_text(
                "",
                "Such as ssh-ed25519 AAAA me, for phalanx and ubuntu or ec2-user. May be empty.",
                _PUBLIC_KEY,
            ),
            "MaxLength": 800,
        },
        **_boundary(plan),
        **_key(plan),
    }


def _boundary(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the boundary of all roles as a parameter, which is shorter than its ARN in each of them."""
    given = plan.spec.permissions_boundary
    return {"Boundary": _text(given, "ARN of a policy that bounds all roles.")} if given else {}


def _key(plan: Plan) -> dict[str, dict[str, Any]]:
    given = plan.facts.key.arn if plan.facts.key else plan.spec.kms_key
    return {encryption.KEY: _text(given, "ARN of a key, and no alias, for all that is stored.")} if given else {}


def _source(plan: Plan) -> dict[str, Any]:
    what = "Such as 203.0.113.7/32; 0.0.0.0/0 is the whole internet."
    return _asked(_text(plan.ssh_networks[0], what, f"^{_BLOCK}$"))


def _jobs(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "Slots": _number(
            plan.spec.slots or 0,
            0,
            1024,
            "Processes per node. 0: one per GPU, or else per vCPU.",
        ),
        "SharedDirectory": {
            **_text(
                plan.spec.shared,
                "Where nodes mount the file system: below /efs, /fsx, /data, /shared, /work or /mnt, and the like.",
                f"^{SHARED}$",
            ),
            "MaxLength": 128,
        },
        **(_of_efs(plan) if plan.uses_efs else {}),
        **(_of_lustre() if storage.is_unknown_lustre(plan) else {}),
        "NodeTimeout": _number(
            plan.spec.node_timeout_s,
            1,
            LONGEST_NODE_TIMEOUT_S,
            "A node that has not answered by then counts as missing.",
        ),
    }


def _of_efs(plan: Plan) -> dict[str, dict[str, Any]]:
    meaning, pattern = "A file system without mount targets. Empty: create one.", f"^$|^{FILE_SYSTEM}$"
    if plan.mount_target:
        meaning, pattern = "Its mount target in the zone is used.", f"^{plan.spec.file_system}$"
    return {"FileSystemId": _text(plan.spec.file_system or "", meaning, pattern)}


def _of_lustre() -> dict[str, dict[str, Any]]:
    what = "As `mount -t lustre` takes it: fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/abcdef12."
    return {storage.LUSTRE_PLACE: _asked(_text("", what, r"^[a-z0-9.-]+@tcp:/[a-z0-9]+$"))}


def _money(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "LeaseEnd": _text(
            "", "All nodes stop then, such as 2027-01-31T18:00:00Z (UTC). Empty: never.", f"^$|^{_MOMENT}$"
        ),
        "Idle": _number(
            plan.limits.idle_s, 0, LONGEST_IDLE_S, "All nodes stop when nobody has used one for this many s. 0: never."
        ),
        "Mail": _text(
            plan.spec.mail or "", "Gets a mail before the nodes stop. May be empty.", r"^$|^[^@\s]+@[^@\s]+$"
        ),
    }


def agent(plan: Plan) -> dict[str, str]:
    """Return the parameters that carry the agent and the boot script. On EMR, a bootstrap action brings stage 1."""
    first = userdata.first_parameters() if maker_of(plan.spec.cloud).has_user_data else {}
    return {**first, **userdata.parameters(plan.spec.boot)}


def _number(default: int, least: int, most: int, description: str) -> dict[str, Any]:
    return {"Type": "Number", "Default": default, "MinValue": least, "MaxValue": most, "Description": description}


def _text(default: str, description: str, pattern: str = "") -> dict[str, Any]:
    allowed = {"AllowedPattern": pattern} if pattern else {}
    return {"Type": "String", "Default": default, "Description": description, **allowed}
