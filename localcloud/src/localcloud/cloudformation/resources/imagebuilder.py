"""AWS::ImageBuilder types: components, recipes, infrastructures and distributions are records; an image is built."""

from __future__ import annotations

import re
from typing import Any

from localcloud.api import parameters, partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.access import iam
from localcloud.cloudformation.resources.registry import Made, Request, resource
from localcloud.images.imagebuilder import documents, registered
from localcloud.images.imagebuilder.build import Build, Order
from localcloud.images.store import Image

# What records of this type know, by ARN. An image's build reads them.
_records: dict[str, dict[str, Any]] = {}
_builds: dict[str, Build] = {}
_SSM = "ssm:"
# A tag of all that Image Builder makes in EC2 (docs/aws-behaviour.md 9.13).
_MADE = {"CreatedBy": "EC2 Image Builder"}


def _forget(request: Request, physical_id: str) -> None:  # noqa: ARG001
    _records.pop(physical_id, None)


def _arn(request: Request, kind: str, version: str = "") -> str:
    # Names that differ only in case, spaces or underscores are one (docs/aws-behaviour.md 9.8).
    name = re.sub(r"[ _]", "-", request.properties["Name"].lower())
    suffix = f"/{version}" if version else ""
    return f"{partitions.arn()}:imagebuilder:{request.region}:{request.context.account}:{kind}/{name}{suffix}"


def _record(request: Request, arn: str, **more: Any) -> Made:
    if arn in _records:
        raise ResourceFailed(f"Resource of type '{arn}' already exists. (Service: Imagebuilder, Status Code: 400)")
    _records[arn] = {**request.properties, **more}
    return Made(arn, {"Arn": arn, "Name": request.properties["Name"]})


@resource("AWS::ImageBuilder::Component", _forget, "Arn Encrypted Name Type LatestVersion.Arn")
def _component(request: Request) -> Made:
    try:
        steps = documents.steps(request.properties.get("Data", ""))
    except documents.InvalidDocument as problem:
        raise ResourceFailed(f"{problem} (Service: Imagebuilder, Status Code: 400)") from None
    return _record(request, _arn(request, "component", f"{request.properties['Version']}/1"), Steps=steps)


@resource("AWS::ImageBuilder::ImageRecipe", _forget, "Arn Name LatestVersion.Arn")
def _recipe(request: Request) -> Made:
    arns = [component["ComponentArn"] for component in request.properties["Components"]]
    if missing := [arn for arn in arns if arn not in _records]:
        raise ResourceFailed(f"The component {missing[0]} does not exist. (Service: Imagebuilder, Status Code: 400)")
    return _record(request, _arn(request, "image-recipe", request.properties["Version"]))


@resource("AWS::ImageBuilder::InfrastructureConfiguration", _forget, "Arn Name")
def _infrastructure(request: Request) -> Made:
    profile = request.properties["InstanceProfileName"]
    if profile not in {one.name for one in iam(request).get_instance_profiles()}:
        raise ResourceFailed(f"The instance profile {profile} does not exist. (Service: Imagebuilder)")
    return _record(request, _arn(request, "infrastructure-configuration"))


@resource("AWS::ImageBuilder::DistributionConfiguration", _forget, "Arn Name")
def _distribution(request: Request) -> Made:
    return _record(request, _arn(request, "distribution-configuration"))


def _delete_image(request: Request, physical_id: str) -> bool:
    """Delete the image, also while it is built; with DeletionSettings, its AMI too (docs/aws-behaviour.md 9.6)."""
    build, record = _builds.pop(physical_id, None), _records.pop(physical_id, {})
    if record and "DeletionSettings" in request.properties:
        registered.deregister(request.context, record["AmiId"])
    return bool(build and build.cancel(lambda: request.settled(None)))


@resource("AWS::ImageBuilder::Image", _delete_image, "Arn ImageId ImageUri Name LatestVersion.Arn")
def _image(request: Request) -> Made:
    recipe = _records[request.properties["ImageRecipeArn"]]
    arn = request.properties["ImageRecipeArn"].replace(":image-recipe/", ":image/") + "/1"
    order = _order(request, recipe)
    _records[arn] = {"AmiId": order.image.ami}
    _builds[arn] = Build(request.context, order, lambda failed: request.settled(_reason(arn, failed)))
    _builds[arn].start()
    return Made(arn, {"Arn": arn, "ImageId": order.image.ami, "Name": recipe["Name"]}, pending=True)


def _reason(arn: str, failed: str | None) -> str | None:
    return f"Resource handler returned message: Image {arn} failed: {failed}" if failed else None


def _order(request: Request, recipe: dict[str, Any]) -> Order:
    infrastructure = _records[request.properties["InfrastructureConfigurationArn"]]
    distribution = _records.get(request.properties.get("DistributionConfigurationArn", ""), {})
    tests = request.properties.get("ImageTestsConfiguration", {}).get("ImageTestsEnabled", True)
    group = request.properties.get("LoggingConfiguration", {}).get("LogGroupName")
    return Order(
        image=_described(request, f"{recipe['Name']}-{recipe['Version']}", _ami(distribution)),
        region=request.region,
        parent=_parent(request, recipe["ParentImage"]),
        machine=_machine(request, infrastructure),
        steps=[step for one in recipe["Components"] for step in _records[one["ComponentArn"]]["Steps"]],
        log_group=group or f"/aws/imagebuilder/{recipe['Name']}",
        log_stream=f"{recipe['Version']}/1",
        tests=str(tests).lower() == "true",
    )


def _parent(request: Request, image: str) -> str:
    if not image.startswith(_SSM):
        return image
    name = image.removeprefix(_SSM)
    try:
        return parameters.value(request.context.account, request.region, name)
    except KeyError:
        reason = parameters.not_served(name) or f"The parameter '{name}' does not exist."
        raise ResourceFailed(f"{reason} (Service: Imagebuilder)") from None


def _machine(request: Request, infrastructure: dict[str, Any]) -> dict[str, Any]:
    (instance_type, *_) = infrastructure.get("InstanceTypes") or ["m5.large"]
    return {
        "instance_type": instance_type,
        "is_instance_type_default": False,
        "iam_instance_profile_name": infrastructure["InstanceProfileName"],
        # As the subnet says.
        "associate_public_ip": None,
        "subnet_id": infrastructure.get("SubnetId"),
        "security_group_ids": list(infrastructure.get("SecurityGroupIds") or []),
        "tags": {"instance": {**request.tags, **_MADE}},
    }


def _ami(distribution: dict[str, Any]) -> dict[str, Any]:
    """Return what the distribution says of the AMI in the first region; the local cloud has one."""
    return next((one.get("AmiDistributionConfiguration", {}) for one in distribution.get("Distributions", [])), {})


def _described(request: Request, name: str, ami: dict[str, Any]) -> Image:
    now = request.context.clock.now().strftime("%Y-%m-%dT%H-%M-%S.000Z")
    ami_name = re.sub(r"\{\{ *imagebuilder:buildDate *\}\}", now, ami.get("Name", f"{name} {now}"))
    return Image(name, "", "", 0, 0, 0, registered.new_id(), ami_name, {**ami.get("AmiTags", {}), **_MADE})
