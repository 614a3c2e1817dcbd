"""CloudFormation's API: parses requests as botocore sends them, and answers as its service model describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from botocore import xform_name
from moto.core.errors import COMMON_ERROR_CODES
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse, EmptyResult
from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.cloudformation import validations
from localcloud.cloudformation.change_sets import IN_REVIEW, ChangeSet, described_change, described_change_set
from localcloud.cloudformation.engine import Engine, StackRequest
from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.model import Event, Resource, Stack
from localcloud.cloudformation.refusals import refuse_body, required_capabilities
from localcloud.cloudformation.signals import FAILURE, SUCCESS, Signal
from localcloud.cloudformation.template import Template
from localcloud.context import Context
from localcloud.iam import credentials

PAGE = 100
ON_FAILURE = ("ROLLBACK", "DELETE", "DO_NOTHING")
WRONG_STATUS = (
    "1 validation error detected: Value '{}' at 'status' failed to satisfy constraint: Member must satisfy enum value"
    " set: [SUCCESS, FAILURE]"
)
UNNAMED = "1 validation error detected: Value null at '{}' failed to satisfy constraint: Member must not be null"

# Errors that all services have are in no service's model; of those that moto does not know it warns.
COMMON_ERROR_CODES.append("AccessDenied")
_AWS_DOMAIN = "amazonaws.com"


class _Refusal(ServiceException):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.code = refused.code


class CloudFormationApi(BaseResponse):
    """One API request: moto parses it and writes the answer. Each served action is a method."""

    def __init__(self, context: Context, engine: Engine) -> None:
        super().__init__(service_name="cloudformation")
        self.automated_parameter_parsing = True
        self._context = context
        self._engine = engine

    def call_action(self) -> Any:
        try:
            result = getattr(self, xform_name(self._get_action()))()
        except Refused as refused:
            result = ActionResult(_Refusal(refused))
        return self.serialized(result)

    def _required(self, name: str) -> str:
        value = self._get_param(name)
        if not value:
            raise Refused(UNNAMED.format(name[0].lower() + name[1:]))
        return str(value)

    def _stack(self) -> Stack:
        return self._engine.find(self._required("StackName"), self.region)

    def create_stack(self) -> ActionResult:
        return ActionResult({"StackId": self._engine.create(self._request()).stack_id})

    def _request(self) -> StackRequest:
        parameters, tags = self._get_param("Parameters") or [], self._get_param("Tags")
        return StackRequest(
            name=self._required("StackName"),
            region=self.region,
            body=self._body(),
            parameters=_pairs([one for one in parameters if not _is_kept(one)], "ParameterKey", "ParameterValue"),
            previous=[one["ParameterKey"] for one in parameters if _is_kept(one)],
            tags=None if tags is None else _pairs(tags, "Key", "Value"),
            capabilities=list(self._get_param("Capabilities") or []),
            on_failure=self._on_failure(),
            timeout_s=60.0 * int(self._get_param("TimeoutInMinutes") or 0) or None,
            protected=bool(self._get_param("EnableTerminationProtection")),
            token=self._get_param("ClientRequestToken"),
            role=self._get_param("RoleARN") or "",
        )

    def create_change_set(self) -> ActionResult:
        creates = self._get_param("ChangeSetType") == "CREATE"
        made = self._engine.review(self._request(), self._required("ChangeSetName"), creates=creates)
        return ActionResult({"Id": made.arn, "StackId": made.stack.stack_id})

    def _change_set(self) -> ChangeSet:
        stack = self._stack() if self._get_param("StackName") else None
        return self._engine.change_sets.find(self._required("ChangeSetName"), stack)

    def describe_change_set(self) -> ActionResult:
        found = self._change_set()
        planned = found.revision or found.stack
        inputs = [entry.described() for entry in planned.inputs.values()]
        changes = [described_change(change) for change in found.changes]
        tags = [{"Key": key, "Value": value} for key, value in planned.tags.items()]
        more = {"Parameters": inputs, "Capabilities": planned.capabilities, "Changes": changes, "Tags": tags}
        return ActionResult(described_change_set(found) | more)

    def list_change_sets(self) -> ActionResult:
        found = self._engine.change_sets.of(self._stack())
        return ActionResult({"Summaries": [described_change_set(one) for one in found]})

    def execute_change_set(self) -> ActionResult:
        self._engine.execute(self._change_set(), self._get_param("ClientRequestToken"))
        return EmptyResult()

    def delete_change_set(self) -> ActionResult:
        self._engine.change_sets.remove(self._change_set())
        return EmptyResult()

    def _body(self) -> str:
        url = self._get_param("TemplateURL")
        if str(self._get_param("UsePreviousTemplate")).lower() == "true":
            if url or self._get_param("TemplateBody"):
                raise Refused("You cannot specify both usePreviousTemplate and Template Body/Template URL.")
            return self._stack().template.body
        body = _template_at(self._context, self.region, url) if url else self._get_param("TemplateBody") or ""
        refuse_body(body, from_s3=bool(url))
        return body

    def _on_failure(self) -> str:
        # docs/aws-behaviour.md 1.19
        wanted, disabled = self._get_param("OnFailure"), self._get_param("DisableRollback")
        if wanted and disabled is not None:
            raise Refused("You can specify either DisableRollback or OnFailure, but not both.")
        if wanted and wanted not in ON_FAILURE:
            raise Refused(f"1 validation error detected: Value '{wanted}' at 'onFailure' failed to satisfy constraint")
        return wanted or ("DO_NOTHING" if disabled else "ROLLBACK")

    def update_stack(self) -> ActionResult:
        return ActionResult({"StackId": self._engine.update(self._request()).stack_id})

    def cancel_update_stack(self) -> ActionResult:
        self._engine.cancel(self._stack())
        return EmptyResult()

    def continue_update_rollback(self) -> ActionResult:
        if self._get_param("ResourcesToSkip"):
            raise Refused("The local cloud takes every resource back: ResourcesToSkip is not supported")
        self._engine.continue_rollback(self._stack())
        return EmptyResult()

    def delete_stack(self) -> ActionResult:
        name = self._required("StackName")
        try:
            stack = self._engine.find(name, self.region)
        except Refused:
            return EmptyResult()  # deleting a stack that does not exist succeeds
        retain, role = self._get_param("RetainResources") or [], self._get_param("RoleARN") or ""
        self._engine.delete(stack, self._get_param("ClientRequestToken"), retain, role)
        return EmptyResult()

    def describe_stacks(self) -> ActionResult:
        if self._get_param("StackName"):
            return ActionResult({"Stacks": [_described(self._stack())]})
        stacks = [stack for stack in self._engine.stacks if stack.region == self.region and not stack.gone]
        return ActionResult({"Stacks": [_described(stack) for stack in stacks]})

    def list_stacks(self) -> ActionResult:
        wanted = self._get_param("StackStatusFilter") or []
        stacks = [s for s in self._engine.stacks if s.region == self.region and (not wanted or s.status in wanted)]
        return self._page("StackSummaries", [_summary(stack) for stack in stacks], "StackId")

    def describe_stack_events(self) -> ActionResult:
        name = self._required("StackName")
        try:
            stack = self._stack()
        except Refused:
            raise Refused(f"Stack [{name}] does not exist") from None
        events = [_event(stack, event) for event in reversed(list(stack.events))]
        return self._page("StackEvents", events, "EventId")

    def describe_events(self) -> ActionResult:
        """Answer with what validations found, and what failed while a stack was made (docs/aws-behaviour.md 1.50)."""
        if self._get_param("ChangeSetName"):
            return self._page("OperationEvents", _of_review(self._change_set()), "EventId")
        if not self._get_param("StackName"):
            raise Refused("One of ChangeSetName, OperationId or StackName must be specified")
        stack = self._stack()
        of_reviews = [event for one in self._engine.change_sets.of(stack) for event in _of_review(one)]
        return self._page("OperationEvents", [*of_reviews, *_of_operations(stack)], "EventId")

    def describe_stack_resources(self) -> ActionResult:
        if not self._get_param("StackName") and self._get_param("PhysicalResourceId"):
            stack = self._owner(self._get_param("PhysicalResourceId"))
        else:
            stack = self._stack()
        wanted = self._get_param("LogicalResourceId")
        found = [_resource(stack, resource) for resource in _attempted(stack, wanted)]
        return ActionResult({"StackResources": found})

    def _page(self, name: str, items: list[dict[str, Any]], key: str) -> ActionResult:
        """Return at most PAGE items. The token names the next page's first item, so that new events don't shift it."""
        token = self._get_param("NextToken")
        begin = next((index for index, item in enumerate(items) if item[key] == token), None) if token else 0
        if begin is None:
            raise Refused(f"Invalid NextToken {token}")
        rest = items[begin + PAGE : begin + PAGE + 1]
        return ActionResult({name: items[begin : begin + PAGE], "NextToken": rest[0][key] if rest else None})

    def _owner(self, physical_id: str) -> Stack:
        for stack in self._engine.stacks:
            if any(resource.physical_id == physical_id for resource in list(stack.resources.values())):
                return stack
        raise Refused(f"Stack for {physical_id} does not exist")

    def describe_stack_resource(self) -> ActionResult:
        stack, wanted = self._stack(), self._required("LogicalResourceId")
        found = _attempted(stack, wanted)
        if not found:
            raise Refused(f"Resource {wanted} does not exist for stack {stack.name}")
        metadata = json.dumps(found[0].metadata) if found[0].metadata else None
        return ActionResult({"StackResourceDetail": _resource(stack, found[0]) | {"Metadata": metadata}})

    def list_stack_resources(self) -> ActionResult:
        stack = self._stack()
        found = [_resource(stack, item) for item in _attempted(stack)]
        return self._page("StackResourceSummaries", found, "LogicalResourceId")

    def get_template(self) -> ActionResult:
        template = self._template_of_change_set() if self._get_param("ChangeSetName") else self._stack().template
        return ActionResult({"TemplateBody": template.body, "StagesAvailable": ["Original", "Processed"]})

    def _template_of_change_set(self) -> Template:
        found = self._change_set()
        return (found.revision or found.stack).template

    def get_template_summary(self) -> ActionResult:
        template = self._stack().template if self._get_param("StackName") else self._engine.validated(self._body())
        declared = [
            _declared(key, rules) | {"ParameterType": rules.get("Type"), "ParameterConstraints": _constraints(rules)}
            for key, rules in template.parameters.items()
        ]
        return ActionResult(
            {
                "Parameters": declared,
                "Description": template.description,
                "ResourceTypes": sorted({item.type for item in template.resources.values()}),
                "Version": "2010-09-09",
                "Metadata": json.dumps(template.metadata) if template.metadata else None,
                **_capabilities(template),
            }
        )

    def list_exports(self) -> ActionResult:
        return ActionResult({"Exports": self._engine.exports(self.region).listed()})

    def list_imports(self) -> ActionResult:
        name = self._required("ExportName")
        found = self._engine.exports(self.region).importers(name)
        if not found:
            raise Refused(f"Export '{name}' is not imported by any stack.")
        return ActionResult({"Imports": found})

    def validate_template(self) -> ActionResult:
        template = self._engine.validated(self._body())
        return ActionResult(
            {
                "Description": template.description,
                "Parameters": [_declared(key, rules) for key, rules in template.parameters.items()],
                **_capabilities(template),
            }
        )

    def signal_resource(self) -> ActionResult:
        stack = self._stack()
        signal = Signal(self._required("UniqueId"), self._required("Status"))
        if signal.status not in (SUCCESS, FAILURE):
            raise Refused(WRONG_STATUS.format(signal.status))
        self._engine.signal_resource(stack, self._required("LogicalResourceId"), signal)
        return EmptyResult()


def _pairs(items: Iterable[Mapping[str, Any]], key: str, value: str) -> dict[str, str]:
    return {str(item[key]): str(item.get(value, "")) for item in items}


def _capabilities(template: Template) -> dict[str, Any]:
    capability = required_capabilities(template)
    reason = "The template creates IAM resources" if capability else ""
    return {"Capabilities": [capability] if capability else [], "CapabilitiesReason": reason}


def _constraints(rules: Mapping[str, Any]) -> dict[str, Any]:
    allowed = rules.get("AllowedValues")
    return {"AllowedValues": [str(value) for value in allowed]} if allowed else {}


def _is_kept(parameter: Mapping[str, Any]) -> bool:
    return str(parameter.get("UsePreviousValue")).lower() == "true"


def _attempted(stack: Stack, logical_id: str | None = None) -> list[Resource]:
    resources = list(stack.resources.values())
    return [item for item in resources if item.status and logical_id in (None, item.declared.logical_id)]


def _summary(stack: Stack) -> dict[str, Any]:
    return {
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "TemplateDescription": stack.template.description,
        "CreationTime": stack.created_at,
        "LastUpdatedTime": stack.updated_at,
        "DeletionTime": stack.deleted_at,
        "StackStatus": stack.status,
        "StackStatusReason": stack.reason or None,
        "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
    }


def _of_review(change_set: ChangeSet) -> list[dict[str, Any]]:
    if change_set.is_pending():
        return []
    operation = {"StackId": change_set.stack.stack_id, "OperationId": change_set.operation_id}
    operation |= {"OperationType": "CREATE_CHANGESET", "Timestamp": change_set.made_at}
    return _numbered(operation, change_set.validations)


def _of_operations(stack: Stack) -> list[dict[str, Any]]:
    """Return what failed of a stack's creation: validations before it, or resources."""
    operation = {"StackId": stack.stack_id, "OperationId": stack.operation_id, "OperationType": "CREATE_STACK"}
    found = [event for event in list(stack.events) if event.status.endswith("_FAILED")]
    failed = [
        {**_event(stack, one), **operation, "EventType": "PROVISIONING_ERROR", "StackName": None} for one in found
    ]
    return [*_numbered({**operation, "Timestamp": stack.created_at}, stack.validations), *failed]


def _numbered(operation: Mapping[str, Any], found: Iterable[validations.Validation]) -> list[dict[str, Any]]:
    events = [validations.described(one, operation) for one in found]
    return [{**one, "EventId": f"{operation['OperationId']}-{number}"} for number, one in enumerate(events)]


def _described(stack: Stack) -> dict[str, Any]:
    if stack.status == IN_REVIEW:
        # The change set has the rest until it is executed (docs/aws-behaviour.md 1.52).
        return _summary(stack) | {"Tags": [], "DisableRollback": False, "NotificationARNs": []}
    return _summary(stack) | {
        "Description": stack.template.description,
        "Parameters": [entry.described() for entry in stack.inputs.values()],
        "Outputs": list(stack.outputs),
        "Tags": [{"Key": key, "Value": value} for key, value in stack.tags.items()],
        "Capabilities": stack.capabilities,
        "DisableRollback": stack.on_failure == "DO_NOTHING",
        "TimeoutInMinutes": int(stack.timeout_s // 60) if stack.timeout_s else None,
        "EnableTerminationProtection": stack.protected,
        "RollbackConfiguration": {},
        "RoleARN": stack.role or None,
        "NotificationARNs": [],
    }


def _event(stack: Stack, event: Event) -> dict[str, Any]:
    return {
        "StackId": stack.stack_id,
        "EventId": event.event_id,
        "StackName": stack.name,
        "LogicalResourceId": event.logical_id,
        "PhysicalResourceId": event.physical_id,
        "ResourceType": event.type,
        "Timestamp": event.timestamp,
        "ResourceStatus": event.status,
        "ResourceStatusReason": event.reason or None,
        "ClientRequestToken": event.token,
    }


def _resource(stack: Stack, resource: Resource) -> dict[str, Any]:
    return {
        "StackName": stack.name,
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.declared.logical_id,
        "PhysicalResourceId": resource.physical_id or None,
        "ResourceType": resource.declared.type,
        "Timestamp": resource.changed_at,
        "LastUpdatedTimestamp": resource.changed_at,
        "ResourceStatus": resource.status,
        "ResourceStatusReason": resource.reason or None,
        "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
    }


def _declared(key: str, rules: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ParameterKey": key,
        "DefaultValue": None if rules.get("Default") is None else str(rules["Default"]),
        "NoEcho": str(rules.get("NoEcho", "")).lower() == "true",
        "Description": rules.get("Description"),
    }


def _template_at(context: Context, region: str, url: str) -> str:
    """Return the object, by this cloud's own address or by AWS's; raise Refused with AWS's message."""
    # The bucket is the first part of the path or of the host ("Virtual hosting of buckets" in S3's user guide).
    # Outside of the partition aws, no host is without a region.
    domain = partitions.domain(region)
    s3 = (
        rf"s3\.(?:{re.escape(region)}\.)?{re.escape(domain)}"
        if domain == _AWS_DOMAIN
        else re.escape(f"s3.{region}.{domain}")
    )
    places = (rf"(?:{re.escape(context.url_host)}|https://{s3})/([^/?]+)", rf"https://([a-z0-9][a-z0-9.-]+)\.{s3}")
    found = next(filter(None, (re.fullmatch(rf"{place}/(?P<key>[^?]+)", url) for place in places)), None)
    if found is None:
        raise Refused("TemplateURL must be a supported URL.")
    bucket = found[1]
    may = credentials.may()
    if may is not None and may("s3:GetObject", f"{partitions.arn()}:s3:::{bucket}/{found['key']}", {}):
        raise Refused("S3 error: Access Denied")
    try:
        stored = s3_backends[context.account][partitions.played()].get_object(bucket, found["key"])
    except MissingBucket:
        raise Refused("S3 error: The specified bucket does not exist") from None
    if stored is None:
        raise Refused("S3 error: The specified key does not exist.")
    return stored.value.decode()
