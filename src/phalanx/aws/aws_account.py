"""An account of AWS as the place of clusters: what differs from the local cloud on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any

from phalanx.aws import buckets, price_list
from phalanx.errors import CloudError
from phalanx.ssh import session_manager

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.aws.model import PrivateBucket
    from phalanx.plan.machine_images import Image
    from phalanx.plan.money import Prices
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec


def _lookups() -> ModuleType:
    from phalanx.aws import lookups  # here, because few commands need what it imports of plan/

    return lookups


class Account:
    """See `phalanx.aws.model.Site`."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        return _lookups().facts(self.aws, spec, ssh_public_key)

    def promised_bit_s(self, instance_type: str) -> float | None:
        return _lookups().promised_bit_s(self.aws, instance_type)

    def image(self, parameter: str) -> Image | None:
        return _lookups().image(self.aws, parameter)

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:
        return price_list.ask(self.aws, types, spot_in)

    def require_bucket(self, bucket: str, make: bool = False) -> None:  # noqa: ARG002 - the protocol's signature
        for code, reason in buckets.refusals(self.aws, bucket):
            raise CloudError(reason, "`aws s3 ls` lists your buckets.", code=code)

    def require_private_bucket(self, bucket: str) -> PrivateBucket:
        return buckets.require_private(self.aws, bucket)

    def ssh_route(self, by_session: bool = False) -> tuple[str, ...]:
        """Return no options for a head with a public address, and a ProxyCommand for one without."""
        if not by_session:
            return ()
        session_manager.require_programs()
        argv = (sys.executable, "-IS", session_manager.__file__, self.aws.region)
        command = " ".join(shlex.quote(word).replace("%", "%%") for word in argv)
        return (f"ProxyCommand {command} %h %p",)

    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]:
        service, region = "fsx" if is_lustre else "efs", self.aws.region
        command = f"aws {service} delete-file-system --region {region} --file-system-id {file_system}"
        return f"{'FSx' if is_lustre else 'EFS'} in {region}", command

    def open_networks(self) -> str:
        return ""

    def accounts_separated(self) -> bool:
        return True

    def require_full_system(self, image: str) -> None:
        """Raise nothing: machines of AWS run every image."""

    def kept_contents(self, image_id: str) -> dict[str, Any]:  # noqa: ARG002 - the local cloud needs it
        """Return nothing: nobody sees the files of an AMI."""
        return {}

    def is_off(self) -> bool:
        return False

    def stop_if_idle(self) -> None:
        """Do nothing: on AWS nothing runs beside the clusters."""
