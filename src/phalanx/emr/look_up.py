"""Look up an EMR cluster that phalanx did not make, and all that keeps it from being adopted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.aws.refusals import code
from phalanx.errors import CloudError, ClusterError
from phalanx.spec.spec_emr import FIRST_RELEASE
from phalanx.template.emr.adopted import EmrCluster, Instance

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_READY = ("RUNNING", "WAITING")
_STARTS = ("STARTING", "BOOTSTRAPPING")


def find(api: Aws, cluster_id: str) -> EmrCluster:
    """Return the cluster. Raises ClusterError with all that keeps it from being adopted."""
    described = _described(api, cluster_id)
    _require_ready(cluster_id, described["Status"])
    wrong = [*_unsuited(described)]
    groups = [] if wrong else list(_groups(api, cluster_id))
    wrong += _of_groups(groups)
    if wrong:
        raise ClusterError(
            "\n".join(f"EMR cluster {cluster_id} {one}" for one in wrong),
            "It is left as it is.",
            code="unsuited-emr-cluster",
        )
    return _found(api, described, groups)


def _described(api: Aws, cluster_id: str) -> dict[str, Any]:
    try:
        return api.call("emr", "describe_cluster", ClusterId=cluster_id)["Cluster"]
    except CloudError as error:
        said = code(error.__cause__)
        if said not in ("InvalidRequestException", "ValidationException"):
            raise
        raise ClusterError(
            f"there is no EMR cluster {cluster_id} in {api.region}",
            "`aws emr list-clusters --active` lists them.",
            code="no-emr-cluster",
        ) from error


def _require_ready(cluster_id: str, status: dict[str, Any]) -> None:
    state, why = status["State"], status.get("StateChangeReason", {}).get("Message", "")
    if state in _STARTS:
        raise ClusterError(
            f"EMR cluster {cluster_id} is {state}", "Adopt it once it is WAITING or RUNNING.", code="cluster-not-ready"
        )
    if state not in _READY:
        reason = f": {why}" if why else ""
        raise ClusterError(
            f"EMR cluster {cluster_id} is {state}{reason}",
            "EMR starts no ended cluster again.",
            code="emr-cluster-ended",
        )


def _unsuited(described: dict[str, Any]) -> Iterator[str]:
    label = described.get("ReleaseLabel", "")
    release = label.removeprefix("emr-").partition(".")[0]
    if described.get("InstanceCollectionType") == "INSTANCE_FLEET":
        yield "has instance fleets: only uniform instance groups can be adopted"
    if not release.isdecimal() or int(release) < FIRST_RELEASE:
        yield f"has the release {label}, whose Python is older than 3.9: {FIRST_RELEASE}.0.0 is the first that works"
    if not described["Ec2InstanceAttributes"].get("Ec2KeyName"):
        yield "was made without an EC2 key pair, so that nobody can log in to its nodes"
    if own := tags.cluster_of(described):
        yield f"is phalanx's own: `phalanx adopt {own} --cloud emr` takes it over"


def _groups(api: Aws, cluster_id: str) -> Iterator[dict[str, Any]]:
    return api.pages("emr", "list_instance_groups", "InstanceGroups", ClusterId=cluster_id)


def _of_groups(groups: list[dict[str, Any]]) -> Iterator[str]:
    masters = sum(one["RequestedInstanceCount"] for one in groups if one["InstanceGroupType"] == "MASTER")
    if masters > 1:
        yield f"has {masters} master nodes, of which EMR replaces each: only one with one master can be adopted"


def _found(api: Aws, described: dict[str, Any], groups: list[dict[str, Any]]) -> EmrCluster:
    of_ec2, cluster_id = described["Ec2InstanceAttributes"], described["Id"]
    masters, cores = (_running(api, cluster_id, kind) for kind in ("MASTER", "CORE"))
    if not masters:
        raise ClusterError(
            f"EMR cluster {cluster_id} has no master node that runs",
            "`aws emr list-instances` shows it.",
            code="no-emr-master",
        )
    types = {one["InstanceGroupType"]: one["InstanceType"] for one in groups}
    role = _role(api, of_ec2["IamInstanceProfile"])
    machine = api.call("ec2", "describe_instances", InstanceIds=[masters[0]["Ec2InstanceId"]])
    kind = types["CORE"] if cores else types["MASTER"]
    return EmrCluster(
        cluster_id=cluster_id,
        name=described["Name"],
        instances=tuple(
            Instance(one["Ec2InstanceId"], one["PrivateIpAddress"], one in masters) for one in (*masters, *cores)
        ),
        master_address=masters[0].get("PublicIpAddress") or masters[0]["PrivateIpAddress"],
        master_type=types["MASTER"],
        type=kind,
        gpus=_gpus(api, kind),
        image=machine["Reservations"][0]["Instances"][0]["ImageId"],
        network=_network(api, of_ec2["Ec2SubnetId"]),
        group=of_ec2["EmrManagedMasterSecurityGroup"],
        key_pair=of_ec2["Ec2KeyName"],
        role=role["RoleName"],
        role_arn=role["Arn"],
        role_id=role["RoleId"],
        task_instances=sum(one["RunningInstanceCount"] for one in groups if one["InstanceGroupType"] == "TASK"),
        ends_itself=bool(described.get("AutoTerminate")),
    )


def _running(api: Aws, cluster_id: str, kind: str) -> list[dict[str, Any]]:
    chosen = {"ClusterId": cluster_id, "InstanceGroupTypes": [kind], "InstanceStates": ["RUNNING"]}
    return list(api.pages("emr", "list_instances", "Instances", **chosen))


def _role(api: Aws, profile: str) -> dict[str, Any]:
    name = profile.rpartition("/")[2]
    return api.call("iam", "get_instance_profile", InstanceProfileName=name)["InstanceProfile"]["Roles"][0]


def _gpus(api: Aws, kind: str) -> int:
    (described,) = api.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"]
    found = described.get("GpuInfo", {}).get("Gpus", [])
    return sum(gpu["Count"] for gpu in found if gpu["Manufacturer"] == "NVIDIA")


def _network(api: Aws, subnet: str) -> str:
    return api.call("ec2", "describe_subnets", SubnetIds=[subnet])["Subnets"][0]["CidrBlock"]
