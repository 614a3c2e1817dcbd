"""Describe a plan in words: what is created, what it costs, and warnings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import TextWrapper
from typing import Any

from phalanx.counts import counted
from phalanx.data import table
from phalanx.node.workers_group import workers_of
from phalanx.plan import capacity, existing_vpc, grants, lustre_storage, money, mounted_data, quotas, vpc_endpoints
from phalanx.plan.network_cards import adapters
from phalanx.plan.not_checked import not_checked
from phalanx.plan.plan import Facts, Plan, image_choice
from phalanx.spec.cloud_names import is_local
from phalanx.spec.makers import EMR, maker_of
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import ANYWHERE, AUTO
from phalanx.spec.spec_emr import DEFAULT_APPLICATIONS, DEFAULT_RELEASE
from phalanx.spec.spec_limits import OWN_GROUP
from phalanx.spec.spec_storage import HEAD


def explain(plan: Plan, columns: int = sys.maxsize) -> list[str]:
    """Return the plan as lines of text; last come warnings, and what was not checked.

    The descriptions are folded to fit in `columns`; warnings, which have commands to copy, are not.
    """
    rows = describe(plan)
    width = max(len(what) for what, _ in rows)
    fold = TextWrapper(columns, subsequent_indent=" " * (width + 2), break_long_words=False, break_on_hyphens=False)
    return (
        [line for what, much in rows for line in fold.wrap(f"{what:<{width}}  {much}")]
        + [f"warning: {text}" for text in warnings(plan)]
        + [f"not checked: {text}" for text in not_checked(plan)]
    )


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as a dictionary for JSON."""
    return {
        "spec": asdict(plan.spec),
        "zone": None if plan.facts.vpc and plan.facts.vpc.is_assumed else plan.zone,
        "image_parameter": plan.image_parameter,
        "architecture": plan.facts.architecture,
        "slots_per_node": plan.slots,
        "vcpus_per_node": plan.vcpus,
        "gpus_per_node": plan.gpus,
        "cost_usd_per_hour": plan.cost_usd_per_hour,
        "spot_usd_per_hour": _spot_usd_per_hour(plan),
        "prices": None if is_local(plan.spec.cloud) else plan.facts.prices.source,
        "cost_usd_of_lease": _cost_of_lease(plan),
        "stopped_usd_per_hour": plan.stopped_usd_per_hour,
        "types": _types(plan),
        "lease_s": plan.limits.lease_s,
        "idle_s": plan.limits.idle_s,
        "down_after_s": plan.spec.down_after_s,
        "deployment": plan.deployment,
        "resources": [{"what": what, "amount": much} for what, much in describe(plan)],
        "warnings": warnings(plan),
        "not_checked": not_checked(plan),
    }


def describe(plan: Plan) -> list[tuple[str, str]]:
    """Return what is created, as (name, description)."""
    spec = plan.spec
    rows = [
        ("cluster", f"{spec.name}, in {_place(plan)}"),
        ("nodes", f"{_nodes(plan)}, at least {spec.min}"),
        ("each node", _sizes(plan)),
        *_offered(plan),
        ("if there is none", _otherwise(plan)),
        ("bought as", capacity.described(spec, plan.facts.reservation)),
        ("close together", _placement(spec)),
        ("EFA", _adapters(plan)),
        ("image", plan.image_parameter),
        *_contents(plan),
        ("EMR", _emr(spec)),
        ("network", _network(plan)),
        ("shared directory", f"{spec.shared}, {_file_system(plan)}"),
        *_throughput(plan),
        ("ssh", _sources(plan)),
        ("root disk", _disk(plan)),
        ("this file grants", "; ".join(grants.of(spec))),
        ("data of jobs", mounted_data.described(spec, plan.facts.data)),
        ("encrypted with", spec.kms_key or ""),
        ("boundary of roles", spec.permissions_boundary or ""),
        ("tags", ", ".join(f"{name}={value}" for name, value in (spec.tags or {}).items())),
        ("membership", _membership(spec)),
        ("quotas", ", ".join(quotas.described(quota) for quota in plan.facts.quotas if quota.limit is not None)),
        ("cost", _cost(plan)),
        ("cost now", _spot(plan)),
        ("lease", _lease(plan)),
        ("idle", _idle(plan)),
        ("stopped", _stopped(plan)),
        ("removal", _removal(plan)),
    ]
    return [row for row in rows if row[1]]


def _emr(spec: ClusterSpec) -> str:
    if not spec.emr:
        return ""
    applications = ", ".join(spec.emr.get("applications", DEFAULT_APPLICATIONS))
    release = spec.emr.get("release", DEFAULT_RELEASE)
    return f"{release} with {applications}; the agent and EMR's logs are in {spec.emr['logs']}"


def _membership(spec: ClusterSpec) -> str:
    watch = "a topic, a function, " if maker_of(spec.cloud).reports_launches else ""
    return f"a queue, a table, {watch}a log group"


def _place(plan: Plan) -> str:
    if is_local(plan.spec.cloud):
        return f"the local cloud of this machine (as zone {plan.zone})"
    if plan.facts.vpc and plan.facts.vpc.is_assumed:
        return f"your AWS account, in the zone of {plan.facts.vpc.workers.subnet_id}"
    return f"your AWS account, zone {plan.zone}"


def _contents(plan: Plan) -> list[tuple[str, str]]:
    """Describe what is known of the image and what is installed; nothing of nodes that have this machine's programs."""
    if _has_this_machines_programs(plan):
        return []
    return [
        ("on the image", image_choice(plan.spec, plan.facts).describe()),
        ("boot installs", installed_at_boot(plan)),
    ]


def _has_this_machines_programs(plan: Plan) -> bool:
    image = image_choice(plan.spec, plan.facts)
    return is_local(plan.spec.cloud) and "local" not in (image.contents or {})


def installed_at_boot(plan: Plan) -> str:
    """Return what each node's boot installs, as far as is known; "" for nothing."""
    if _has_this_machines_programs(plan):
        return ""
    image = image_choice(plan.spec, plan.facts)
    packages = list(image.packages)
    if plan.spec.storage == HEAD and image.has_apt:
        # No image has it: it would serve on each node.
        packages.append("nfs-kernel-server on the head")
    return f"{', '.join(packages)} (about 30 s)" if packages else ""


def _network(plan: Plan) -> str:
    vpc = plan.facts.vpc
    if vpc:
        where = f"{vpc.head.subnet_id} (head), {vpc.workers.subnet_id} (workers)"
        if plan.spec.is_private:
            return vpc_endpoints.described(plan.spec, vpc)
        return f"your {vpc.vpc or 'VPC'}: {where}; security groups, an Elastic IP for the head"
    if plan.endpoints:
        return (
            f"a VPC ({plan.network.vpc}) with a private subnet for all nodes, no way to the internet, endpoints for "
            f"S3, DynamoDB, {', '.join(plan.endpoints)}"
        )
    subnets = "a public subnet (head) and a private one (workers), a NAT gateway"
    if maker_of(plan.spec.cloud).in_public_subnet:
        subnets = "a public subnet for all nodes"
    return f"a VPC ({plan.network.vpc}) with {subnets}, endpoints for S3 and DynamoDB, an Elastic IP for the head"


def _file_system(plan: Plan) -> str:
    if plan.storage == HEAD:
        return "served by the head over NFS, from its root disk"
    if plan.makes_lustre:
        return lustre_storage.described(plan.spec)
    if plan.uses_lustre:
        return f"your FSx for Lustre file system {plan.spec.file_system}"
    if plan.spec.file_system:
        target = "and its mount target" if plan.mount_target else "with a new mount target"
        return f"your EFS file system {plan.spec.file_system} {target} in {plan.zone}"
    kept = plan.facts.kept_file_system
    return f"the EFS file system {kept} that `down` kept" if kept else "an encrypted EFS file system"


def _sources(plan: Plan) -> str:
    """Describe where ssh may come from, in the words of the spec."""
    if plan.spec.is_private:
        return "to the head through AWS Systems Manager (Session Manager), for whom IAM allows it"
    own = plan.facts.own_address
    auto = f"{own}/32 (this machine)" if own else "this machine"
    networks = ", ".join(auto if source == AUTO else source for source in plan.spec.ssh_sources)
    return f"to the head from {networks}"


def _placement(spec: ClusterSpec) -> str:
    if not spec.placement:
        return ""
    of_user = f"in your placement group {spec.placement}"
    return "in a cluster placement group of their own" if spec.placement == OWN_GROUP else of_user


def _adapters(plan: Plan) -> str:
    number = adapters(plan.facts.cards) if plan.spec.uses_efa else 0
    return f"{counted(number, 'adapter')} on each node that trains" if number else ""


def _disk(plan: Plan) -> str:
    """Describe the root disk if the spec chooses it."""
    disk = plan.spec.disk
    if not disk:
        return ""
    units = {"size_gib": "GiB", "iops": "IOPS", "throughput_mib_s": "MiB/s"}
    chosen = (f"{disk[key]} {unit}" for key, unit in units.items() if key in disk)
    return ", ".join([disk.get("type", "gp3"), *chosen, "encrypted, on every node"])


def _throughput(plan: Plan) -> list[tuple[str, str]]:
    """Describe the speed and the cost of both modes of a new file system; nothing if there is none, or none on AWS."""
    if is_local(plan.spec.cloud) or plan.file_system or not plan.uses_efs:
        return []
    efs = table("efs")
    slow, fast, where = efs["bursting"], efs["elastic"], efs["prices_of"]
    modes = {
        "bursting": f"at most {slow['mib_per_s']} MiB/s for all nodes together while its credits last (about "
        f"{slow['first_hours']} h at first), then {slow['kib_per_s_and_gib']} KiB/s for each GiB of data, at least "
        f"{slow['least_mib_per_s']} MiB/s; no charge",
        "elastic": f"up to {fast['mib_per_s_and_node']:,} MiB/s for each node, at ${fast['usd_per_gb_read']:.2f} a GB "
        f"read and ${fast['usd_per_gb_written']:.2f} a GB written ({where['region']}, {where['date']})",
    }
    chosen = modes.pop(plan.throughput)
    others = [("or throughput", f"{mode}: {meaning}") for mode, meaning in modes.items()]
    return [("throughput", f"{plan.throughput}: {chosen}"), *others]


def _cost(plan: Plan) -> str:
    if is_local(plan.spec.cloud):
        return "nothing"
    efs = f"EFS at about ${table('efs')['usd_per_gib_month']:.2f} a GiB and month, "
    storage = f"and {efs if plan.uses_efs else ''}disks, traffic"
    if plan.cost_usd_per_hour is None:
        return f"unknown for {plan.spec.type}, {storage}"
    rate = f"about ${plan.cost_usd_per_hour:.2f} an hour (nodes, {_paid_network(plan)}; {plan.facts.prices.source})"
    whole = _cost_of_lease(plan)
    return f"{rate}, {storage}" if whole is None else f"{rate}, ${whole:.2f} until the lease ends, {storage}"


def _spot_usd_per_hour(plan: Plan) -> float | None:
    wanted = plan.spec.capacity == capacity.SPOT
    return (
        money.spot_usd_per_hour(plan.spec, plan.spec.nodes, plan.facts.prices, len(plan.endpoints)) if wanted else None
    )


def _spot(plan: Plan) -> str:
    rate = _spot_usd_per_hour(plan)
    if rate is None:
        return ""
    worker = plan.facts.prices.spot[plan.spec.type]
    return f"about ${rate:.2f} an hour with spot workers, each at ${worker:.4f} in {plan.zone}; that price changes"


def _stopped(plan: Plan) -> str:
    rate, data = plan.stopped_usd_per_hour, " and the data in EFS" if plan.uses_efs else ""
    return f"still about ${rate:.3f} an hour ({_paid_network(plan)}){data}, until `phalanx down`" if rate else ""


def _paid_network(plan: Plan) -> str:
    if plan.spec.emr:
        return "public addresses, without EMR's own price"
    paid = "the head's address" if plan.facts.vpc else "NAT gateway, public addresses"
    if plan.spec.is_private:
        each = table("prices")["network_usd_per_hour"]["interface_endpoint"]
        paid = f"{counted(len(plan.endpoints), 'endpoint')} at ${each} each"
    if usd := lustre_storage.usd_per_hour(plan.spec):
        return f"{paid}, Lustre at ${usd:.2f} an hour until `down`"
    return paid


def _lease(plan: Plan) -> str:
    limits, spec = plan.limits, plan.spec
    if not limits.lease_s:
        return "no lease: the nodes run, and cost money, until something else stops them" if spec.lease_s == 0 else ""
    why = f", which a budget of {spec.budget} pays for" if limits.by_budget else ""
    default = "" if limits.by_budget or spec.lease_s is not None else " (the default for expensive nodes)"
    return (
        f"AWS stops all nodes after {_time(limits.lease_s)}{why}{default}; {spec.shared} stays, "
        "and `phalanx extend` moves the end"
    )


def _idle(plan: Plan) -> str:
    idle_s = plan.limits.idle_s
    default = "" if plan.spec.idle_s is not None else " (the default for expensive nodes)"
    return f"the nodes stop after {_time(idle_s)} without programs of users{default}" if idle_s else ""


def _removal(plan: Plan) -> str:
    after_s, kept = plan.spec.down_after_s, "the data in EFS stay" if plan.uses_efs else "its data end with the nodes"
    return (
        f"AWS deletes the stack {_time(after_s)} after its nodes have stopped, unless `up` came; {kept}"
        if after_s
        else ""
    )


def warnings(plan: Plan) -> list[str]:
    """Return warnings about valid settings that may surprise, one sentence each."""
    return list(dict.fromkeys(text for one in (plan, *plan.alternatives) for text in _warnings(one)))


def _warnings(plan: Plan) -> Iterator[str]:
    spec, facts = plan.spec, plan.facts
    if facts.not_asked and not is_local(spec.cloud):
        yield not_asked(facts)
    yield from _about_sizes(spec, facts)
    if facts.vpc:
        yield from existing_vpc.warnings(facts.vpc)
        yield from vpc_endpoints.warnings(spec, facts.vpc)
    yield from vpc_endpoints.warnings_of_private(spec, image_choice(spec, facts), plan.is_offline)
    if ANYWHERE in spec.ssh_sources:
        yield "ssh to the head is open to the whole internet"
    if plan.storage == HEAD:
        stops = maker_of(spec.cloud).stops_nodes
        ends = "is stopped (lease, idle), replaced" if stops else "dies, with which EMR ends the cluster,"
        yield f"the shared directory ends with the head: when it {ends} or taken down"
    yield from (shortage.warning for shortage in facts.shortages)
    yield from lustre_storage.warnings(spec, image_choice(spec, facts))
    yield from mounted_data.warnings(spec, facts.data)
    if maker_of(spec.cloud) is not EMR:
        yield from facts.about_keys()
    if spec.throughput and plan.file_system:
        yield f"throughput is for a new file system: {plan.file_system} keeps its mode"
    if not is_local(spec.cloud):
        yield from image_choice(spec, facts).warnings()
        yield from _about_money(spec, facts)
        yield from _about_capacity(spec, facts)


def not_asked(facts: Facts) -> str:
    """Say that a plan is from the tables, and why."""
    date = table("prices")["prices_of"]["date"]
    rest = "`phalanx plan` with credentials checks what is named below"
    return f"AWS was not asked ({facts.not_asked}): sizes and prices come from tables of {date}; {rest}"


def _about_sizes(spec: ClusterSpec, facts: Facts) -> Iterator[str]:
    if spec.slots and spec.slots > max(facts.vcpus, facts.gpus):
        yield f"{spec.slots} slots on {facts.vcpus} vCPUs: the processes of a node will share CPUs"
    if spec.type.split(".")[0] in ("t2", "t3", "t3a", "t4g"):
        yield f"{spec.type} is burstable: training slows down once its CPU credits are spent"
    if facts.gpus and facts.stand_ins is not None:
        yield _about_stand_ins(spec.type, facts.gpus, facts.stand_ins)
    if facts.network_cards > 1 and not spec.uses_efa:
        yield f"{spec.type} has {facts.network_cards} network cards, and only the first is used: `efa: yes` uses all"
    if spec.uses_efa and is_local(spec.cloud):
        yield "the local cloud has no Elastic Fabric Adapters: jobs use TCP there"


def _about_stand_ins(instance_type: str, gpus: int, stand_ins: int) -> str:
    has = f"{instance_type} has {counted(gpus, 'GPU')} on AWS"
    if not stand_ins:
        return f"{has} and none in the local cloud: `phalanx local gpus {gpus}` gives its nodes stand-ins"
    return f"{has} and {counted(stand_ins, 'stand-in')} in the local cloud, which nothing can compute on"


def _about_money(spec: ClusterSpec, facts: Facts) -> Iterator[str]:
    prices, where = facts.prices, table("prices")["prices_of"]
    if prices.unlisted:
        yield f"the prices are those of a table: {prices.unlisted}"
    for unknown in (kind for kind in money.types_of(spec) if prices.of(kind) is None):
        yield f"the price of {unknown} is not known: see https://aws.amazon.com/ec2/pricing/on-demand/"
    if not prices.listed_in and spec.region != where["region"] and prices.of(spec.type) is not None:
        yield f"the estimate uses prices of {where['region']} ({where['date']}); {spec.region} differs"


def _about_capacity(spec: ClusterSpec, facts: Facts) -> Iterator[str]:
    if spec.capacity == "spot":
        yield "AWS may end spot instances at two minutes' notice (`run --restarts`); the cost shown is that on demand"
    if facts.reservation and facts.reservation.free < spec.nodes - bool(spec.head):
        yield f"{spec.reservation} has {counted(facts.reservation.free, 'instance')} free: not all nodes can start"
    if facts.quotas_unknown:
        yield f"your quotas could not be asked: {facts.quotas_unknown}"
    yield from filter(None, (quotas.warning(quota, spec.region) for quota in facts.quotas))
    if len(facts.zones) == 1 and not facts.not_asked:
        yield f"only {facts.zones[0]} offers {spec.type}: no other zone can replace it if it is full"


def _nodes(plan: Plan) -> str:
    """Describe how many nodes there are of which type."""
    workers = workers_of(plan.spec.nodes)
    if plan.spec.head:
        return f"1 × {plan.spec.head['type']}: the head, which does not train; {workers} × {plan.spec.type}: workers"
    return (
        f"1 × {plan.spec.type}: the head"
        if not workers
        else f"{plan.spec.nodes} × {plan.spec.type}: the head and {counted(workers, 'worker')}"
    )


def _sizes(plan: Plan) -> str:
    """Describe what each node has."""
    gpus = f", {counted(plan.gpus, 'GPU')}" if plan.gpus else ""
    memory = f", {plan.facts.memory_gib:g} GiB" if plan.facts.memory_gib else ""
    return f"{counted(plan.vcpus, 'vCPU')}{gpus}{memory}, {plan.facts.architecture}, {counted(plan.slots, 'slot')}"


def _offered(plan: Plan) -> list[tuple[str, str]]:
    """Return a row for each type with the zones that offer it; none if nobody asked the cloud."""
    rows = [(one.spec.type, _zones(one)) for one in (plan, *plan.alternatives)]
    named = [(f"{kind}: " if plan.alternatives else "", zones) for kind, zones in rows if zones]
    return [("offered in", f"{kind}{', '.join(zones)}") for kind, zones in named]


def _otherwise(plan: Plan) -> str:
    """Describe what `up` tries where AWS has no capacity."""
    others = [f"the same in {zone}" for zone in plan.zones if zone != plan.zone]
    types = [f"{one.spec.type}{_price(one)}{_limit(one, plan)}" for one in plan.alternatives]
    return ", then ".join([*others, *(types or plan.spec.other_types)])


def _types(plan: Plan) -> list[dict[str, Any]]:
    """Return what a plan says of each type, for JSON; zones are None if nobody asked the cloud."""
    return [
        {
            "type": one.spec.type,
            "zones": _zones(one),
            "image_parameter": one.image_parameter,
            "architecture": one.facts.architecture,
            "vcpus_per_node": one.vcpus,
            "gpus_per_node": one.gpus,
            "slots_per_node": one.slots,
            "cost_usd_per_hour": one.cost_usd_per_hour,
            "cost_usd_of_lease": _cost_of_lease(one),
            "lease_s": one.limits.lease_s,
        }
        for one in (plan, *plan.alternatives)
    ]


def _cost_of_lease(plan: Plan) -> float | None:
    """Return the cost of all nodes and the network until the lease ends; None without a lease or a price."""
    if not plan.limits.lease_s or plan.cost_usd_per_hour is None:
        return None
    return round(plan.cost_usd_per_hour * plan.limits.lease_s / 3600, 2)


def _time(seconds: int) -> str:
    """Return a time in words, such as 1 h 30 min."""
    days = seconds // 86400 if seconds > 48 * 3600 else 0
    hours, minutes, rest = seconds // 3600 - 24 * days, seconds // 60 % 60, seconds % 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest if seconds < 3600 else 0, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _zones(plan: Plan) -> list[str] | None:
    if plan.facts.not_asked or is_local(plan.spec.cloud):
        return None
    return sorted(plan.facts.zones)


def _price(plan: Plan) -> str:
    if is_local(plan.spec.cloud):
        return ""
    price = plan.cost_usd_per_hour
    return " at an unknown price" if price is None else f" at about ${price:.2f} an hour"


def _limit(plan: Plan, first: Plan) -> str:
    """Describe the lease if it is not that of the first type."""
    if plan.limits.lease_s == first.limits.lease_s:
        return ""
    return f", stopped after {_time(plan.limits.lease_s)}" if plan.limits.lease_s else ", without a lease"
