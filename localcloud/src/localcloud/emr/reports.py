"""What the controllers of instances report, and what they are given to run: bootstrap actions, then the master's steps.

Root of an instance has its controller's token, and can report anything.

A controller reports in the middle of what it runs (`tick`), and is then informed that it must stop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localcloud.emr import requests
from localcloud.emr.hadoop import applications
from localcloud.emr.launching import DOOR_PATH
from localcloud.emr.records import Cluster, Member, Reason
from localcloud.emr.service import Service
from localcloud.emr.steps import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, Step

CODE = "BOOTSTRAP_FAILURE"
ACTION_LIMIT_S = 3600.0
_MOST_ACTIONS, _LARGEST_STATUS = 16, 255
# How long a new role may lack its rights in bad weather (docs/aws-behaviour.md 11.5).
_PATIENCE_S = 120.0
# How long a controller waits for its next step before it asks again.
_WAIT_S = 20.0
_DOCS = "https://docs.aws.amazon.com/emr/latest/ManagementGuide/"
# How an action failed → EMR's message, and the code of the error on the master (docs/aws-behaviour.md 7.14).
_FAILURES = {
    "exit": ("On {}, bootstrap action {} returned a non-zero return code", "PRIMARY_WITH_NON_ZERO_CODE"),
    "download": ("{} failed attempting to download bootstrap action {} file from S3", "BA_DOWNLOAD_FAILED_PRIMARY"),
    "timeout": ("On {}, bootstrap action {} timed out executing", ""),
}
Report = Mapping[str, Any]
__all__ = ["DOOR_PATH", "answer"]
_CONTROLLER = Path(__file__).with_name("controller.py")
_MOST_BYTES = 64 * 1024


def start(service: Service, member: Member, _report: Report) -> dict[str, Any]:
    """The instance has booted: return what it is, and what it has to run."""
    cluster = member.group.cluster
    if member.life.state == "PROVISIONING":
        member.life.state, member.busy = "BOOTSTRAPPING", True
        member.group.life.state = _later(member.group.life.state)
    if cluster.life.state == "STARTING":
        cluster.life.state, cluster.life.reason = "BOOTSTRAPPING", Reason(message="Running bootstrap actions")
    service.changed.notify_all()
    weather = service.context.weather
    patience_s = weather.scaled(_PATIENCE_S) if weather.forecast else 0.0
    found = {"actions": _actions(service, member), "applications": applications.script(cluster, member)}
    return {**_about(cluster, member, patience_s), **found}


def _later(state: str) -> str:
    return "BOOTSTRAPPING" if state == "PROVISIONING" else state


def _actions(service: Service, member: Member) -> list[dict[str, Any]]:
    """Return the bootstrap actions that the instance has not run yet: all or none."""
    if member.life.state == "RUNNING":
        return []
    limit_s = service.context.weather.scaled(ACTION_LIMIT_S)
    given = [one["ScriptBootstrapAction"] for one in member.group.cluster.wanted.get("BootstrapActions") or []]
    return [
        {"number": number, "path": one["Path"], "args": one.get("Args") or [], "limit_s": limit_s}
        for number, one in enumerate(given, 1)
    ]


def _about(cluster: Cluster, member: Member, patience_s: float) -> dict[str, Any]:
    """Describe the instance and its cluster, as the files in /mnt/var/lib/info do."""
    master = cluster.master or member
    group, is_master = member.group, member.group.is_master
    return {
        "region": cluster.region,
        "logs": f"{cluster.log_uri}/{cluster.id}" if cluster.log_uri else "",
        "patience_s": patience_s,
        "instance_id": member.instance.id,
        "is_master": is_master,
        "info": {
            "instance.json": {
                "instanceGroupId": group.id,
                "isMaster": is_master,
                "isSlave": not is_master,
                "isRunningNameNode": is_master,
                "isRunningDataNode": group.role == "CORE",
                "isRunningJobTracker": False,
                "isRunningTaskTracker": False,
                "isRunningResourceManager": is_master,
                "isRunningNodeManager": not is_master,
            },
            "job-flow.json": {
                "jobFlowId": cluster.id,
                "jobFlowCreationInstant": int(cluster.life.created.timestamp() * 1000),
                "instanceCount": sum(one.requested for one in cluster.groups),
                "masterInstanceId": master.instance.id,
                "masterPrivateDnsName": master.instance.private_dns_name,
                "masterInstanceType": master.group.instance_type,
                "instanceGroups": [
                    {
                        "instanceGroupId": one.id,
                        "instanceGroupName": one.name,
                        "instanceRole": one.role.title(),
                        "marketType": one.market,
                        "instanceType": one.instance_type,
                        "requestedInstanceCount": one.requested,
                    }
                    for one in cluster.groups
                ],
            },
            "extraInstanceData.json": {
                "region": cluster.region,
                "instanceRole": group.role.lower(),
                "releaseLabel": cluster.wanted["ReleaseLabel"],
            },
        },
    }


def tick(_service: Service, member: Member, _report: Report) -> dict[str, Any]:
    """The instance runs something: return whether it must stop."""
    cluster = member.group.cluster
    cancelled = member.group.is_master and any(step.cancelling and step.is_open for step in cluster.steps)
    return {"stop": cluster.is_ending or cancelled or not member.is_live}


def ready(service: Service, member: Member, _report: Report) -> dict[str, Any]:
    """All bootstrap actions have succeeded."""
    member.busy = False
    if member.is_live and not member.group.cluster.is_ending:
        member.life.state, member.life.ready = "RUNNING", service.context.clock.now()
        member.group.failures = 0
        service.advance(member.group.cluster)
    return {}


def failed(service: Service, member: Member, report: Report) -> dict[str, Any]:
    """A bootstrap action has failed: the cluster ends, or, if it is ready, this instance."""
    member.busy = False
    cluster, reason = member.group.cluster, _reason(member, report)
    if member.group.is_master or cluster.life.ready is None:
        member.life.reason = reason
        service.end(cluster, reason)
    else:
        service.dismiss(member, reason)
    return {}


def _reason(member: Member, report: Report) -> Reason:
    number, instance_id = _number(report, "number", _MOST_ACTIONS), member.instance.id
    text, code = _FAILURES.get(str(report.get("how")), _FAILURES["exit"])
    is_master = member.group.is_master
    where = f"the master instance ({instance_id})" if is_master else f"1 slave instance (including {instance_id})"
    message = text.format(where, number).removeprefix("the ")
    message = message[0].upper() + message[1:]
    return Reason(CODE, message, _details(member, number, message, f"{CODE}_{code}" if code and is_master else ""))


def _number(report: Report, name: str, most: int) -> int:
    """Return a number that a controller reports; 1 for anything else."""
    found = report.get(name)
    return found if type(found) is int and 0 <= found <= most else 1


def _details(member: Member, number: int, message: str, code: str) -> dict[str, Any]:
    cluster, instance_id = member.group.cluster, member.instance.id
    logs = f"{cluster.log_uri}/{cluster.id}/node/{instance_id}/bootstrap-actions/{number}/" if cluster.log_uri else ""
    found = {
        "primary-instance-id" if member.group.is_master else "instance-id": instance_id,
        "bootstrap-action": str(number),
        "amazon-s3-path": logs,
        "public-doc": f"{_DOCS}{code}.html" if code else "",
    }
    data = [{name: value} for name, value in found.items() if value]
    return {"ErrorCode": code or CODE, "ErrorMessage": message, "ErrorData": data}


def following(service: Service, member: Member, _report: Report) -> dict[str, Any]:
    """The master wants a step: wait for one, but not for long."""
    cluster = member.group.cluster
    if not member.group.is_master:
        return {"stop": cluster.is_ending}
    for lost in [step for step in cluster.steps if step.state == RUNNING]:
        # This controller runs nothing, so it has restarted.
        _end_step(service, cluster, lost, FAILED, "The master restarted while the step ran.")
    service.changed.wait_for(lambda: cluster.is_ending or _is_next(cluster), _WAIT_S)
    if cluster.is_ending or not _is_next(cluster):
        return {"stop": cluster.is_ending}
    step = next(step for step in cluster.steps if step.state == PENDING)
    step.state, step.started, member.busy = RUNNING, service.context.clock.now(), True
    service.advance(cluster)
    return {"step": {"id": step.id, **_command(step)}}


def _is_next(cluster: Cluster) -> bool:
    return cluster.life.ready is not None and any(step.state == PENDING for step in cluster.steps)


def _command(step: Step) -> dict[str, Any]:
    """Return the script in S3 to run first, "" for a command, and the arguments."""
    if requests.is_script_runner(step.jar):
        return {"path": step.args[0], "args": step.args[1:]}
    return {"path": "", "args": step.args}


def done(service: Service, member: Member, report: Report) -> dict[str, Any]:
    """A step has ended, or what ran was stopped."""
    member.busy = False
    cluster = member.group.cluster
    step = next((step for step in cluster.steps if step.id == report.get("step")), None)
    if cluster.is_ending:
        if not any(one.busy for one in cluster.live):
            service.end_instances(cluster)
    elif step is not None and step.state == RUNNING and member.group.is_master:
        status = _number(report, "code", _LARGEST_STATUS)
        outcome = CANCELLED if step.cancelling else COMPLETED if status == 0 else FAILED
        _end_step(service, cluster, step, outcome, f"exit status {status}")
    return {}


def _end_step(service: Service, cluster: Cluster, step: Step, state: str, why: str) -> None:
    logs = f"{cluster.log_uri}/{cluster.id}/steps/{step.id}/stderr.gz" if cluster.log_uri else ""
    failure = {"Reason": "Unknown Error.", "Message": why, "LogFile": logs} if state == FAILED else None
    step.end(state, service.context.clock.now(), failure)
    if state == FAILED and step.on_failure == "TERMINATE_CLUSTER":
        service.end(cluster, Reason("STEP_FAILURE", "Shut down as step failed"))
        return
    if state == FAILED and step.on_failure == "CANCEL_AND_WAIT":
        for one in cluster.steps:
            if one.state == PENDING:
                one.end(CANCELLED, service.context.clock.now())
    service.advance(cluster)


VERBS = {
    "start": start,
    "tick": tick,
    "ready": ready,
    "failed": failed,
    "next": following,
    "done": done,
}


def answer(service: Service, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer a report: POST /_emr/TOKEN/VERB, with JSON both ways. A token stands for one instance.

    GET /_emr/TOKEN/controller returns the controller's source.
    """
    token, _, verb = environ["PATH_INFO"].removeprefix(DOOR_PATH).partition("/")
    report = _report(environ)
    with service.changed:
        member = service.member(token)
        if member is None:
            return _respond(start_response, "404 Not Found", b"{}")
        if verb == "controller":
            return _respond(start_response, "200 OK", _CONTROLLER.read_bytes())
        if verb not in VERBS or report is None:
            return _respond(start_response, "404 Not Found", b"{}")
        return _respond(start_response, "200 OK", json.dumps(VERBS[verb](service, member, report)).encode())


def _report(environ: dict[str, Any]) -> dict[str, Any] | None:
    length = min(int(environ.get("CONTENT_LENGTH") or 0), _MOST_BYTES)
    try:
        found = json.loads(environ["wsgi.input"].read(length) or b"{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and environ["REQUEST_METHOD"] == "POST" else None


def _respond(start_response: Callable[..., Any], status: str, body: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
