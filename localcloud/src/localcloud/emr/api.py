"""The EMR API: every action on clusters, answered from the local cloud's clusters instead of moto's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.emr.exceptions import InvalidRequestException, ValidationException
from moto.emr.models import emr_backends
from moto.emr.responses import ElasticMapReduceResponse

from localcloud.emr import public_access, requests
from localcloud.emr.records import Cluster, Reason
from localcloud.emr.service import Service
from localcloud.emr.steps import Step

Handler = Callable[[Service, str, dict[str, Any]], Any]
_PAGE = 50
# Of releases 7.0 to 7.12 (docs/aws-behaviour.md 7.37).
_APPLICATIONS = (
    *("AmazonCloudWatchAgent", "Delta", "Flink", "HBase", "HCatalog", "Hadoop", "Hive", "Hudi", "Hue", "Iceberg"),
    *("JupyterEnterpriseGateway", "JupyterHub", "Livy", "Oozie", "Phoenix", "Pig", "Presto", "Spark", "Sqoop"),
    *("TensorFlow", "Tez", "Trino", "Zeppelin", "ZooKeeper"),
)


def run_job_flow(
    service: Service,
    region: str,
    wanted: Mapping[str, Any],
    settled: Callable[[str | None], None] | None = None,
) -> Cluster:
    """Check a request and make its cluster. Raises ServiceException as EMR does."""
    requests.check(service.context.account, region, wanted)
    tags = {tag["Key"]: tag.get("Value", "") for tag in wanted.get("Tags") or []}
    return service.run(region, wanted, tags, settled)


def _run(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = run_job_flow(service, region, wanted)
    return {"JobFlowId": cluster.id, "ClusterArn": cluster.arn}


def list_clusters(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    states, after, before = wanted.get("ClusterStates"), _time(wanted, "CreatedAfter"), _time(wanted, "CreatedBefore")
    found = [
        cluster.summary()
        for cluster in reversed(service.clusters.values())
        if cluster.region == region
        and (not states or cluster.life.state in states)
        and (after is None or cluster.life.created > after)
        and (before is None or cluster.life.created < before)
    ]
    return _page("Clusters", found, wanted)


def describe_cluster(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {"Cluster": _cluster(service, region, wanted["ClusterId"]).describe()}


def list_instances(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    group_id, roles = wanted.get("InstanceGroupId"), wanted.get("InstanceGroupTypes")
    states = wanted.get("InstanceStates")
    found = [
        member.describe()
        for member in _cluster(service, region, wanted["ClusterId"]).members
        if (not group_id or member.group.id == group_id)
        and (not roles or member.group.role in roles)
        and (not states or member.life.state in states)
    ]
    return _page("Instances", found, wanted)


def list_groups(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = _cluster(service, region, wanted["ClusterId"])
    return _page("InstanceGroups", [group.describe() for group in cluster.groups], wanted)


def list_actions(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    given = _cluster(service, region, wanted["ClusterId"]).wanted.get("BootstrapActions") or []
    found = [
        {
            "Name": one["Name"],
            "ScriptPath": one["ScriptBootstrapAction"]["Path"],
            "Args": one["ScriptBootstrapAction"].get("Args") or [],
        }
        for one in given
    ]
    return _page("BootstrapActions", found, wanted)


def modify_groups(service: Service, region: str, wanted: dict[str, Any]) -> None:
    for change in wanted.get("InstanceGroups") or []:
        groups = [group for one in _clusters(service, region) for group in one.groups]
        group = next((group for group in groups if group.id == change["InstanceGroupId"]), None)
        if group is None:
            raise InvalidRequestException(f"Instance group id '{change['InstanceGroupId']}' is not valid.")
        requests.check_change(group.cluster)
        count = change.get("InstanceCount")
        chosen = change.get("EC2InstanceIdsToTerminate") or []
        if group.is_master and count not in (None, group.requested):
            raise ValidationException("The master instance group can not be resized.")
        service.resize(group, len(group.live) - len(chosen) if count is None else int(count), chosen)


def add_steps(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = _cluster(service, region, wanted["JobFlowId"])
    requests.check_change(cluster)
    requests.check_steps(wanted["Steps"], sum(step.is_open for step in cluster.steps))
    added = service.add_steps(cluster, wanted["Steps"])
    service.advance(cluster)
    return {"StepIds": [step.id for step in added]}


def list_steps(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    ids, states = wanted.get("StepIds"), wanted.get("StepStates")
    found = [
        step.describe()
        for step in reversed(_cluster(service, region, wanted["ClusterId"]).steps)
        if (not ids or step.id in ids) and (not states or step.state in states)
    ]
    return _page("Steps", found, wanted)


def describe_step(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {"Step": _step(_cluster(service, region, wanted["ClusterId"]), wanted["StepId"]).describe()}


def cancel_steps(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = _cluster(service, region, wanted["ClusterId"])
    answers = []
    for step_id in wanted["StepIds"]:
        accepted = service.cancel(cluster, _step(cluster, step_id))
        reason = "" if accepted else "Steps that have ended can't be cancelled."
        answers.append({"StepId": step_id, "Status": "SUBMITTED" if accepted else "FAILED", "Reason": reason})
    return {"CancelStepsInfoList": answers}


def terminate(service: Service, region: str, wanted: dict[str, Any]) -> None:
    found = [_cluster(service, region, cluster_id) for cluster_id in wanted["JobFlowIds"]]
    for cluster in found:
        if not cluster.protected:
            service.end(cluster, Reason("USER_REQUEST", "Terminated by user request"))
    if any(cluster.protected for cluster in found):
        raise ValidationException(requests.PROTECTED)


def protect(service: Service, region: str, wanted: dict[str, Any]) -> None:
    for cluster_id in wanted["JobFlowIds"]:
        service.protect(_cluster(service, region, cluster_id), bool(wanted["TerminationProtected"]))


def add_tags(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = _cluster(service, region, wanted["ResourceId"])
    cluster.tags.update({tag["Key"]: tag.get("Value", "") for tag in wanted["Tags"]})
    return {}


def remove_tags(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    cluster = _cluster(service, region, wanted["ResourceId"])
    for key in wanted["TagKeys"]:
        cluster.tags.pop(key, None)
    return {}


def describe_label(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    label = wanted.get("ReleaseLabel")
    if label not in emr_backends[service.context.account][region].list_release_labels():
        raise InvalidRequestException(f"The supplied release label is invalid: {label}.")
    return {"ReleaseLabel": label, "Applications": [{"Name": name} for name in _APPLICATIONS]}


def list_labels(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    prefix = str((wanted.get("Filters") or {}).get("Prefix") or "")
    labels = emr_backends[service.context.account][region].list_release_labels()
    return {"ReleaseLabels": [label for label in labels if label.startswith(prefix)]}


def get_public_access(service: Service, region: str, _wanted: dict[str, Any]) -> dict[str, Any]:
    context = service.context
    return public_access.described(service.public_access[region], context.clock.now(), context.account)


def put_public_access(service: Service, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    service.public_access[region] = wanted["BlockPublicAccessConfiguration"]
    return {}


def _cluster(service: Service, region: str, cluster_id: str) -> Cluster:
    found = service.clusters.get(cluster_id)
    if found is None or found.region != region:
        raise InvalidRequestException(f"Cluster id '{cluster_id}' is not valid.")
    return found


def _clusters(service: Service, region: str) -> list[Cluster]:
    return [cluster for cluster in service.clusters.values() if cluster.region == region]


def _step(cluster: Cluster, step_id: str) -> Step:
    found = next((step for step in cluster.steps if step.id == step_id), None)
    if found is None:
        raise InvalidRequestException(f"Step id '{step_id}' is not valid.")
    return found


def _time(wanted: Mapping[str, Any], name: str) -> datetime | None:
    seconds = wanted.get(name)
    return None if seconds is None else datetime.fromtimestamp(float(seconds), timezone.utc)


def _page(name: str, rows: list[Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    start = int(wanted.get("Marker") or 0)
    end = start + _PAGE
    return {name: rows[start:end], "Marker": str(end) if end < len(rows) else None}


HANDLERS: dict[str, Handler] = {
    "run_job_flow": _run,
    "list_clusters": list_clusters,
    "describe_cluster": describe_cluster,
    "list_instances": list_instances,
    "list_instance_groups": list_groups,
    "list_bootstrap_actions": list_actions,
    "modify_instance_groups": modify_groups,
    "add_job_flow_steps": add_steps,
    "list_steps": list_steps,
    "describe_step": describe_step,
    "cancel_steps": cancel_steps,
    "terminate_job_flows": terminate,
    "set_termination_protection": protect,
    "add_tags": add_tags,
    "remove_tags": remove_tags,
    "describe_release_label": describe_label,
    "list_release_labels": list_labels,
    "get_block_public_access_configuration": get_public_access,
    "put_block_public_access_configuration": put_public_access,
}
# moto lacks these methods.
_ADDED = ("cancel_steps", "describe_release_label")
PATCHED = tuple(f"moto.emr.responses.ElasticMapReduceResponse.{name}" for name in HANDLERS if name not in _ADDED)


def install(service: Service) -> None:
    """Answer the API from `service`'s clusters."""
    for name, handler in HANDLERS.items():
        setattr(ElasticMapReduceResponse, name, _answering(service, handler))


def _answering(service: Service, handler: Handler) -> Callable[[ElasticMapReduceResponse], Any]:
    def answer(self: ElasticMapReduceResponse) -> Any:
        try:
            with service.changed:
                result = handler(service, self.region, json.loads(self.body or "{}"))
        except ServiceException as refusal:
            return _refused(refusal)
        return EmptyResult() if result is None else ActionResult(result)

    return answer


def _refused(refusal: ServiceException) -> tuple[str, dict[str, Any]]:
    """Return the answer to a refused request; moto would warn of codes that the service's model lacks."""
    headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": refusal.code, "status": 400}
    return json.dumps({"__type": refusal.code, "message": refusal.message}), headers
