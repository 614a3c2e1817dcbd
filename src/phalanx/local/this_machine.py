"""This machine as the place of clusters: AWS's API as the local cloud serves it, and the other differences."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

from phalanx.aws import buckets, sessions
from phalanx.aws.aws import Aws
from phalanx.aws.aws_account import Account
from phalanx.aws.model import PrivateBucket
from phalanx.aws.refusals import is_gone
from phalanx.errors import CloudError, CloudUnreachable, LocalCloudError
from phalanx.local import endpoint, images
from phalanx.plan.machine_images import is_ami
from phalanx.plan.money import Prices

if TYPE_CHECKING:
    from phalanx.plan.machine_images import Image
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


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


class LocalAws(Aws):
    """The local cloud's API. Every method raises NotRunning when nothing has started it."""

    # Each poll costs the local cloud 10 ms of CPU, which its nodes need while they boot.
    poll_interval_s = 0.15
    retry_mode = "standard"

    def __init__(self, region: str, name: str = "local") -> None:
        super().__init__(region, name)

    def attempts(self) -> int:
        """Two: it runs on this machine, so that more don't help. Only bad weather throttles calls."""
        is_calm = endpoint.status(self.endpoint)["weather"]["seed"] is None
        return min(2, super().attempts()) if is_calm else super().attempts()

    @cached_property
    def endpoint(self) -> endpoint.Endpoint:
        """The local cloud's address, once it has started. Raises NotRunning when nothing has started it."""
        return endpoint.wait()

    def session(self) -> sessions.Session:
        """Return a session of the administrator, or of whoever's keys for this local cloud the shell has.

        Nothing else of the shell's settings of AWS matters, nor of the user's ~/.aws.
        """
        if os.environ.get("AWS_ENDPOINT_URL") == self.endpoint.url and all(os.environ.get(name) for name in _KEYS):
            return sessions.apart(*(os.environ[name] for name in _KEYS))
        return sessions.apart(self.endpoint.access_key_id, self.endpoint.secret_access_key)

    def endpoint_url(self) -> str | None:
        return self.endpoint.url

    def _explained(self, error: CloudError) -> CloudError:
        if error.code == "unknown-credentials":
            endpoint.require_region(self.region)
        return super()._explained(error)

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make a call as to AWS. Raises NotRunning when another command has stopped the local cloud."""
        try:
            return super().call(service, operation, **arguments)
        except CloudError as error:
            if isinstance(error, CloudUnreachable):
                endpoint.require_alive(self.endpoint)
            # That something does not exist is an answer, and `down` asks for dozens of things.
            if not is_gone(error.__cause__):
                error.hint = error.hint or endpoint.remedy(self.endpoint)
            raise
