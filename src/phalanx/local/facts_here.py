"""Looks up what a plan of a local cluster needs: by the tables where they know it, else from the local cloud."""

from __future__ import annotations

from dataclasses import replace

from phalanx.aws import file_systems, lookups
from phalanx.aws.aws import Aws
from phalanx.data import table
from phalanx.local import endpoint, images
from phalanx.node.settings import ON_AWS, Patience
from phalanx.plan import each_type
from phalanx.plan.machine_images import is_ami, is_of_recipe
from phalanx.plan.machine_room import Shortage
from phalanx.plan.plan import Facts, make_plan, offline_facts
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import AUTO
from phalanx.spec.spec_emr import logs_bucket
from phalanx.state_files import known

# China, GovCloud and the European Sovereign Cloud, whose ARNs begin differently (docs/aws-behaviour.md 6.1).
_OTHER_PARTITIONS = ("cn-", "us-gov-", "eusc-")
# Any machine has room for so few.
_FEW, _FEW_FULL = 17, 3


def look_up(api: Aws, spec: ClusterSpec, ssh_public_key: str) -> Facts:
    """Return facts from the table of types if it has the type, so that `plan` needs no running local cloud."""
    return each_type.look_up(spec, lambda one: _of_type(api, one, ssh_public_key), make_plan)


def _of_type(api: Aws, spec: ClusterSpec, ssh_public_key: str) -> Facts:
    if spec.region.startswith(_OTHER_PARTITIONS):
        endpoint.require_region(spec.region)
    name = images.local_name(spec.image)
    if name:
        images.require(spec.image or "", name)
    if name or is_of_recipe(spec.image):
        api.site.require_full_system(spec.image or "")
    from_tables = offline_facts(spec, ssh_public_key, not_asked="")
    if from_tables is not None and not _has_to_ask(spec):
        return _here(spec, replace(from_tables, kept_file_system=_kept(api, spec)))
    endpoint.begin()
    if spec.emr:
        api.site.require_bucket(logs_bucket(spec.emr), make=True)
    return _here(spec, lookups.facts(api, spec, ssh_public_key))


def _has_to_ask(spec: ClusterSpec) -> bool:
    """Whether the spec names things that may not exist, or wants what EC2 has to say of its type."""
    named = (spec.file_system, spec.policies, spec.permissions_boundary, spec.kms_key, spec.placement, spec.reservation)
    asks = spec.uses_efa or AUTO in spec.ssh_sources or is_ami(spec.image) or is_of_recipe(spec.image)
    # The table does not know the zones of a type: those with a price are in all.
    priced = table("prices")["usd_per_hour"].keys()
    types = {*spec.types, *([spec.head["type"]] if spec.head else [])}
    return any((*named, spec.data, spec.subnets, spec.emr, types - priced)) or asks


def _kept(api: Aws, spec: ClusterSpec) -> str:
    """Return the cluster's kept file system: while nothing runs, all are; else a stack may use it."""
    if endpoint.find():
        return file_systems.kept(api, spec.name)
    kept = endpoint.kept_file_systems()
    own = (one["id"] for one in kept if (one["region"], one["tags"].get(CLUSTER_TAG)) == (spec.region, spec.name))
    return next(own, "")


def _here(spec: ClusterSpec, facts: Facts) -> Facts:
    """Add what depends on this machine: stand-ins for GPUs, the room for a new cluster, and the weather's speed."""
    stand_ins = endpoint.stand_ins() if facts.gpus else 0
    speed = endpoint.weather_speed()
    patience = Patience(*(wait_s / speed for wait_s in ON_AWS))
    return replace(facts, stand_ins=stand_ins, shortages=_shortages(spec), patience=patience)


def _shortages(spec: ClusterSpec) -> tuple[Shortage, ...]:
    is_full = bool(images.local_name(spec.image)) or is_of_recipe(spec.image) or is_ami(spec.image)
    # A cluster that exists has its nodes already. The question takes as long as the rest of `plan`.
    if spec.name in known() or spec.nodes < (_FEW_FULL if is_full else _FEW):
        return ()
    return tuple(Shortage(**one) for one in endpoint.shortages(spec.nodes, is_full))
