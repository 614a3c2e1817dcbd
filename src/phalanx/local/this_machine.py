"""This machine as the place of clusters: what differs where the local cloud runs them."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.aws import file_systems
from phalanx.aws.aws_account import Account
from phalanx.aws.model import SshRoute
from phalanx.errors import LocalCloudError
from phalanx.local import endpoint, images
from phalanx.node.settings import ON_AWS, Patience
from phalanx.objects.sent_document import PrivateBucket
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.spec.spec_emr import logs_bucket
from phalanx.state_files import known

if TYPE_CHECKING:
    from phalanx.local.local_aws import LocalAws
    from phalanx.plan.machine_images import Image
    from phalanx.plan.machine_room import Shortage
    from phalanx.plan.money import Prices
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec


# China, GovCloud and the European Sovereign Cloud, whose ARNs begin differently (docs/aws-behaviour.md 6.1).
_OTHER_PARTITIONS = ("cn-", "us-gov-", "eusc-")
# Any machine has room for so few.
_FEW, _FEW_FULL = 17, 3


class ThisMachine(Account):
    """See `phalanx.aws.model.Site`."""

    def __init__(self, aws: LocalAws) -> None:
        super().__init__(aws)
        self.local = aws

    def ssh_route(self, by_session: bool = False) -> SshRoute:
        """Reach the head through the local cloud, which passes a connected socket to ssh."""
        here = self.local.endpoint
        program, *arguments = (shlex.quote(argument).replace("%", "%%") for argument in here.dial)
        *options, socket = arguments
        # With ControlPersist, ssh shows nothing of what its ProxyCommand writes.
        command = " ".join((program, *options, '--errors "$PHALANX_PROXY_ERRORS"', socket))
        return SshRoute((f"ProxyCommand {command} {'ssm/%h' if by_session else '%h'} %p", *here.ssh_options))

    def promised_bit_s(self, instance_type: str) -> float | None:  # noqa: ARG002 - of the protocol
        """Return None: links between nodes here are not those of the type."""
        return None

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:  # noqa: ARG002 - of the protocol
        """Return the table's: nothing costs anything here."""
        from phalanx.plan.money import Prices

        return Prices()

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        """Return facts from the table of types if it has the type, so that `plan` needs no running local cloud."""
        from phalanx.plan import each_type
        from phalanx.plan.plan import make_plan

        return each_type.look_up(spec, lambda one: self._of_type(one, ssh_public_key), make_plan)

    def _of_type(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        from phalanx.plan.machine_images import is_of_recipe
        from phalanx.plan.plan import offline_facts

        if spec.region.startswith(_OTHER_PARTITIONS):
            raise LocalCloudError(
                f"the local cloud stands in for AWS's commercial regions, and {spec.region} is in another partition",
                "Choose another `region:`. With `cloud: aws`, `phalanx plan` and `template` serve it.",
                code="other-partition",
            )
        name = images.local_name(spec.image)
        if name:
            images.require(spec.image or "", name)
        if name or is_of_recipe(spec.image):
            self.require_full_system(spec.image or "")
        from_tables = offline_facts(spec, ssh_public_key)
        if from_tables is not None and not _has_to_ask(spec):
            return self._here(spec, replace(from_tables, kept_file_system=self._kept(spec)))
        endpoint.begin()
        if spec.emr:
            self.require_bucket(logs_bucket(spec.emr), make=True)
        return self._here(spec, super().facts(spec, ssh_public_key))

    def _kept(self, spec: ClusterSpec) -> str:
        """Return the cluster's kept file system: while nothing runs, all are; else a stack may use it."""
        if endpoint.find():
            return file_systems.kept(self.aws, spec.name)
        kept = endpoint.kept_file_systems()
        own = (one["id"] for one in kept if (one["region"], one["tags"].get(CLUSTER_TAG)) == (spec.region, spec.name))
        return next(own, "")

    def _here(self, spec: ClusterSpec, facts: Facts) -> Facts:
        """Add what depends on this machine: stand-ins for GPUs, the room for a new cluster, and the weather's speed."""
        stand_ins = endpoint.stand_ins() if facts.gpus else 0
        speed = endpoint.weather_speed()
        patience = Patience(*(wait_s / speed for wait_s in ON_AWS))
        return replace(facts, stand_ins=stand_ins, shortages=self._shortages(spec), patience=patience)

    def _shortages(self, spec: ClusterSpec) -> tuple[Shortage, ...]:
        from phalanx.plan.machine_images import is_ami, is_of_recipe
        from phalanx.plan.machine_room import Shortage

        is_full = bool(images.local_name(spec.image)) or is_of_recipe(spec.image) or is_ami(spec.image)
        # A cluster that exists has its nodes already. The question takes as long as the rest of `plan`.
        if spec.name in known() or spec.nodes < (_FEW_FULL if is_full else _FEW):
            return ()
        return tuple(Shortage(**one) for one in endpoint.shortages(spec.nodes, is_full))

    def require_full_system(self, image: str) -> None:
        """Raise LocalCloudError if a local cloud runs that can't give a node's systemd a control group."""
        running = endpoint.find_process()
        if running is not None and running.no_cgroup:
            reason, _, command = running.no_cgroup.partition("\n")
            raise LocalCloudError(f"image: {image} runs systemd, and {reason}", command, code="no-cgroup")

    def image(self, parameter: str) -> Image | None:
        """Return an image that Image Builder has made here; the others are known by their parameters."""
        from phalanx.plan.machine_images import is_ami

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
        from phalanx.aws import buckets

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


def _has_to_ask(spec: ClusterSpec) -> bool:
    """Whether the spec names things that may not exist, or wants what EC2 has to say of its type."""
    from phalanx.plan.machine_images import is_ami, is_of_recipe
    from phalanx.spec.spec_checks import AUTO

    named = (spec.file_system, spec.policies, spec.permissions_boundary, spec.placement, spec.reservation)
    asks = spec.efa == "yes" or AUTO in spec.ssh_sources or is_ami(spec.image) or is_of_recipe(spec.image)
    return any((*named, spec.data, spec.subnets, spec.emr)) or asks
