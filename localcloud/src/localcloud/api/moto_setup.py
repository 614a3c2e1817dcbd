"""Sets up moto: checks its version and every name that we patch, speeds it up, and adds the local cloud's images."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from localcloud import accounts
from localcloud.images import store
from localcloud.images.distributions import DISTRIBUTIONS
from localcloud.images.store import Image

MOTO_VERSION = "5.2.5"
# The services that clusters use, in the order of their first requests.
SERVICES = ("ssm", "ec2", "autoscaling", "iam", "efs", "sqs", "sns", "dynamodb", "logs", "awslambda", "events", "sts")
# AWS's endpoint prefixes where they differ from the service's name.
PREFIXES = {"efs": "elasticfilesystem", "elb": "elasticloadbalancing", "elbv2": "elasticloadbalancing"}

# Every name that the local cloud replaces or relies on beyond moto's public API. They are checked at the start, so that
# an upgrade of moto fails with the missing name, rather than in the middle of a stack.
NAMES = (
    "boto3.session.Session.get_available_regions",
    "botocore.session.Session._get_internal_component",
    "botocore.session.create_loader",
    "moto.core.utils.create_loader",
    "moto.core.errors.COMMON_ERROR_CODES",
    "botocore.loaders.Loader.search_paths",
    "moto.utilities.utils.load_resource",
    "moto.ec2.models.instance_types.INSTANCE_TYPE_OFFERINGS",
    "moto.ec2.models.amis.AmiBackend._load_amis",
    "moto.ec2.models.amis.Ami.block_device_mappings",
    "moto.ec2.models.elastic_network_interfaces.NetworkInterface.group_set",
    "moto.ec2.models.security_groups.SecurityGroupBackend.authorize_security_group_egress",
    "moto.ec2.models.vpcs.VPCBackend.create_vpc",
    "moto.ssm.models.ParameterDict._check_loading_status",
    "moto.core.responses.BaseResponse._dispatch",
    "moto.core.responses.method_names_from_class",
    "moto.moto_server.werkzeug_app.DomainDispatcherApplication.get_backend_for_host",
    "moto.core.types.Base64EncodedString",
    "moto.core.serialize.AttributePicker.get_possible_keys",
    "moto.core.base_backend.BackendDict._create_account_specific_backend",
)
IMAGES = {"x86_64": "ami-0fa1a9c0de0000064", "arm64": "ami-0fa1a9c0de0000aa4"}
# Those whose record says Amazon Linux, which EMR takes as custom AMIs; they too are this machine's own programs.
AMAZON_LINUX = {"x86_64": "ami-0fa1a9c0dea100064", "arm64": "ami-0fa1a9c0dea1000a4"}
AMAZON_LINUX_FOR_TRAINING = {"x86_64": "ami-0fa1a9c0dea1d0064", "arm64": "ami-0fa1a9c0dea1d00a4"}
AMAZON_IMAGES = frozenset((*AMAZON_LINUX.values(), *AMAZON_LINUX_FOR_TRAINING.values()))
# The images of `localcloud image build`, by name.
FULL_IMAGES = {name: distribution.ami for name, distribution in DISTRIBUTIONS.items()}
# Those that Image Builder has made, by id.
OWN_IMAGES: dict[str, Image] = {}
ROOT_GIB, TRAINING_ROOT_GIB = 8, 60
"""The sizes of the images' root disks, and of those for training."""
# Regions of which moto has no offers, and the small region whose they have here.
_OTHERS = {region for regions in accounts.REGIONS.values() for region in regions}
_LIKE = "eu-south-1"
_OFFERINGS = "ec2/resources/instance_type_offerings"


class MotoMismatch(Exception):  # noqa: N818
    """The installed moto is not the version that the local cloud needs; the message says what to install."""


def check_version() -> None:
    """Raise MotoMismatch unless exactly the required version is installed."""
    try:
        found = importlib.metadata.version("moto")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != MOTO_VERSION:
        raise MotoMismatch(
            f"the local cloud needs moto {MOTO_VERSION}, found: {found}\ninstall it: pip install phalanx-localcloud"
        )


def check_names(names: Iterable[str] = NAMES) -> None:
    """Raise MotoMismatch for the first dotted name (module, class, attribute) that does not exist."""
    for name in names:
        if not _exists(name):
            raise MotoMismatch(f"moto {MOTO_VERSION} has no {name}; reinstall it: pip install phalanx-localcloud")


def _exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[end:], module)
        except AttributeError:
            return False
        return True
    return False


@functools.cache
def load() -> None:
    """Import moto's EC2 quickly, once. Call it before anything imports moto.ec2."""
    check_version()
    from moto import settings

    # moto's 600 images take 0.1 s per region, and none of them can run here.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    # moto has read the variables of these already.
    settings.ENABLE_AMI_VALIDATION = True
    # Buckets are named in the path: the local cloud's address is not a domain.
    settings.S3_IGNORE_SUBDOMAIN_BUCKETNAME = True
    _list_regions_quickly()
    _read_models_once()
    _import_ec2()
    _answer_quickly()


def install(images: Path | None = None) -> None:
    """Load moto and add the local cloud's images.

    `images` is the directory of images with a full operating system, among them those that Image Builder has made.
    """
    load()
    from moto.ec2.models.amis import Ami, AmiBackend

    known = [*_known_images()]
    OWN_IMAGES.update({image.ami: image for image in store.images(images) if image.ami} if images else {})
    FULL_IMAGES.update({image.name: image.ami for image in OWN_IMAGES.values()})

    def load_images(self: Any) -> None:
        for image_id, name, description, architecture in known:
            self.amis[image_id] = Ami(
                self,
                image_id,
                name=name,
                description=description,
                architecture=architecture,
                owner_alias="amazon",
                public=True,
                root_device_type="ebs",
                virtualization_type="hvm",
                region_name=self.region_name,
            )

        self.amis.update({ami: ami_of(self, image) for ami, image in OWN_IMAGES.items()})

    AmiBackend._load_amis = load_images
    setattr(Ami, "block_device_mappings", property(_root_device))  # noqa: B010 (pyright knows the original)


def _known_images() -> Iterator[tuple[str, str, str, str]]:
    """Yield the id, name, description and architecture of each image."""
    for cpu, image_id in IMAGES.items():
        yield image_id, f"localcloud-ubuntu-{cpu}", "This machine's own programs", cpu
    for name, distribution in DISTRIBUTIONS.items():
        yield distribution.ami, f"localcloud-{name}", "A full operating system", "x86_64"
    for cpu, image_id in AMAZON_LINUX.items():
        yield image_id, f"localcloud-al2023-ami-{cpu}", "Amazon Linux 2023: this machine's own programs", cpu
    for cpu, image_id in AMAZON_LINUX_FOR_TRAINING.items():
        name = f"localcloud-deep-learning-ami-al2023-{cpu}"
        yield image_id, name, "Deep Learning AMI (Amazon Linux 2023): this machine's own programs", cpu


def root_gib(image_id: str) -> int:
    """Return the size of an image's root disk, which is the least of the volumes made from it."""
    return TRAINING_ROOT_GIB if image_id in AMAZON_LINUX_FOR_TRAINING.values() else ROOT_GIB


def _root_device(image: Any) -> list[dict[str, Any]]:
    """Describe an image's root device; moto says 15 GiB for every image."""
    snapshot = {"SnapshotId": image.ebs_snapshot.id, "VolumeSize": root_gib(image.id)}
    disk = {**snapshot, "DeleteOnTermination": True, "VolumeType": "gp3"}
    return [{"DeviceName": image.root_device_name, "Ebs": disk}]


def ami_of(backend: Any, image: Image) -> Any:
    """Return EC2's record of an image that Image Builder made."""
    from moto.ec2.models.amis import Ami

    made: Any = Ami(
        backend,
        image.ami,
        name=image.ami_name,
        description="Made by Image Builder",
        architecture=image.tags["localcloud:machine"].replace("aarch64", "arm64"),
        root_device_type="ebs",
        virtualization_type="hvm",
        region_name=backend.region_name,
        tags=image.tags,
    )
    made.ebs_snapshot.add_tags(image.tags)
    return made


def preload(account: str) -> None:
    """Load what the first request to each service would wait for, and check `NAMES`; meant for a thread."""
    for backend in load_services():
        backend[account]
    check_names()


def load_services() -> list[Any]:
    """Load the models of the services that clusters use, and return moto's records of each."""
    from moto import backends
    from moto.core.utils import get_service_model

    for service in ("cloudformation", *SERVICES):
        get_service_model("lambda" if service == "awslambda" else service)
    return [backends.get_backend(service) for service in SERVICES]  # type: ignore[call-overload]


def _answer_quickly() -> None:
    """Cache what moto lists for each request: its directory, its classes' methods, and which services have records."""
    responses: Any = importlib.import_module("moto.core.responses")
    dispatcher: Any = importlib.import_module("moto.moto_server.werkzeug_app").DomainDispatcherApplication
    for owner, name in ((responses, "method_names_from_class"), (dispatcher, "get_backend_for_host")):
        setattr(owner, name, functools.cache(getattr(owner, name)))
    records: Any = importlib.import_module("moto.core.base_backend").BackendDict
    records.__getitem__ = _find_quickly(records.__getitem__)
    serialize: Any = importlib.import_module("moto.core.serialize")
    serialize.AttributePicker.__call__ = _pick_quickly(serialize.AttributePicker.__call__)


def _find_quickly(make: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Look for a service's records before moto does: under one lock for all, it compares those of all services."""

    def quick(self: Any, account_id: str) -> Any:
        found = self.get(account_id)
        return make(self, account_id) if found is None else found

    return quick


def _pick_quickly(pick: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Cache the names under which moto looks for each value of an answer: for dictionaries the model alone decides.

    Computing them takes a third of the time of a long answer, such as a stack's events or a group's instances.
    """

    @functools.lru_cache(maxsize=1 << 14)
    def names(picker: type[Any], shape: Any, key: str) -> tuple[str, ...]:
        context = SimpleNamespace(obj={}, key=key, shape=shape)
        return tuple(dict.fromkeys(picker().get_possible_keys(context)))

    def quick(self: Any, context: Any) -> Any:
        found = context.obj
        if type(found) is not dict or self.response_transformers or "." in context.key:
            return pick(self, context)
        known = names(type(self), context.shape, context.key)
        return next((found[name] for name in known if name in found), None)

    return quick


def _read_models_once() -> None:
    """Share one model loader between moto's services and boto3's sessions, which create one each.

    Each of them would list the 400 services and parse the table of endpoints, a sixth of the time to start.
    """
    for name in ("botocore.session", "moto.core.utils"):
        module: Any = importlib.import_module(name)
        module.create_loader = functools.cache(functools.partial(_make_loader, module.create_loader))


class _Paths(list[str]):
    """The models' directories, without duplicates: every session of boto3 appends the same directory."""

    def append(self, path: str) -> None:
        if path not in self:
            super().append(path)


def _make_loader(create: Callable[..., Any], *arguments: Any) -> Any:
    loader = create(*arguments)
    loader._search_paths = _Paths(loader.search_paths)
    return loader


def _list_regions_quickly() -> None:
    """Look up a service's regions by its endpoint prefix.

    moto asks boto3, which parses the service's whole model to find the prefix: that takes half a second in all.
    """
    from boto3.session import Session

    ask_boto3 = Session.get_available_regions

    def regions(
        self: Any, service_name: str, partition_name: str = "aws", allow_non_regional: bool = False
    ) -> list[str]:
        resolver = self._session._get_internal_component("endpoint_resolver")
        prefix = PREFIXES.get(service_name, service_name)
        found = resolver.get_available_endpoints(prefix, partition_name, allow_non_regional)
        return found or ask_boto3(self, service_name, partition_name, allow_non_regional)

    Session.get_available_regions = regions


class _Offerings(dict[str, list[dict[str, str]]]):
    """The instance types on offer, by region; a region's file is read on first use."""

    def __init__(self, location: str, load: Callable[[str], Any], regions: Iterable[str]) -> None:
        super().__init__()
        self._location, self._load, self._regions = location, load, frozenset(regions)

    def __missing__(self, region: str) -> list[dict[str, str]]:
        if region not in self._regions and region not in _OTHERS:
            raise KeyError(region)
        self[region] = self._offered(region)
        if self._location == "availability-zone":
            self[region] += _local_offerings(region, [offering["InstanceType"] for offering in self[region]])
        for offering in self[region]:
            offering["LocationType"] = self._location
        return self[region]

    def get(self, region: str, default: Any = None) -> Any:
        return self[region] if region in self._regions or region in _OTHERS else default

    def _offered(self, region: str) -> list[dict[str, str]]:
        """Return what a region offers; moto knows nothing of other partitions (docs/aws-behaviour.md 2.79)."""
        if region in self._regions:
            return self._load(f"{_OFFERINGS}/{self._location}/{region}.json")
        like = self._load(f"{_OFFERINGS}/{self._location}/{_LIKE}.json")
        here = [{**one, "Location": one["Location"].replace(_LIKE, region)} for one in like]
        return [one for one in here if one["Location"] in (region, *_zone_names(region))]


def _zone_names(region: str) -> list[str]:
    from localcloud.ec2 import zones  # here, because it imports moto's EC2

    return zones.names(region)


def _local_offerings(region: str, types: list[str]) -> Iterator[dict[str, str]]:
    # Here, because the module of zones imports moto's EC2.
    from localcloud.ec2 import zones

    return zones.local_offerings(region, types)


def _import_ec2() -> None:
    # moto reads the offerings of all regions at import: 0.4 s and 90 MiB, though only one region is used.
    utils: Any = importlib.import_module("moto.utilities.utils")
    load = utils.load_resource
    utils.load_resource = lambda path: [] if "instance_type_offerings" in path else load(path)
    try:
        types: Any = importlib.import_module("moto.ec2.models.instance_types")
    finally:
        utils.load_resource = load
    for location, regions in _offered(Path(types.__file__ or "").parent.parent / "resources"):
        types.INSTANCE_TYPE_OFFERINGS[location] = _Offerings(location, load, regions)


def _offered(resources: Path) -> Iterator[tuple[str, list[str]]]:
    for location in (resources / "instance_type_offerings").iterdir():
        yield location.name, [file.name.split(".")[0] for file in location.iterdir()]
