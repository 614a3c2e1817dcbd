"""AWS::EFS, AWS::DynamoDB and AWS::Logs types: file systems, tables and log groups."""

from __future__ import annotations

import json
from typing import Any

from moto.dynamodb.models import dynamodb_backends
from moto.efs.models import efs_backends
from moto.logs.models import logs_backends
from moto.ssm.models import ssm_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.network import truth
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, resource
from localcloud.storage import file_systems


def efs(request: Request) -> Any:
    """Return moto's EFS backend for the stack's account and region."""
    return efs_backends[request.context.account][request.region]


def _delete_file_system(request: Request, physical_id: str) -> None:
    if physical_id in efs(request).file_systems_by_id:
        efs(request).delete_file_system(physical_id)


@resource("AWS::EFS::FileSystem", _delete_file_system, "Arn FileSystemId")
def _file_system(request: Request) -> Made:
    properties = request.properties
    made = efs(request).create_file_system(
        f"{request.stack_id}/{request.logical_id}"[-64:],
        performance_mode=properties.get("PerformanceMode", "generalPurpose"),
        encrypted=truth(properties.get("Encrypted", False)),
        kms_key_id=properties.get("KmsKeyId"),
        throughput_mode=properties.get("ThroughputMode", "bursting"),
        provisioned_throughput_in_mibps=properties.get("ProvisionedThroughputInMibps", 0),
        availability_zone_name=properties.get("AvailabilityZoneName"),
        backup=properties.get("BackupPolicy", {}).get("Status") == "ENABLED",
        tags=request.tag_list("FileSystemTags"),
    )
    if "FileSystemPolicy" in properties:
        made.file_system_policy = json.dumps(properties["FileSystemPolicy"])
    if not request.retained:
        file_systems.discard_at_exit(request.context.state, made.file_system_id)
    return Made(made.file_system_id, {"Arn": made.file_system_arn, "FileSystemId": made.file_system_id})


def _delete_mount_target(request: Request, physical_id: str) -> None:
    if physical_id in efs(request).mount_targets_by_id:
        efs(request).delete_mount_target(physical_id)


@resource("AWS::EFS::MountTarget", _delete_mount_target, "Id IpAddress")
def _mount_target(request: Request) -> Made:
    properties = request.properties
    target = efs(request).create_mount_target(
        properties["FileSystemId"],
        properties["SubnetId"],
        ip_address=properties.get("IpAddress"),
        security_groups=properties.get("SecurityGroups"),
    )
    return Made(target.mount_target_id, {"Id": target.mount_target_id, "IpAddress": target.ip_address})


def tables(request: Request) -> Any:
    """Return moto's DynamoDB backend for the stack's account and region."""
    return dynamodb_backends[request.context.account][request.region]


def _delete_table(request: Request, physical_id: str) -> None:
    if physical_id in tables(request).tables:
        tables(request).delete_table(physical_id)


@resource("AWS::DynamoDB::Table", _delete_table, "Arn StreamArn")
def _table(request: Request) -> Made:
    properties = request.properties
    keys = {key["AttributeName"] for key in properties["KeySchema"]}
    missing = keys - {item["AttributeName"] for item in properties.get("AttributeDefinitions", [])}
    if missing:
        raise ResourceFailed(
            f"One or more parameter values were invalid: Some index key attributes are not defined: {missing}"
        )
    table = tables(request).create_table(
        request.name("TableName", 255),
        schema=properties["KeySchema"],
        throughput=properties.get("ProvisionedThroughput"),
        attr=properties.get("AttributeDefinitions", []),
        global_indexes=properties.get("GlobalSecondaryIndexes", []),
        indexes=properties.get("LocalSecondaryIndexes", []),
        streams=properties.get("StreamSpecification"),
        billing_mode=properties.get("BillingMode", "PROVISIONED"),
        sse_specification=properties.get("SSESpecification"),
        tags=request.tag_list(),
        deletion_protection_enabled=truth(properties.get("DeletionProtectionEnabled", False)),
        warm_throughput=properties.get("WarmThroughput"),
    )
    return Made(table.name, {"Arn": table.table_arn})


def _parameters(request: Request) -> Any:
    return ssm_backends[request.context.account][request.region]


def _delete_parameter(request: Request, physical_id: str) -> None:
    _parameters(request).delete_parameter(physical_id)


@resource("AWS::SSM::Parameter", _delete_parameter, "Arn Type Value")
def _parameter(request: Request) -> Made:
    properties, backend = request.properties, _parameters(request)
    name, value, kind = request.name("Name", 2048), str(properties["Value"]), properties["Type"]
    tags = [{"Key": key, "Value": text} for key, text in {**request.tags, **properties.get("Tags", {})}.items()]
    arn = f"{partitions.arn()}:ssm:{request.region}:{request.context.account}:parameter/{name.lstrip('/')}"
    backend.put_parameter(
        name,
        properties.get("Description", ""),
        value,
        kind,
        properties.get("AllowedPattern", ""),
        None,
        False,
        tags,
        properties.get("DataType", "text"),
        properties.get("Tier", "Standard"),
        properties.get("Policies"),
    )
    return Made(name, {"Arn": arn, "Type": kind, "Value": value})


def logs(request: Request) -> Any:
    """Return moto's backend of CloudWatch Logs for the stack's account and region."""
    return logs_backends[request.context.account][request.region]


def _delete_log_group(request: Request, physical_id: str) -> None:
    if physical_id in logs(request).groups:
        logs(request).delete_log_group(physical_id)


@resource("AWS::Logs::LogGroup", _delete_log_group, "Arn")
def _log_group(request: Request) -> Made:
    name = request.name("LogGroupName", 512)
    group = logs(request).create_log_group(name, request.tag_map())
    if "RetentionInDays" in request.properties:
        with all_or_nothing(_delete_log_group, request, name):
            logs(request).put_retention_policy(name, str(request.properties["RetentionInDays"]))
    return Made(name, {"Arn": f"{group.arn.removesuffix(':*')}:*"})
