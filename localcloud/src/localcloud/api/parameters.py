"""The public Systems Manager parameters that name images: all known families, with one image per architecture."""

from __future__ import annotations

import re
from typing import Any

from localcloud.api.moto_setup import AMAZON_LINUX, AMAZON_LINUX_FOR_TRAINING, FULL_IMAGES, IMAGES
from localcloud.iam.errors import NOT_SERVED

# docs/aws-behaviour.md 5.1–5.4. As in AWS, another name does not exist, unless it looks like one that only AWS has.
_OS = r"(?:amazon-linux-2023|ubuntu-22\.04|ubuntu-24\.04)"
FAMILIES = tuple(
    re.compile(pattern)
    for pattern in (
        r"/aws/service/canonical/ubuntu/server/(?:22\.04|24\.04)/stable/current/(?P<cpu>amd64|arm64)/hvm/ebs-gp[23]/ami-id",
        r"/aws/service/ami-amazon-linux-latest/al2023-ami-(?:minimal-)?kernel-(?:default|6\.\d+)-(?P<cpu>x86_64|arm64)",
        rf"/aws/service/deeplearning/ami/(?P<cpu>x86_64|arm64)/base-oss-nvidia-driver-gpu-{_OS}/latest/ami-id",
        rf"/aws/service/deeplearning/ami/(?P<cpu>x86_64|arm64)/oss-nvidia-driver-gpu-pytorch-\d+\.\d+-{_OS}/latest/ami-id",
        r"/aws/service/neuron/dlami/base/(?P<cpu>)amazon-linux-2023/latest/image_id",
    )
)


_OF_AWS_ALONE = re.compile(
    r"/aws/service/(?:ami-amazon-linux-latest/(?:amzn2?|al2023)-ami-|ami-windows-latest/|bottlerocket/|canonical/ubuntu/"
    r"|debian/|ecs/optimized-ami/|eks/optimized-ami/|freebsd/|neuron/dlami/|suse/).+"
)

# Ours, for the images that are built on this machine.
_FULL = "/localcloud/images/"
_PUBLIC = ("/aws/", _FULL)


def image_id(name: str) -> str | None:
    """Return the image that a public parameter names, or None when there is no such parameter."""
    if name.startswith(_FULL):
        return FULL_IMAGES.get(name.removeprefix(_FULL))
    for family in FAMILIES:
        found = family.fullmatch(name)
        if found:
            return _images(name)["arm64" if found["cpu"] == "arm64" else "x86_64"]
    return None


def not_served(name: str) -> str:
    """Return why the local cloud has no such image although AWS may have it; "" for another name."""
    is_of_aws = bool(_OF_AWS_ALONE.fullmatch(name)) and image_id(name) is None
    return f"The local cloud does not serve the image {name}; see docs/templates.md." if is_of_aws else ""


def _images(name: str) -> dict[str, str]:
    """Return the images of a parameter's operating system, by architecture."""
    if "ami-amazon-linux-latest" in name:
        return AMAZON_LINUX
    return AMAZON_LINUX_FOR_TRAINING if "amazon-linux-2023" in name else IMAGES


def install() -> None:
    """Add the public parameters to moto's Systems Manager."""
    from moto.core.exceptions import JsonRESTError
    from moto.core.utils import utcnow
    from moto.ssm.models import Parameter, ParameterDict, SimpleSystemManagerBackend

    def load(self: Any, key: str) -> None:
        value = image_id(str(key or ""))
        if reason := not_served(str(key or "")):
            raise JsonRESTError(NOT_SERVED, reason)
        if value is not None and not dict.__contains__(self, key):
            parameter = Parameter(
                account_id=self.account_id,
                name=key,
                value=value,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=utcnow(),
                version=1,
                data_type="aws:ec2:image",
            )
            dict.__setitem__(self, key, [parameter])

    everything = SimpleSystemManagerBackend.describe_parameters

    def describe_parameters(self: Any, *arguments: Any) -> Any:
        """List the account's own parameters: DescribeParameters leaves out public ones."""
        return [one for one in everything(self, *arguments) if not one.name.startswith(_PUBLIC)]

    ParameterDict._check_loading_status = load
    setattr(SimpleSystemManagerBackend, "describe_parameters", describe_parameters)  # noqa: B010 (pyright knows the original)


def value(account: str, region: str, name: str) -> str:
    """Return the value of a parameter, public or the account's own; raise KeyError when there is none."""
    from moto.ssm.models import ssm_backends

    parameters = ssm_backends[account][region]._parameters
    if not_served(name) or name not in parameters:
        raise KeyError(name)
    return parameters[name][-1].value
