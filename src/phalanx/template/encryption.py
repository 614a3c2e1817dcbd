"""A key of the user's, with which all is encrypted that a stack stores; who uses it, and with which rights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from troposphere import AWSObject, Ref, Template
from troposphere.dynamodb import SSESpecification

KEY = "KmsKey"
"""The parameter with the key's ARN, which the stack has only if the spec names a key."""
SENDS = ("kms:Decrypt", "kms:GenerateDataKey")
"""What whoever stores something needs (docs/aws-behaviour.md 6.7)."""
_ARN = "arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-z0-9-]+"
# Type → the properties that name a key.
_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "AWS::DynamoDB::Table": {
        "SSESpecification": SSESpecification(SSEEnabled=True, SSEType="KMS", KMSMasterKeyId=Ref(KEY))
    },
    "AWS::EFS::FileSystem": {"KmsKeyId": Ref(KEY)},
    "AWS::FSx::FileSystem": {"KmsKeyId": Ref(KEY)},
    "AWS::ImageBuilder::Component": {"KmsKeyId": Ref(KEY)},
    "AWS::Lambda::Function": {"KmsKeyArn": Ref(KEY)},
    "AWS::Logs::LogGroup": {"KmsKeyId": Ref(KEY)},
    "AWS::SNS::Topic": {"KmsMasterKeyId": Ref(KEY)},
    "AWS::SQS::Queue": {"KmsMasterKeyId": Ref(KEY)},
}


def ask_for_key(document: Mapping[str, Any]) -> None:
    """Let the console ask for the key, where the document knows its alias only: policies take none (6.7)."""
    asked = document.get("Parameters", {}).get(KEY, {})
    if ":alias/" in asked.get("Default", ""):
        alias = asked.pop("Default")
        asked |= {"AllowedPattern": f"^{_ARN}$", "Description": f"ARN of the key behind {alias}."}


def add_to(template: Template) -> None:
    """Encrypt all that the template's resources store with the parameter's key."""
    for resource in template.resources.values():
        for name, value in _PROPERTIES.get(str(resource.resource_type), {}).items():
            setattr(resource, name, value)
        _parts(resource)


def _parts(resource: AWSObject) -> None:
    """Encrypt what is below a resource's properties."""
    kind, given = resource.resource_type, resource.properties
    if kind == "AWS::EC2::LaunchTemplate":
        disks: Iterable[Any] = given["LaunchTemplateData"].BlockDeviceMappings
    else:
        disks = given.get("BlockDeviceMappings", ()) if kind == "AWS::ImageBuilder::ImageRecipe" else ()
    for disk in disks:
        disk.Ebs.KmsKeyId = Ref(KEY)
    if kind == "AWS::Lambda::Function":
        given["Code"].SourceKMSKeyArn = Ref(KEY)
    if kind == "AWS::SQS::Queue":
        # The two ways exclude each other.
        del given["SqsManagedSseEnabled"]
    if kind == "AWS::ImageBuilder::DistributionConfiguration":
        for one in given["Distributions"]:
            one.AmiDistributionConfiguration.KmsKeyId = Ref(KEY)


def through(*services: str) -> Iterator[dict[str, Any]]:
    """Allow to use the key through services for what is stored with it: queue, table or topic."""
    actions = SENDS if {*services} - {"dynamodb"} else SENDS[:1]
    only = {"StringLike": {"kms:ViaService": [f"{one}.*" for one in services]}}
    yield {"Effect": "Allow", "Action": list(actions), "Resource": Ref(KEY), "Condition": only}
