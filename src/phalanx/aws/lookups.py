"""The read-only look-ups for a plan: an instance type's sizes and zones, and whether the image exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import tee
from typing import Any, cast

from phalanx.aws import buckets, file_systems, kms_keys, lustre_file_systems, own_address, price_list, usage, vpcs
from phalanx.aws.aws import Aws
from phalanx.aws.policies import require_policies
from phalanx.errors import CloudError, CloudUnreachable, Mistakes, SpecError
from phalanx.jobs.environments import recipe_names
from phalanx.plan import each_type, money, network_cards, quotas
from phalanx.plan.capacity import SPOT, Reservation
from phalanx.plan.existing_vpc import ExistingVpc
from phalanx.plan.facts import KmsKey
from phalanx.plan.lustre_storage import LustreFileSystem
from phalanx.plan.machine_images import Image, ImageChoice, is_ami
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.plan import Facts, HeadFacts, make_plan, unknown_type_hint
from phalanx.spec.cloud_names import is_local
from phalanx.spec.own_tags import BASE_TAG, RECIPE_TAG, VERSION_TAG
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import AUTO, OF_RECIPE
from phalanx.spec.spec_limits import OWN_GROUP
from phalanx.spec.spec_storage import LUSTRE


@dataclass(frozen=True)
class _Named:
    """What the spec names, as the cloud describes it."""

    described: dict[str, Any]
    """The type."""
    head: HeadFacts | None
    vpc: ExistingVpc | None
    reservation: Reservation | None
    mount_targets: tuple[MountTarget, ...]
    lustre: LustreFileSystem | None
    image: Image
    node_role: tuple[str, str]
    """The ARN and the id of the role of EMR's nodes, if the spec names one."""
    key: KmsKey | None


def facts(api: Aws, spec: ClusterSpec, ssh_public_key: str) -> Facts:
    """Look up the sizes and zones of each type, and all that the spec names.

    Raises SpecError with all that is not there.
    """
    once = AskedOnce(api) if spec.other_types else api
    return each_type.look_up(spec, lambda one: _of_type(once, one, ssh_public_key), make_plan)


def _of_type(api: Aws, spec: ClusterSpec, ssh_public_key: str) -> Facts:
    named = _named(api, spec)
    described, vpc = named.described, named.vpc
    of_type = sizes(described)
    wanted = (
        quotas.of(spec, of_type["vcpus"], named.head.vcpus if named.head else None, vpc)
        if not is_local(spec.cloud)
        else []
    )
    zones = _zones_of_all(api, spec, vpc)
    asked, unknown = usage.ask(api, spec.name, wanted)
    return Facts(
        cloud=spec.cloud,
        region=spec.region,
        zones=zones,
        **of_type,
        kept_file_system="" if spec.file_system or spec.storage == LUSTRE else file_systems.kept(api, spec.name),
        lustre=named.lustre,
        image=named.image,
        ssh_public_key=ssh_public_key,
        reservation=named.reservation,
        vpc=vpc,
        node_role=named.node_role,
        mount_targets=named.mount_targets,
        own_address=own_address.of(spec.cloud) if AUTO in spec.ssh_sources else "",
        head=named.head,
        quotas=asked,
        quotas_unknown=unknown,
        prices=_prices(api, spec, zones),
        data=buckets.count(api, spec.data),
        key=named.key,
        disk_key="" if spec.kms_key else disk_key(api),
        blocked_access=vpcs.blocked_access(api, vpc),
    )


def _named(api: Aws, spec: ClusterSpec) -> _Named:
    """Look up all that the spec names. Raises SpecError with all that is missing."""
    mistakes = Mistakes()
    for check in (_require_key_pair, _require_placement_group, require_policies, buckets.require_buckets):
        mistakes.check(check, api, spec)
    node_role = mistakes.check(api.machines.require, spec)
    vpc = mistakes.check(vpcs.find, api, spec)
    described = mistakes.check(_describe_type, api, spec.type)
    head = mistakes.check(_head_facts, api, spec)
    reservation = mistakes.check(find_reservation, api, spec)
    targets = mistakes.check(_mount_targets, api, spec)
    lustre = mistakes.check(_lustre, api, spec)
    key = mistakes.check(kms_keys.find, api, spec)
    image = mistakes.check(_image_of, api, spec, described)
    mistakes.report()
    assert described and image
    return _Named(described, head, vpc, reservation, targets or (), lustre, image, node_role or ("", ""), key)


def _image_of(api: Aws, spec: ClusterSpec, described: dict[str, Any] | None) -> Image | None:
    """Return the nodes' image; None if an unknown type decides about it. Raises SpecError if there is none."""
    if described is None:
        named = spec.image or ""
        return _require_image(api, named) if is_ami(named) else None
    architecture = _architecture(described)
    parameter = ImageChoice(spec, _gpus(described), architecture).parameter
    found = image_id(api, parameter, architecture)
    if not found:
        raise SpecError(
            f"image: the SSM parameter {parameter} does not exist in {spec.region}",
            "Write another `image`: an alias, or a parameter's path, such as one below /aws/service/deeplearning/ami/.",
            code="no-image",
        )
    return _require_image(api, found)


def _require_key_pair(api: Aws, spec: ClusterSpec) -> None:
    if spec.key_pair and not api.exists("ec2", "describe_key_pairs", KeyNames=[spec.key_pair]):
        raise SpecError(
            f"key_pair: {api.region} has no key pair '{spec.key_pair}'",
            "`aws ec2 describe-key-pairs` lists them.",
            code="no-key-pair",
        )


def _prices(api: Aws, spec: ClusterSpec, zones: tuple[str, ...]) -> money.Prices:
    """Ask what the cluster's types cost, and what spot workers do in the zone that is tried first."""
    if is_local(spec.cloud):
        return money.TABLE
    first = next((zone for zone in spec.zones or () if zone in zones), next(iter(zones), ""))
    return price_list.ask(api, money.types_of(spec), first if spec.capacity == SPOT else "")


def _mount_targets(api: Aws, spec: ClusterSpec) -> tuple[MountTarget, ...]:
    if not spec.file_system or spec.storage == LUSTRE:
        return ()
    return file_systems.mount_targets(api, spec.file_system, spec.name)


def _require_placement_group(api: Aws, spec: ClusterSpec) -> None:
    """Raise SpecError if the spec names a placement group that does not exist."""
    if spec.placement in (None, OWN_GROUP):
        return
    if not api.exists("ec2", "describe_placement_groups", GroupNames=[spec.placement]):
        raise SpecError(
            f"placement: {api.region} has no placement group '{spec.placement}'",
            "`aws ec2 describe-placement-groups` lists them; `cluster` makes one.",
            code="no-placement-group",
        )


def _lustre(api: Aws, spec: ClusterSpec) -> LustreFileSystem | None:
    if not spec.file_system or spec.storage != LUSTRE:
        return None
    return lustre_file_systems.find(api, spec.file_system)


def disk_key(api: Aws) -> str:
    """Return the account's own default key for EBS volumes; "" for AWS's, or if the user may not ask."""
    try:
        found = api.call("ec2", "get_ebs_default_kms_key_id").get("KmsKeyId", "")
    except CloudError:
        return ""
    return "" if found.endswith("alias/aws/ebs") else found


def sizes(described: dict[str, Any]) -> dict[str, Any]:
    """Return what DescribeInstanceTypes says of a type, by the names of Facts."""
    return {
        "vcpus": described["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": described["MemoryInfo"]["SizeInMiB"] / 1024,
        "gpus": _gpus(described),
        "architecture": _architecture(described),
        "network_cards": described["NetworkInfo"]["MaximumNetworkCards"],
        "cards": network_cards.cards(described),
        "strategies": tuple(sorted(described["PlacementGroupInfo"]["SupportedStrategies"])),
    }


def _gpus(described: dict[str, Any]) -> int:
    """Return how many of NVIDIA's GPUs a type has."""
    found = described.get("GpuInfo", {}).get("Gpus", [])
    return sum(gpu["Count"] for gpu in found if gpu["Manufacturer"] == "NVIDIA")


def _architecture(described: dict[str, Any]) -> str:
    return described["ProcessorInfo"]["SupportedArchitectures"][-1]


def _head_facts(api: Aws, spec: ClusterSpec) -> HeadFacts | None:
    if not spec.head:
        return None
    described = _describe_type(api, spec.head["type"], "head")
    memory_gib = described["MemoryInfo"]["SizeInMiB"] / 1024
    return HeadFacts(described["VCpuInfo"]["DefaultVCpus"], memory_gib, _architecture(described))


def promised_bit_s(api: Aws, instance_type: str) -> float | None:
    """Return the baseline of the type's first network card, which TCP uses (NetworkCardInfo of EC2's API)."""
    cards = _describe_type(api, instance_type).get("NetworkInfo", {}).get("NetworkCards", [])
    gbit_s = cards[0].get("BaselineBandwidthInGbps") if cards else None
    return float(gbit_s) * 1e9 if gbit_s else None


def _describe_type(api: Aws, instance_type: str, key: str = "type") -> dict[str, Any]:
    try:
        return api.call("ec2", "describe_instance_types", InstanceTypes=[instance_type])["InstanceTypes"][0]
    except CloudError as error:
        if "InvalidInstanceType" in str(error):
            raise SpecError(
                f"{key}: {api.region} has no instance type '{instance_type}'",
                unknown_type_hint(instance_type, api.name),
                code="no-instance-type",
            ) from error
        raise


def _zones_of_all(api: Aws, spec: ClusterSpec, vpc: ExistingVpc | None) -> tuple[str, ...]:
    """Return the ordinary zones that offer the types of all nodes."""
    found = zones(api, spec.type)
    if spec.head:
        found = tuple(sorted({*found} & {*zones(api, spec.head["type"])}))
    return vpcs.with_endpoints(api, spec, found, vpc)


def zones(api: Aws, instance_type: str) -> tuple[str, ...]:
    """Return the ordinary zones that offer the type. Offered does not mean available (docs/aws-behaviour.md 2.20).

    Opted-in Local and Wavelength Zones also offer types, and sort before the others (docs/aws-behaviour.md 2.30).
    """
    named = [{"Name": "instance-type", "Values": [instance_type]}]
    ordinary = [{"Name": "zone-type", "Values": ["availability-zone"]}, {"Name": "state", "Values": ["available"]}]
    offers = api.call("ec2", "describe_instance_type_offerings", LocationType="availability-zone", Filters=named)
    there = api.call("ec2", "describe_availability_zones", Filters=ordinary)["AvailabilityZones"]
    offering = {offer["Location"] for offer in offers["InstanceTypeOfferings"]}
    return tuple(sorted(offering & {zone["ZoneName"] for zone in there}))


def image(api: Aws, parameter: str) -> Image | None:
    """Return the image that an SSM parameter names now; None if there is none that this account can use."""
    return _describe_image(api, image_id(api, parameter))


def image_id(api: Aws, parameter: str, architecture: str = "") -> str:
    """Return the AMI id in a parameter, or the one given in its place; "" if there is no such parameter."""
    if is_ami(parameter):
        return parameter
    if parameter.startswith(OF_RECIPE):
        return _newest_of_recipe(api, parameter.removeprefix(OF_RECIPE), architecture)
    answer = api.exists("ssm", "get_parameter", Name=parameter)
    return answer["Parameter"]["Value"] if answer else ""


def _newest_of_recipe(api: Aws, name: str, architecture: str) -> str:
    """Return the newest image of `RECIPE`, or the one of `RECIPE@VERSION`; for this processor, if there is one."""
    recipe, _, version = name.partition("@")
    filters = [{"Name": f"tag:{RECIPE_TAG}", "Values": [recipe]}]
    there = api.call("ec2", "describe_images", Owners=["self"], Filters=filters)["Images"]
    found = [one for one in there if version in ("", _tags(one)[VERSION_TAG])]
    if not found:
        raise _without_image(api, name, [_tags(one)[VERSION_TAG] for one in there])
    fits = [one for one in found if one["Architecture"] == architecture]
    return max(fits or found, key=_version)["ImageId"]


def _without_image(api: Aws, name: str, versions: list[str]) -> SpecError:
    recipe = name.partition("@")[0]
    if recipe not in recipe_names() and not versions:
        return SpecError(
            f"image: there is no recipe '{recipe}'", f"The recipes are: {', '.join(recipe_names())}.", code="no-recipe"
        )
    command = f"phalanx image build {recipe} --cloud {api.name} --region {api.region}"
    if is_local(api.name):
        command = f"phalanx local image build {recipe}"
    there = ", ".join(f"{recipe}@{version}" for version in versions)
    where = "this machine" if is_local(api.name) else api.region
    return SpecError(
        f"image: {where} has no image of the recipe {name}",
        f"There are: {there}." if there else f"`{command}` makes one.",
        code="no-image",
    )


def _version(described: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in _tags(described)[VERSION_TAG].split("."))


def _tags(described: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}


def _require_image(api: Aws, image_id: str) -> Image:
    found = _describe_image(api, image_id)
    if found is None:
        raise SpecError(
            f"image: {image_id} is not an image that this account can use in {api.region}",
            "Write the id of an AMI of this region that you own, that is public, or that is shared with you, or an SSM "
            "parameter that holds one.",
            code="no-image",
        )
    return found


def _describe_image(api: Aws, image_id: str) -> Image | None:
    answer = api.exists("ec2", "describe_images", ImageIds=[image_id]) if image_id else None
    if not answer or not answer["Images"]:
        return None
    (described,) = answer["Images"]
    root_device = described.get("RootDeviceName", "")
    disks = {one["DeviceName"]: one.get("Ebs", {}) for one in described.get("BlockDeviceMappings", ())}
    size_gib = disks.get(root_device, {}).get("VolumeSize", 0)
    tags = _tags(described)
    recipe = f"{tags[RECIPE_TAG]}@{tags[VERSION_TAG]}" if {RECIPE_TAG, VERSION_TAG} <= tags.keys() else ""
    name, base = described.get("Name", ""), tags.get(BASE_TAG, "")
    return Image(image_id, name, described["Architecture"], root_device, size_gib, recipe, base)


def find_reservation(api: Aws, spec: ClusterSpec) -> Reservation | None:
    """Return the reservation; None if the spec names none. Raises SpecError if it does not exist."""
    if not spec.reservation:
        return None
    ids = [spec.reservation]
    answer = api.exists("ec2", "describe_capacity_reservations", CapacityReservationIds=ids)
    if not answer or not answer["CapacityReservations"]:
        raise SpecError(
            f"capacity: {spec.reservation} does not exist in {api.region}",
            "`aws ec2 describe-capacity-reservations` lists them.",
            code="no-reservation",
        )
    return _described_reservation(answer["CapacityReservations"][0])


def _described_reservation(entry: dict[str, Any]) -> Reservation:
    begins, ends = entry.get("StartDate"), entry.get("EndDate")
    return Reservation(
        entry["CapacityReservationId"],
        entry.get("ReservationType") == "capacity-block",
        entry["State"],
        entry["InstanceType"],
        entry["AvailabilityZone"],
        entry["AvailableInstanceCount"],
        f"{begins:%Y-%m-%d %H:%M} UTC" if begins else "",
        f"{ends:%Y-%m-%d %H:%M} UTC" if ends else "",
    )


class AskedOnce(Aws):
    """Answers a read-only call from memory if it was made before; a refusal is no answer.

    A service that does not answer is not asked again: everybody would wait for it as often as there are types.
    """

    def __init__(self, api: Aws) -> None:
        super().__init__(api.region, api.name)
        self._api = api
        self.machines = cast("Any", type(api.machines))(self)
        self._answers: dict[str, Any] = {}
        self._silent: dict[str, CloudUnreachable] = {}

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._once("call", self._api.call, service, operation, **arguments)

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        return self._once("exists", self._api.exists, service, operation, **arguments)

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the entries; no more pages are requested than somebody reads."""
        asked = repr(("pages", service, operation, key, arguments))
        if asked not in self._answers:
            (self._answers[asked],) = tee(self._api.pages(service, operation, key, **arguments), 1)
        try:
            yield from copy(self._answers[asked])
        except CloudError:
            del self._answers[asked]
            raise

    def _once(self, way: str, ask: Callable[..., Any], service: str, operation: str, **arguments: Any) -> Any:
        if service in self._silent:
            raise self._silent[service]
        asked = repr((way, service, operation, arguments))
        try:
            if asked not in self._answers:
                self._answers[asked] = ask(service, operation, **arguments)
        except CloudUnreachable as error:
            self._silent[service] = error
            raise
        return self._answers[asked]
