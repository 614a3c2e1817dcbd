"""The services that make a cluster's machines, Auto Scaling and EMR, and all in which their clusters differ."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.spec.cloud_names import CLOUDS


@dataclass(frozen=True)
class Maker:
    """What a spec, a plan and a document need to know of the service. What it does is `phalanx.aws.model.Machines`."""

    agents_call: tuple[str, ...]
    """The services of AWS that the agents of its nodes call."""
    in_public_subnet: bool
    """Whether all nodes are in one public subnet, each with an address, and not the workers in a private one."""
    stops_nodes: bool
    """Whether it can stop a cluster's nodes, and start them again: a lease needs that."""
    reports_launches: bool
    """Whether it reports launches to a topic, and a function of the stack acts on them."""
    has_user_data: bool
    """Whether the agent starts from user data, and not from an object in S3."""
    mounts: bool
    """Whether nodes mount Lustre, and prefixes of S3."""
    default_type: str


AUTO_SCALING = Maker(
    agents_call=("autoscaling", "cloudformation", "ec2", "logs", "sns", "sqs", "sts"),
    in_public_subnet=False,
    stops_nodes=True,
    reports_launches=True,
    has_user_data=True,
    mounts=True,
    default_type="c5.large",
)
EMR = Maker(
    agents_call=("cloudformation", "ec2", "elasticmapreduce", "logs", "sqs", "sts"),
    in_public_subnet=True,
    stops_nodes=False,
    reports_launches=False,
    has_user_data=False,
    mounts=False,
    default_type="m5.xlarge",
)
_OF_CLOUDS = {"emr": EMR, "local-emr": EMR}
EMR_CLOUDS = tuple(cloud for cloud in CLOUDS if cloud in _OF_CLOUDS)


def maker_of(cloud: str) -> Maker:
    """Return what makes the machines of a cloud."""
    return _OF_CLOUDS.get(cloud, AUTO_SCALING)
