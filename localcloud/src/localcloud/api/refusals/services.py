"""Lambda, EFS, DynamoDB, SNS, SQS, CloudWatch and its Logs, S3 and Systems Manager: what moto takes and AWS refuses."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from typing import Any

from moto.awslambda.exceptions import InvalidParameterValueException
from moto.awslambda.models import LambdaBackend
from moto.cloudwatch.models import CloudWatchBackend
from moto.dynamodb.exceptions import MockValidationException
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.responses import DynamoHandler
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.efs.exceptions import BadRequest, FileSystemNotFound
from moto.efs.models import EFSBackend
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.models import LogGroup, LogsBackend
from moto.s3.exceptions import InvalidBucketName, InvalidLocationConstraintException, NoSuchUpload
from moto.s3.models import S3Backend
from moto.sns.exceptions import SNSInvalidParameter, SNSNotFoundError
from moto.sns.models import SNSBackend
from moto.sqs.exceptions import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    MissingParameter,
    QueueAlreadyExists,
)
from moto.sqs.models import Queue, SQSBackend
from moto.sqs.responses import SQSResponse
from moto.ssm.exceptions import ValidationException
from moto.ssm.responses import SimpleSystemManagerResponse

from localcloud.api.refusals.before import Given, before
from localcloud.iam import credentials

# Lambda creates no more functions with these (its page of runtimes, "Deprecated runtimes").
_ENDED = ("python2.7", "python3.6", "python3.7", "python3.8")
_LONGEST_S = 900
_NAME_LEAST, _NAME_MOST = 3, 255
_PROTOCOLS = ("application", "email", "email-json", "firehose", "http", "https", "lambda", "sms", "sqs")
_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288)
_MORE_RETENTION_DAYS = (3653,)
# CloudWatch Logs API reference, PutLogEvents.
_BATCH_MOST_BYTES, _EVENT_MORE_BYTES = 1_048_576, 26
_COUNTS_SINGLY = 150


@before(LambdaBackend, "create_function")
def _a_runtime_has_ended(_backend: Any, given: Given) -> None:
    runtime = given.spec.get("Runtime")
    if runtime in _ENDED:
        raise InvalidParameterValueException(
            f"The runtime parameter of {runtime} is no longer supported for creating or updating AWS Lambda functions."
        )


@before(LambdaBackend, "create_function")
def _a_function_is_too_slow_or_has_no_code(_backend: Any, given: Given) -> None:
    if int(given.spec.get("Timeout") or 1) > _LONGEST_S:
        text = f"Value '{given.spec['Timeout']}' at 'timeout' failed to satisfy constraint"
        raise InvalidParameterValueException(f"{text}: Member must have value less than or equal to {_LONGEST_S}")
    archive = given.spec.get("Code", {}).get("ZipFile")
    if archive is not None and not zipfile.is_zipfile(io.BytesIO(_raw(archive))):
        raise InvalidParameterValueException(
            "Could not unzip uploaded file. Please check your file, then try to upload again."
        )


def _raw(archive: Any) -> bytes:
    """Return the bytes of an archive that a request carries in base64."""
    try:
        return base64.b64decode(archive)
    except ValueError:
        return b""


@before(LambdaBackend, "create_function")
def _a_role_is_not_for_functions(backend: Any, given: Given) -> None:
    role = credentials.role_of(backend.account_id, str(given.spec.get("Role", "")))
    if role is None or not credentials.trusts(role, "lambda.amazonaws.com"):
        raise InvalidParameterValueException("The role defined for the function cannot be assumed by Lambda.")


@before(DynamoDBBackend, "create_table")
def _a_name_is_too_short(_backend: Any, given: Given) -> None:
    if not _NAME_LEAST <= len(given.name) <= _NAME_MOST:
        raise MockValidationException(
            f"TableName must be at least {_NAME_LEAST} characters long and at most {_NAME_MOST} characters long"
        )


@before(DynamoHandler, "get_item", "put_item", "update_item", "delete_item")
def _a_key_has_another_type(handler: Any, _given: Given) -> None:
    table = handler.dynamodb_backend.tables.get(handler.body.get("TableName"))
    key = handler.body.get("Key") or {}
    for attribute in table.attr if table else ():
        kinds = key.get(attribute["AttributeName"])
        if isinstance(kinds, dict) and attribute["AttributeType"] not in kinds:
            raise MockValidationException("The provided key element does not match the schema")


@before(EFSBackend, "create_file_system")
def _a_throughput_is_missing(_backend: Any, given: Given) -> None:
    if given.throughput_mode == "provisioned" and not given.provisioned_throughput_in_mibps:
        raise BadRequest("Must specify provisioned throughput when throughput mode is provisioned.")


@before(EFSBackend, "create_mount_target")
def _a_file_system_is_unknown(backend: Any, given: Given) -> None:
    if given.file_system_id not in backend.file_systems_by_id:
        raise FileSystemNotFound(given.file_system_id)


@before(LogsBackend, "put_retention_policy")
def _a_retention_is_not_offered(_backend: Any, given: Given) -> None:
    days = int(given.retention_in_days)
    if days not in (*_RETENTION_DAYS, *_MORE_RETENTION_DAYS):
        text = f"1 validation error detected: Value '{days}' at 'retentionInDays' failed to satisfy constraint"
        raise InvalidParameterException(text)


@before(LogGroup, "get_log_events")
def _a_stream_is_unknown(group: Any, given: Given) -> None:
    """Name the stream; moto says that the group is missing."""
    if given.log_stream_name not in group.streams:
        raise ResourceNotFoundException(msg="The specified log stream does not exist.")


@before(LogsBackend, "put_log_events")
def _a_batch_is_too_large(_backend: Any, given: Given) -> None:
    size = sum(len(event["message"].encode()) + _EVENT_MORE_BYTES for event in given.log_events)
    if size > _BATCH_MOST_BYTES:
        raise InvalidParameterException(f"Upload too large: {size} bytes exceeds limit of {_BATCH_MOST_BYTES}")


@before(CloudWatchBackend, "put_metric_data")
def _a_value_counts_often(_backend: Any, given: Given) -> None:
    """Keep one statistic, which gives the same answers, where moto would keep a value as often as it counts."""
    for datum in given.metric_data:
        values, counts = datum.get("Values") or [], datum.get("Counts") or []
        if len(values) == len(counts) and sum(counts) > _COUNTS_SINGLY:
            del datum["Values"], datum["Counts"]
            datum["StatisticValues"] = {
                "Sum": sum(value * count for value, count in zip(values, counts, strict=True)),
                "Minimum": min(values),
                "Maximum": max(values),
                "SampleCount": sum(counts),
            }


@before(S3Backend, "create_bucket")
def _a_bucket_has_a_bad_name(_backend: Any, given: Given) -> None:
    """Refuse what S3's page "General purpose bucket naming rules" forbids."""
    if not _BUCKET.fullmatch(given.bucket_name) or _NOT_A_BUCKET.search(given.bucket_name):
        raise InvalidBucketName


@before(S3Backend, "create_bucket")
def _a_bucket_is_nowhere(_backend: Any, given: Given) -> None:
    if given.region_name != "EU" and given.region_name not in RegionsAndZonesBackend.zones:
        raise InvalidLocationConstraintException


_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NOT_A_BUCKET = re.compile(
    r"\.\.|^(\d+\.){3}\d+$|^(xn--|sthree-|amzn-s3-demo-)|(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$"
)


@before(S3Backend, "complete_multipart_upload")
def _an_upload_is_unknown(backend: Any, given: Given) -> None:
    if given.multipart_id not in backend.get_bucket(given.bucket_name).multiparts:
        raise NoSuchUpload(upload_id=given.multipart_id)


@before(SNSBackend, "publish")
def _a_message_is_empty(_backend: Any, given: Given) -> None:
    if not given.message:
        raise SNSInvalidParameter("Invalid parameter: Empty message")


@before(SNSBackend, "publish")
def _a_topic_is_unknown(backend: Any, given: Given) -> None:
    if given.arn and ":endpoint/" not in given.arn and given.arn not in backend.topics:
        raise SNSNotFoundError("Topic does not exist")


@before(SNSBackend, "subscribe")
def _a_protocol_is_unknown(_backend: Any, given: Given) -> None:
    if given.protocol not in _PROTOCOLS:
        text = f"Invalid parameter: Amazon SNS does not support this protocol string: {given.protocol}"
        raise SNSInvalidParameter(text)


@before(SQSBackend, "send_message")
def _a_body_is_missing(_backend: Any, given: Given) -> None:
    if not given.message_body:
        raise MissingParameter("MessageBody")


@before(SQSBackend, "create_queue")
def _a_queue_has_other_attributes(backend: Any, given: Given) -> None:
    queue = backend.queues.get(given.name)
    attributes = queue.attributes if queue else {}
    for name, value in (given.kwargs or {}).items():
        if name in attributes and isinstance(value, (str, int)) and str(attributes[name]).lower() != str(value).lower():
            text = "A queue already exists with the same name and a different value for attribute"
            raise QueueAlreadyExists(f"{text} {name}")


@before(SQSBackend, "create_queue")
def _an_attribute_is_unknown(_backend: Any, given: Given) -> None:
    for name in given.kwargs or {}:
        if name not in (*Queue.BASE_ATTRIBUTES, *_QUEUE_ATTRIBUTES):
            raise InvalidAttributeName(name)


# SQS API reference, CreateQueue and SetQueueAttributes; ListQueues.
_RANGES = {
    "DelaySeconds": (0, 900),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
}
_MOST_QUEUES = 1_000


@before(SQSBackend, "create_queue", "set_queue_attributes")
def _an_attribute_is_out_of_its_range(_backend: Any, given: Given) -> None:
    for name, value in (given.kwargs or given.attributes or {}).items():
        if name in _RANGES:
            least, most = _RANGES[name]
            if not str(value).isdecimal() or not least <= int(value) <= most:
                raise InvalidAttributeValue(name)


@before(SQSBackend, "create_queue")
def _a_name_is_of_another_kind_of_queue(_backend: Any, given: Given) -> None:
    if given.name.endswith(".fifo") and str((given.kwargs or {}).get("FifoQueue", "")).lower() != "true":
        text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        raise InvalidParameterValue(text)


@before(SQSResponse, "list_queues")
def _a_page_is_too_large(response: Any, _given: Given) -> None:
    if not 1 <= int(response._get_param("MaxResults") or 1) <= _MOST_QUEUES:
        text = f"Value {response._get_param('MaxResults')} for parameter MaxResults is invalid."
        raise InvalidParameterValue(f"{text} Reason: Must be between 1 and {_MOST_QUEUES}, if provided.")


_QUEUE_ATTRIBUTES = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "Policy",
    "ReceiveMessageWaitTimeSeconds",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
)


@before(SimpleSystemManagerResponse, "get_parameters_by_path")
def _a_path_has_no_root(response: Any, _given: Given) -> None:
    path = str(response._get_param("Path"))
    if not path.startswith("/"):
        raise ValidationException(
            "The parameter doesn't meet the parameter name requirements. The parameter name must begin with a forward"
            ' slash "/".'
        )
