"""This machine as the place of clusters: what differs where the local cloud runs them."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from phalanx.aws import buckets
from phalanx.aws.aws_account import Account
from phalanx.errors import LocalCloudError
from phalanx.local import endpoint, images
from phalanx.objects.sent_document import PrivateBucket
from phalanx.plan.machine_images import is_ami
from phalanx.plan.money import Prices

if TYPE_CHECKING:
    from phalanx.local.local_aws import LocalAws
    from phalanx.plan.machine_images import Image
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec


class ThisMachine(Account):
    """See `phalanx.aws.model.Site`."""

    def __init__(self, aws: LocalAws) -> None:
        super().__init__(aws)
        self.local = aws

    def ssh_route(self, by_session: bool = False) -> tuple[str, ...]:
        """Reach the head through the local cloud, which passes a connected socket to ssh."""
        here = self.local.endpoint
        program, *arguments = (shlex.quote(argument).replace("%", "%%") for argument in here.dial)
        *options, socket = arguments
        # With ControlPersist, ssh shows nothing of what its ProxyCommand writes.
        command = " ".join((program, *options, '--errors "$PHALANX_PROXY_ERRORS"', socket))
        return (f"ProxyCommand {command} {'ssm/%h' if by_session else '%h'} %p", *here.ssh_options)

    def promised_bit_s(self, instance_type: str) -> float | None:  # noqa: ARG002 - of the protocol
        """Return None: links between nodes here are not those of the type."""
        return None

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:  # noqa: ARG002 - of the protocol
        """Return the table's: nothing costs anything here."""
        return Prices()

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        """Return facts from the tables where they have the type, so that `plan` needs no running local cloud."""
        from phalanx.local import facts_here  # here, because only a plan needs all that it imports

        return facts_here.look_up(self.aws, spec, ssh_public_key)

    def require_full_system(self, image: str) -> None:
        """Raise LocalCloudError if a local cloud runs that can't give a node's systemd a control group."""
        running = endpoint.find_process()
        if running is not None and running.no_cgroup:
            reason, _, command = running.no_cgroup.partition("\n")
            raise LocalCloudError(f"image: {image} runs systemd, and {reason}", command, code="no-cgroup")

    def image(self, parameter: str) -> Image | None:
        """Return an image that Image Builder has made here; the others are known by their parameters."""
        return super().image(parameter) if is_ami(parameter) else None

    def kept_contents(self, image_id: str) -> dict[str, Any]:
        """Return what an image that Image Builder has made here contains."""
        found = next((one for one in images.built() if one.image_id == image_id), None)
        return images.contents(found) if found else {}

    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]:
        command = f"aws fsx delete-file-system --file-system-id {file_system}"
        place = next((one["path"] for one in endpoint.kept_file_systems() if one["id"] == file_system), "")
        return place, command if is_lustre else f"phalanx local delete {file_system}"

    def require_bucket(self, bucket: str, make: bool = False) -> None:
        """Require the bucket, or make it: a local cloud that has just started has none."""
        endpoint.begin()
        if make and any(buckets.refusals(self.aws, bucket)):
            self.aws.call("s3", "create_bucket", Bucket=bucket)
        super().require_bucket(bucket)

    def require_private_bucket(self, bucket: str) -> PrivateBucket:
        endpoint.begin()
        return super().require_private_bucket(bucket)

    def open_networks(self) -> str:
        return self.local.endpoint.open_networks

    def accounts_separated(self) -> bool:
        return self.local.endpoint.accounts_separated

    def is_off(self) -> bool:
        return endpoint.find() is None

    def stop_if_idle(self) -> None:
        try:
            endpoint.stop()
        except endpoint.StacksLeft:
            pass  # other clusters need it
