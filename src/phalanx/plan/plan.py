"""Turn a spec and the facts of its cloud into a Plan: sizes, zone, image, cost. Pure: no requests."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from phalanx.data import table
from phalanx.errors import Mistakes, SpecError
from phalanx.plan import (
    capacity,
    each_type,
    existing_vpc,
    lustre_storage,
    machine_room,
    money,
    mount_targets,
    network_cards,
    subnets,
    vpc_endpoints,
)
from phalanx.plan.facts import Facts, HeadFacts
from phalanx.plan.machine_images import ImageChoice
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.quotas import of as quotas_of
from phalanx.plan.quotas import refuse_exceeded
from phalanx.plan.subnets import NewNetwork
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import ANYWHERE, AUTO, EVERYWHERE
from phalanx.spec.spec_emr import ROOT_GIB
from phalanx.spec.spec_storage import EFS, LUSTRE


@dataclass(frozen=True)
class Plan:
    """What `up` creates. The cost is an estimate without storage and traffic; None if the type's price is unknown."""

    spec: ClusterSpec
    facts: Facts
    zone: str
    image_parameter: str
    root_device: str
    slots: int
    cost_usd_per_hour: float | None
    limits: money.Limits
    alternatives: tuple[Plan, ...] = ()
    """The plans for the spec's other types."""

    @property
    def stopped_usd_per_hour(self) -> float | None:
        """What is paid while the nodes are stopped, without data; None if nothing stops them."""
        if not (self.limits.lease_s or self.limits.idle_s) or is_local(self.spec.cloud):
            return None
        return money.usd_per_hour(self.spec, 0, self.facts.prices, len(self.endpoints))

    @property
    def vcpus(self) -> int:
        return self.facts.vcpus

    @property
    def gpus(self) -> int:
        """How many GPUs each node finds."""
        return gpus_found(self.facts)

    @property
    def deployment(self) -> int:
        return self.facts.deployment

    @property
    def storage(self) -> str:
        """What serves the shared directory: efs, lustre, or the head."""
        return self.spec.storage or EFS

    @property
    def uses_efs(self) -> bool:
        return self.storage == EFS

    @property
    def uses_lustre(self) -> bool:
        return self.storage == LUSTRE

    @property
    def makes_lustre(self) -> bool:
        return lustre_storage.is_made(self.spec)

    @property
    def file_system(self) -> str:
        """The existing EFS file system to use; "" if a new one is created, or none is needed."""
        if not self.uses_efs:
            return ""
        return self.spec.file_system or self.facts.kept_file_system

    @property
    def mount_target(self) -> MountTarget | None:
        """The mount target of the user's file system that the nodes use; None if the stack makes one."""
        return mount_targets.in_zone(self.facts.mount_targets, self.zone)

    @property
    def network(self) -> NewNetwork:
        """The blocks of the VPC that is made, and of its subnets."""
        return subnets.new(cidr_of(self.spec), len(vpc_endpoints.interfaces(self.spec)))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The services whose interface endpoints the stack makes."""
        return vpc_endpoints.made(self.spec, self.facts.vpc)

    @property
    def is_offline(self) -> bool:
        """Whether nodes have no way to the internet, as far as is known."""
        return vpc_endpoints.is_offline(self.spec, self.facts.vpc)

    @property
    def networks(self) -> tuple[str, ...]:
        """Where the nodes' addresses are, in CIDR notation."""
        return self.facts.vpc.networks if self.facts.vpc else (self.network.vpc,)

    @property
    def ssh_networks(self) -> tuple[str, ...]:
        """The networks that may reach the head by ssh, in CIDR notation; "", the first, for one that is not known."""
        own = f"{self.facts.own_address}/32" if self.facts.own_address else ""
        networks = dict.fromkeys({AUTO: own, ANYWHERE: EVERYWHERE}.get(one, one) for one in self.spec.ssh_sources)
        return tuple(sorted(networks, key=bool))

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones to try, by preference: those of the spec that offer the type, or the one that was chosen."""
        if not self.spec.zones or self.facts.reservation:
            return (self.zone,)
        return tuple(zone for zone in self.spec.zones if zone in self.facts.zones)

    @property
    def throughput(self) -> str:
        """The throughput mode of a new file system: bursting or elastic."""
        return self.spec.throughput or "bursting"

    @property
    def root_gib(self) -> int:
        """The size of a root volume for which the spec has none, of a service that does not take the image's."""
        return max(ROOT_GIB[0], self.facts.image.size_gib if self.facts.image else 0)

    def trains(self, role: str) -> bool:
        """Whether nodes of a role, head or worker, run processes of jobs."""
        return role.lower() != "head" or not self.spec.head

    def needs_public_address(self, role: str) -> bool:
        """Whether a node has to ask for one: an existing subnet with an internet gateway may give none itself."""
        vpc = self.facts.vpc
        if self.spec.is_private:
            return False
        return vpc is not None and (role.lower() == "head" or vpc.workers.way_out == existing_vpc.INTERNET)

    def parameters(self) -> dict[str, str]:
        """Return the parameters that are sent with the template, as they may differ for one file."""
        sent = {"SshPublicKey": self.facts.ssh_public_key, "FileSystemId": self.file_system}
        return {name: value for name, value in sent.items() if value}


def make_plan(spec: ClusterSpec, facts: Facts) -> Plan:
    """Decide all that the spec leaves open. Raises SpecError if the cloud can't provide it with one of the types."""
    if not facts.others:
        return _plan_of_type(spec, facts)
    first, *others = each_type.judged(spec, each_type.pairs(spec, facts), _plan_of_type)
    return replace(first, spec=spec, facts=facts, alternatives=tuple(others))


def _plan_of_type(spec: ClusterSpec, facts: Facts) -> Plan:
    if spec.storage not in (None, EFS):
        facts = replace(facts, kept_file_system="")
    image = image_choice(spec, facts)
    _refuse_impossible(spec, facts, image)
    return Plan(
        spec=spec,
        facts=facts,
        zone=_zone(spec, facts),
        image_parameter=image.parameter,
        root_device=image.root_device,
        slots=spec.slots or gpus_found(facts) or facts.vcpus,
        cost_usd_per_hour=money.usd_per_hour(spec, spec.nodes, facts.prices, _endpoints(spec, facts)),
        limits=_limits(spec, facts),
    )


def _endpoints(spec: ClusterSpec, facts: Facts) -> int:
    return len(vpc_endpoints.made(spec, facts.vpc))


def _limits(spec: ClusterSpec, facts: Facts) -> money.Limits:
    return money.limits(spec, facts.gpus, prices=facts.prices, endpoints=_endpoints(spec, facts))


def cidr_of(spec: ClusterSpec) -> str:
    """Return the block of the VPC that is made."""
    return (spec.network or {}).get("cidr", subnets.DEFAULT)


def gpus_found(facts: Facts) -> int:
    """Return how many GPUs a node finds: in the local cloud the stand-ins."""
    return facts.gpus if facts.stand_ins is None else facts.stand_ins


def image_choice(spec: ClusterSpec, facts: Facts) -> ImageChoice:
    """Return the image for this type of nodes, with what EC2 says about it."""
    return ImageChoice(spec, facts.gpus, facts.architecture, facts.image)


def known_sizes(instance_type: str) -> dict[str, Any] | None:
    """Return what the table says of a type, by the names of Facts; None for an unknown one."""
    known = table("instance_types")
    if instance_type not in known["types"]:
        return None
    row = {**known["usual"], **known["types"][instance_type]}
    cards = network_cards.listed(row.pop("efa"))
    return {**row, "cards": cards, "strategies": tuple(row["strategies"])}


def unknown_type_hint(instance_type: str, cloud: str) -> str:
    """Return a hint for a type that the cloud does not have: its successors, similar ones, or where to find them."""
    known = table("instance_types")
    if instance_type.partition(".")[0] in known["retired"]:
        others = "g6.xlarge has one GPU, g6.12xlarge four, g6.48xlarge and p4d.24xlarge eight"
        return f"AWS has retired G2, G3, P2 and P3: {others}."
    near = difflib.get_close_matches(instance_type, known["types"], n=2, cutoff=0.75)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    if is_local(cloud):
        return "The local cloud has EC2's types, such as c5.large."
    return "`aws ec2 describe-instance-types` lists them."


def offline_facts(spec: ClusterSpec, ssh_public_key: str = "", not_asked: str = "as requested") -> Facts | None:
    """Return facts without a request: sizes from the table, and the zones that the spec names, or the region's zone a.

    Returns None for an unknown type. What the spec names in the cloud is taken to be as usual: `not_checked` lists it.
    """
    first, *others = (_offline(one, ssh_public_key, not_asked) for one in each_type.single(spec))
    known = [facts for facts in others if facts]
    return replace(first, others=tuple(known)) if first and len(known) == len(others) else None


def _offline(spec: ClusterSpec, ssh_public_key: str, not_asked: str) -> Facts | None:
    sizes, of_head = known_sizes(spec.type), known_sizes(spec.head["type"]) if spec.head else {}
    if sizes is None or of_head is None:
        return None
    head = HeadFacts(of_head["vcpus"], of_head["memory_gib"], of_head["architecture"]) if of_head else None
    zones = spec.zones or (f"{spec.region}a",)
    facts = Facts(
        spec.cloud,
        spec.region,
        zones,
        ssh_public_key=ssh_public_key,
        head=head,
        vpc=existing_vpc.assumed(spec),
        not_asked=not_asked,
        **sizes,
    )
    if is_local(spec.cloud):
        return replace(facts, stand_ins=0)
    quotas = quotas_of(spec, facts.vcpus, head.vcpus if head else None, facts.vpc)
    return replace(facts, quotas=tuple(quotas))


def _zone(spec: ClusterSpec, facts: Facts) -> str:
    """Return the zone that the spec prefers among those that offer the type. Raises SpecError if there is none."""
    if not facts.zones:
        raise SpecError(
            f"type: no zone of {spec.region} offers {spec.type}",
            "Choose another `type` or `region`.",
            code="type-not-offered",
        )
    if spec.zones and not set(spec.zones) & set(facts.zones):
        offered = f"These zones offer it: {', '.join(sorted(facts.zones))}."
        raise SpecError(f"zones: {' and '.join(spec.zones)} do not offer {spec.type}", offered, code="type-not-offered")
    if facts.vpc and not facts.vpc.is_assumed:
        return facts.vpc.workers.zone
    if facts.reservation:
        return facts.reservation.zone
    return next(zone for zone in spec.zones or sorted(facts.zones) if zone in facts.zones)


def _refuse_impossible(spec: ClusterSpec, facts: Facts, image: ImageChoice) -> None:
    """Raise SpecError with all that the cloud can't provide."""
    mistakes = Mistakes()
    zone = mistakes.check(_zone, spec, facts)
    mistakes.check(_refuse_image, spec, image, facts)
    mistakes.check(vpc_endpoints.refuse_unsuited, spec, image, vpc_endpoints.is_offline(spec, facts.vpc))
    mistakes.check(_refuse_head, spec, facts)
    mistakes.check(network_cards.refuse_impossible, spec, facts.cards)
    mistakes.check(_refuse_placement, spec, facts)
    if facts.reservation or not facts.not_asked:
        mistakes.check(capacity.refuse_impossible, spec, facts.reservation)
    mistakes.check(_refuse_network, spec, facts)
    mistakes.check(existing_vpc.refuse_blocked, spec, facts.blocked_access, facts.vpc)
    vpc = facts.vpc.vpc if facts.vpc else ""
    if zone:
        mistakes.check(mount_targets.refuse_unreachable, spec, facts.mount_targets, vpc, zone)
    if not facts.not_asked:
        mistakes.check(lustre_storage.refuse_unreachable, spec, facts.lustre, vpc)
        mistakes.check(_refuse_unknown_address, spec, facts)
    mistakes.check(refuse_exceeded, facts.quotas, spec)
    mistakes.check(machine_room.refuse_without_room, facts.shortages, spec)
    mistakes.check(_limits, spec, facts)
    mistakes.report()


def _refuse_image(spec: ClusterSpec, image: ImageChoice, facts: Facts) -> None:
    """Raise SpecError for the first reason why nodes can't run the image."""
    image.refuse_for_emr()
    if not is_local(spec.cloud):
        image.refuse_unsuited()
        image.refuse_without_driver()
        if spec.storage == LUSTRE:
            image.refuse_without_lustre()
        if spec.tls:
            image.refuse_without_tls()
    if not facts.not_asked:
        image.refuse_unknown_recipe()
    image.refuse_small_disk()


def _refuse_unknown_address(spec: ClusterSpec, facts: Facts) -> None:
    if AUTO in spec.ssh_sources and not facts.own_address:
        raise SpecError(
            "ssh_from: auto needs a connection to find this machine's address",
            "Write your network in place of auto.",
            code="cloud-not-asked",
        )


def _refuse_network(spec: ClusterSpec, facts: Facts) -> None:
    """Raise SpecError if the nodes do not fit into the new VPC, or can't run in the existing one."""
    cards = facts.cards if spec.uses_efa and facts.cards else network_cards.PLAIN
    each = network_cards.addresses(cards)
    if facts.vpc and facts.vpc.is_assumed:
        return
    if spec.subnets:
        interfaces = len(list(network_cards.layout(cards)))
        zones = (facts.reservation.zone,) if facts.reservation else facts.zones
        found = existing_vpc.require(facts.vpc)
        endpoints = len(vpc_endpoints.made(spec, found))
        closed = vpc_endpoints.wrong(spec, found)
        existing_vpc.refuse_unsuited(spec, zones, found, each, interfaces, endpoints, closed)
    else:
        subnets.refuse_too_small(spec, cidr_of(spec), each, len(vpc_endpoints.interfaces(spec)))


def _refuse_head(spec: ClusterSpec, facts: Facts) -> None:
    """Raise SpecError for a separate head that can't run the workers' image, or that has nobody to lead."""
    if spec.head and facts.head and facts.head.architecture != facts.architecture:
        raise SpecError(
            f"head: {spec.head['type']} is {facts.head.architecture}, and {spec.type} is {facts.architecture}",
            "All nodes have one image: choose a type for the same processor.",
            code="other-architecture",
        )


def _refuse_placement(spec: ClusterSpec, facts: Facts) -> None:
    if spec.placement and "cluster" not in facts.strategies:
        raise SpecError(
            f"placement: {spec.type} can't be in a cluster placement group",
            "Remove the line, or choose a type that can, such as c5.large.",
            code="placement-unsuited",
        )
