"""Machine images: which one a plan uses, what it contains, and which instance types it can serve. Pure: no requests.

What EC2 says about an image decides; the table (data/images.json) adds what EC2 doesn't know, such as its Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.spec.makers import EMR, maker_of
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import OF_RECIPE
from phalanx.spec.spec_emr import ROOT_GIB

# GPUs, Trainium, Inferentia, Gaudi, video cards and FPGAs.
_ACCELERATED = re.compile(r"(p|g|gr|trn|inf|dl|vt|f)\d")
_PARTS = {"venv": "Python's venv", "nfs": "an NFS client", "mpi": "MPI", "gpus": "drivers for GPUs"}

# What a node's boot installs where it is missing (phalanx.node.packages).
_PACKAGES = {
    "venv": ["python3-venv"],
    "nfs": ["nfs-common"],
    "mpi": ["openmpi-bin", "libgomp1", "libquadmath0"],
}
_ONLY_ON_X86 = "libquadmath0"
_WITH_APT = ("Debian", "Ubuntu")
# What `phalanx image build` has installed, whatever the base lacks.
_OF_EVERY_RECIPE = {"venv": True, "nfs": True, "mpi": "/usr/bin"}


def is_ami(image: str | None) -> bool:
    """Whether an image is named by its id, which is different in every region."""
    return bool(image) and str(image).startswith("ami-")


def is_of_recipe(image: str | None) -> bool:
    """Whether an image is named by the recipe that it was made from."""
    return bool(image) and str(image).startswith(OF_RECIPE)


@dataclass(frozen=True)
class Image:
    """An image as EC2 describes it (DescribeImages)."""

    image_id: str
    name: str
    architecture: str
    root_device: str
    size_gib: int
    recipe: str = ""
    """What it was made from, such as torch@2026.1122.905; "" for another image."""
    base: str = ""
    """The alias of the image below it, if it was made from a recipe."""


def is_accelerated(instance_type: str) -> bool:
    """Whether a type has accelerators, of whatever maker, by the name of its family."""
    return bool(_ACCELERATED.match(instance_type))


@dataclass(frozen=True)
class ImageChoice:
    """The image for nodes of the spec's type, which has these GPUs. `image` is None if EC2 was not asked."""

    spec: ClusterSpec
    gpus: int
    architecture: str
    image: Image | None = None

    @property
    def alias(self) -> str:
        """The spec's alias or parameter path, or the alias of the default for the type."""
        if self.spec.image:
            return self.spec.image
        default = table("images")["default"]
        if maker_of(self.spec.cloud) is EMR:
            return default["emr_gpu"] if self.gpus else default["emr"]
        return default.get(f"gpu_{self.architecture}", default["gpu"]) if self.gpus else default["cpu"]

    @property
    def parameter(self) -> str:
        """The SSM parameter of the image: the spec's own path, or its alias's for this architecture; or the AMI id."""
        entry = _table().get(self.alias)
        if entry is None:
            return self.image.image_id if self.image and self.image.recipe else self.alias
        arch = {"x86_64": "amd64"}.get(self.architecture, self.architecture)
        return entry["parameter"].format(cpu=self.architecture, arch=arch)

    @property
    def contents(self) -> dict[str, Any] | None:
        """The table's row for the alias, or for an image of that name; None for an unknown image."""
        if self.alias in _table():
            return _table()[self.alias]
        if self.image and self.image.base in _table():
            return {**_table()[self.image.base], **_OF_EVERY_RECIPE}
        name = self.image.name if self.image else ""
        return next((row for _, row in _on_aws() if _has_name(row, name)), None)

    @property
    def pythons(self) -> tuple[str, ...]:
        """The versions of Python on the image, such as "3.12"; empty if they are not known."""
        return tuple(self.contents["pythons"]) if self.contents else ()

    @property
    def root_device(self) -> str:
        """The name of the root device, as the image maps it."""
        if self.image and self.image.root_device:
            return self.image.root_device
        if self.contents:
            return self.contents["root_device"]
        amazon = any(word in self.alias for word in ("amazon-linux", "al2023", "amzn", "neuron"))
        return "/dev/xvda" if amazon else "/dev/sda1"

    @property
    def packages(self) -> list[str]:
        """The packages that a node's boot installs on this image; empty if its contents are not known."""
        if not self.contents or not self.has_apt:
            return []
        lacking = [name for part, names in _PACKAGES.items() if not self.contents[part] for name in names]
        return [name for name in lacking if name != _ONLY_ON_X86 or self.architecture == "x86_64"]

    @property
    def has_apt(self) -> bool:
        """Whether it is known that nodes install packages with apt."""
        return bool(self.contents) and str((self.contents or {})["distribution"]).startswith(_WITH_APT)

    @property
    def complete(self) -> list[str]:
        """The aliases of images on which a node's boot installs nothing."""
        suited = [(alias, row) for alias, row in _on_aws() if self._suits(row)]
        return [alias for alias, row in suited if all(row[part] for part in _PACKAGES)]

    def describe(self) -> str:
        """Return what is known about the image, in words."""
        parts = _described(self.contents) if self.contents else []
        if self.image:
            disk = f"root disk of {self.image.size_gib} GiB at {self.image.root_device}"
            parts += [disk, f"{self.image.image_id} ({self.image.name})"]
        if self.image and self.image.recipe:
            parts.insert(0, f"the recipe {self.image.recipe}")
        return "; ".join(parts) or "not known"

    def refuse_unsuited(self) -> None:
        """Raise SpecError if nodes of this type can't run the image, or can't use their GPUs; name images that can."""
        if self.contents and "local" in self.contents:
            raise SpecError(
                f"image: {self.alias} is for local clusters only, and this one is in {self.spec.cloud}",
                "Choose another `image`, or leave it out for the default.",
                code="image-unsuited",
            )
        made_for = self._made_for()
        if made_for and self.architecture not in made_for:
            raise SpecError(
                f"image: {self.alias} is for {' and '.join(made_for)}, and {self.spec.type} is {self.architecture}",
                self._suggestion(),
                code="other-architecture",
            )
        if self._lacks_driver():
            raise SpecError(
                f"image: {self.alias} has no driver for the GPUs of {self.spec.type}",
                self._suggestion(),
                code="no-gpu-driver",
            )

    def refuse_unknown_recipe(self) -> None:
        """Raise SpecError for an image that is named by its recipe if nobody has looked it up."""
        if is_of_recipe(self.spec.image) and not self.image:
            raise SpecError(
                f"image: {self.spec.image} has to be looked up in the cloud",
                "Leave --offline out, or write the AMI's id, which `phalanx image ls` shows.",
                code="cloud-not-asked",
            )

    def refuse_for_emr(self) -> None:
        """Raise SpecError for an image that EMR does not start: it takes only Amazon Linux (aws-behaviour 7.1)."""
        if maker_of(self.spec.cloud) is not EMR:
            return
        known = self.contents["distribution"] if self.contents else self.image.name if self.image else ""
        if (
            known
            and not is_of_recipe(self.spec.image)
            and not re.search("amazon.?linux|al2023|amzn", known, re.IGNORECASE)
        ):
            raise SpecError(
                f"image: {self.alias} is {known}, and EMR starts Amazon Linux only",
                "Write amazon-linux-2023, dlami-base-amazon-linux-2023, or your own image that was made from one.",
                code="image-unsuited",
            )
        if self.image and self.image.size_gib > ROOT_GIB[1]:
            raise SpecError(
                f"image: {self.alias} has {self.image.size_gib} GiB, and EMR's root volume at most {ROOT_GIB[1]}",
                "Choose a smaller image.",
                code="disk-size",
            )

    def refuse_small_disk(self) -> None:
        """Raise SpecError if the image is larger than the disk that the spec wants (docs/aws-behaviour.md 2.34)."""
        wanted = (self.spec.disk or {}).get("size_gib")
        if self.image and wanted and wanted < self.image.size_gib:
            raise SpecError(
                f"disk: size_gib is {wanted}, and the disk of {self.alias} has {self.image.size_gib} GiB",
                f"Write at least {self.image.size_gib}, or leave it out.",
                code="disk-size",
            )

    def refuse_without_tls(self) -> None:
        """Raise SpecError if no client of EFS that speaks TLS can be had for the image (docs/aws-behaviour.md 4.23)."""
        if self.contents and self.has_apt:
            raise SpecError(
                f"tls: {self.alias} has no amazon-efs-utils, and {self.contents['distribution']} has no such package",
                "Choose an image of Amazon Linux, such as amazon-linux-2023, or your own image that has it.",
                code="image-lacks",
            )

    def refuse_without_lustre(self) -> None:
        """Raise SpecError if no client of Lustre can be had for the image's system (docs/aws-behaviour.md 4.7)."""
        if self.contents and not self._lustre_from:
            raise SpecError(
                f"storage: FSx has no client of Lustre for {self.contents['distribution']} ({self.alias})",
                "Choose an `image` with Amazon Linux 2023 or Ubuntu, or another `storage`.",
                code="image-lacks",
            )

    def warnings_of_lustre(self) -> Iterator[str]:
        """Yield what is not known of Lustre's client on the image."""
        if self.contents is None:
            yield f"it is not known whether {self.alias} has Lustre's client; if not, boot installs it with dnf or apt"
        elif self._lustre_from == "FSx":
            yield (
                f"boot installs Lustre's client on {self.alias} from FSx's repository, which has it for some kernels "
                f"only: the nodes fail to start if the image's is newer (surely with it: "
                f"{', '.join(table('images')['lustre']['on_image'])})"
            )

    @property
    def has_lustre(self) -> bool:
        """Whether the image has Lustre's client, or is not known."""
        return self.contents is None or self._lustre_from == "image"

    @property
    def _lustre_from(self) -> str:
        """Where Lustre's client comes from: the image, its distribution, or FSx; "" from nowhere."""
        rows, distribution = table("images")["lustre"], self.contents["distribution"] if self.contents else ""
        if self.alias in rows["on_image"] or (self.image and self.image.base in rows["on_image"]):
            return "image"
        return next((name for name, systems in rows["from"].items() if distribution in systems), "")

    def refuse_without_driver(self) -> None:
        """Raise SpecError for accelerators that are not NVIDIA's GPUs: no image that phalanx names has their driver."""
        if self.spec.image or self.gpus or not is_accelerated(self.spec.type):
            return
        raise SpecError(
            f"image: {self.spec.type} has accelerators that are not NVIDIA's GPUs, whose driver no default image has",
            "Name an image that has it. AWS's for Trainium and Inferentia are parameters: `aws ssm "
            "get-parameters-by-path --recursive --path /aws/service/neuron/dlami`.",
            code="no-accelerator-driver",
        )

    def warnings(self) -> Iterator[str]:
        """Yield what may be missing on the image, one sentence each."""
        if self.contents is None:
            yield f"what {self.alias} contains is not known: it must have Python 3.9 or newer, sshd and cloud-init"
        elif self.gpus and not self.contents["gpus"]:
            yield f"{self.alias} has no driver for GPUs: the boot script must install one"
        elif self.gpus and self._family not in self.contents["gpus"]:
            yield f"it is not known whether the driver of {self.alias} supports {self.spec.type}"

    @property
    def _family(self) -> str:
        return self.spec.type.split(".")[0]

    def _made_for(self) -> list[str]:
        if self.image:
            return [self.image.architecture]
        return self.contents["architectures"] if self.contents else []

    def _lacks_driver(self) -> bool:
        """Whether the GPUs can't be used. An image without any driver may get one from the boot script."""
        if not self.gpus or not self.contents:
            return False
        if not self.contents["gpus"]:
            return not self.spec.boot
        return self._family in table("images")["needs_proprietary_driver"]

    def _suggestion(self) -> str:
        able = [alias for alias, row in _on_aws() if self._suits(row)]
        if able:
            return f"Images that can: {', '.join(able)}."
        if self._family in table("images")["needs_proprietary_driver"]:
            return (
                "AWS's images have NVIDIA's open driver, which begins with the Turing generation. Choose a newer type, "
                "such as g4dn.xlarge, or the SSM parameter of an image of your own with NVIDIA's proprietary driver."
            )
        return "Choose the SSM parameter of an image of your own."

    def _suits(self, row: dict[str, Any]) -> bool:
        return self.architecture in row["architectures"] and (not self.gpus or self._family in row["gpus"])


def with_python(suits: Callable[[str], bool]) -> list[str]:
    """Return the aliases of the images that have a suitable version of Python."""
    return [alias for alias, row in _on_aws() if any(map(suits, row["pythons"]))]


def admin_user_of(*named: str) -> str:
    """Return the user that may use sudo, from an image's name or parameter (docs/aws-behaviour.md 5.8)."""
    words = " ".join(named).lower()
    users = table("images")["users"]
    return next((user for word, user in users.items() if word in words), table("images")["other_user"])


def _described(contents: dict[str, Any]) -> list[str]:
    lacks = [words for key, words in _PARTS.items() if not contents[key]]
    system = f"{contents['distribution']} with Python {' and '.join(contents['pythons'])}"
    return [system, f"without {', '.join(lacks)}"] if lacks else [system]


def _has_name(row: dict[str, Any], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in row["names"])


def _on_aws() -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of images that AWS has; only the local cloud has the others."""
    return [(alias, row) for alias, row in _table().items() if "local" not in row]


def _table() -> dict[str, Any]:
    return table("images")["images"]
