"""What a cluster costs, and how long it may run: AWS's prices or the dated table's, lease, idle time and budget.

Pure: a price that neither has is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.node.workers_group import workers_of
from phalanx.plan import lustre_storage, vpc_endpoints
from phalanx.plan.machine_images import is_accelerated
from phalanx.spec.cloud_names import is_local
from phalanx.spec.makers import maker_of
from phalanx.spec.spec import ClusterSpec

GUARDED_LEASE_S, GUARDED_IDLE_S = 24 * 3600, 3600
# From this price of the whole cluster on, nobody should have to remember a limit.
_GUARDED_USD_PER_HOUR = 20.0
_HOUR_S = 3600


@dataclass(frozen=True)
class Prices:
    """What a node of each type costs an hour on demand: by AWS's price list, or by the table.

    `listed_in` is the region and the day of the list, "" if it was not asked, or had no price of one of the types.
    `unlisted`: why, "" if nobody wanted to know. `spot` has what workers cost now as spot instances, by type.
    `nat_gateway` is what one costs an hour; None is the table's price.
    """

    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    listed_in: str = ""
    unlisted: str = ""
    spot: Mapping[str, float] = field(default_factory=dict)
    nat_gateway: float | None = None

    def of(self, instance_type: str) -> float | None:
        """Return the price of a node; None if it is not known."""
        if self.listed_in:
            return self.usd_per_hour.get(instance_type)
        return table("prices")["usd_per_hour"].get(instance_type)

    @property
    def source(self) -> str:
        """The regions and the dates of the prices: those of addresses and endpoints are the table's."""
        prices = table("prices")["prices_of"]
        of_table = f"prices of {prices['region']}, {prices['date']}"
        others = "network" if self.nat_gateway is None else "addresses"
        return f"AWS's price list, {self.listed_in}; {others}: {of_table}" if self.listed_in else of_table


TABLE = Prices()
"""The prices of the table, which nobody asked AWS for."""


@dataclass(frozen=True)
class Limits:
    """How long a cluster may run. `lease_s`: until AWS stops its nodes; `idle_s`: unused; 0 is no limit.

    `by_budget`: the lease is what the budget pays for.
    """

    lease_s: int = 0
    idle_s: int = 0
    by_budget: bool = False


@dataclass(frozen=True)
class Use:
    """What a cluster has used: hours of its heads and workers, how many run now, and the GiB in its file system."""

    head_hours: float
    worker_hours: float
    heads: int
    workers: int
    stored_gib: float


@dataclass(frozen=True)
class Cost:
    """What a cluster has cost (nodes, NAT gateway, addresses, Lustre) and costs now; None where a price is not known.

    `idle_usd_per_hour` is what it costs without any node, of which Lustre has a part; `storage_usd_per_month` is what
    its data in EFS costs. `source` says where the prices are from, `paid` what costs without any node.
    """

    so_far_usd: float | None
    now_usd_per_hour: float | None
    idle_usd_per_hour: float
    storage_usd_per_month: float
    source: str = ""
    lustre_usd_per_hour: float = 0.0
    paid: str = ""


def cost(
    cloud: str,
    head_type: str,
    worker_type: str,
    use: Use,
    age_hours: float,
    existing_vpc: bool = False,
    endpoints: int | None = None,
    prices: Prices = TABLE,
    lustre_usd_per_hour: float = 0.0,
) -> Cost:
    """Return the cost, on demand, of what a cluster has used since it was created."""
    if is_local(cloud):
        return Cost(0.0, 0.0, 0.0, 0.0)
    head, worker = prices.of(head_type), prices.of(worker_type)
    network = network_usd_per_hour(cloud, use.heads + use.workers, existing_vpc, endpoints, prices)
    network = round(network + lustre_usd_per_hour, 4)
    paid = _paid(cloud, existing_vpc, endpoints, lustre_usd_per_hour)
    storage = round(use.stored_gib * table("efs")["usd_per_gib_month"], 2)
    if head is None or worker is None:
        return Cost(None, None, network, storage, prices.source, lustre_usd_per_hour, paid)
    so_far = round(use.head_hours * head + use.worker_hours * worker + age_hours * network, 2)
    now = round(use.heads * head + use.workers * worker + network, 4)
    return Cost(so_far, now, network, storage, prices.source, lustre_usd_per_hour, paid)


def _paid(cloud: str, existing_vpc: bool, endpoints: int | None, lustre_usd_per_hour: float) -> str:
    """Name what costs by the hour without any node."""
    if endpoints is not None:
        network = "endpoints"
    elif maker_of(cloud).in_public_subnet:
        network = "public addresses"
    else:
        network = "the head's address" if existing_vpc else "NAT gateway and addresses"
    return f"Lustre, {network}" if lustre_usd_per_hour else network


def network_usd_per_hour(
    cloud: str, nodes: int, existing_vpc: bool = False, endpoints: int | None = None, prices: Prices = TABLE
) -> float:
    """Return the price of the network: the NAT gateway, and two public addresses (head and NAT), however many nodes.

    In an existing VPC that is the head's address. EMR's nodes are all in one public subnet: each has an address, and
    none needs the gateway. A private cluster has `endpoints` in place of all that; None is for one that is not.
    """
    network = table("prices")["network_usd_per_hour"]
    if endpoints is not None:
        return round(endpoints * network["interface_endpoint"], 4)
    address = network["public_address"]
    if maker_of(cloud).in_public_subnet:
        return max(1, nodes) * address
    gateway = network["nat_gateway"] if prices.nat_gateway is None else prices.nat_gateway
    return address if existing_vpc else gateway + 2 * address


def types_of(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the types of which the cluster's cost takes a price."""
    return tuple(dict.fromkeys((spec.head["type"] if spec.head else spec.type, spec.type)))


def usd_per_hour(spec: ClusterSpec, nodes: int, prices: Prices = TABLE, endpoints: int | None = None) -> float | None:
    """Return the price of this many nodes, the network and Lustre, without EFS and traffic; None if it is not known.

    The first node is the head, which may be of a type of its own. `endpoints` are the interface endpoints that the
    stack of a private cluster makes; by default all that such a cluster needs.
    """
    if is_local(spec.cloud):
        return 0.0
    node, head = prices.of(spec.type), prices.of(types_of(spec)[0])
    if node is None or head is None:
        return None
    heads = min(nodes, 1)
    number = len(vpc_endpoints.interfaces(spec)) if endpoints is None else endpoints
    paid = number if spec.is_private else None
    network = network_usd_per_hour(spec.cloud, nodes, bool(spec.subnets), paid, prices)
    network += lustre_storage.usd_per_hour(spec)
    return round(heads * head + (nodes - heads) * node + network, 4)


def spot_usd_per_hour(spec: ClusterSpec, nodes: int, prices: Prices, endpoints: int | None = None) -> float | None:
    """Return what `usd_per_hour` does, with the workers at what spot instances cost now; None if that is not known."""
    worker, on_demand = prices.spot.get(spec.type), usd_per_hour(spec, nodes, prices, endpoints)
    node = prices.of(spec.type)
    if worker is None or on_demand is None or node is None:
        return None
    return round(on_demand - workers_of(nodes) * (node - worker), 4)


def limits(
    spec: ClusterSpec, gpus: int, spent_usd: float = 0.0, prices: Prices = TABLE, endpoints: int | None = None
) -> Limits:
    """Return the limits that the spec sets, or that expensive nodes have on AWS, counted from now. Raises SpecError.

    `spent_usd` is what of the budget is spent already; `endpoints` as in `usd_per_hour`.
    """
    is_costly = (usd_per_hour(spec, spec.nodes, prices, endpoints) or 0.0) >= _GUARDED_USD_PER_HOUR
    dear = gpus > 0 or is_costly or is_accelerated(spec.type)
    guarded = dear and not is_local(spec.cloud) and maker_of(spec.cloud).stops_nodes
    lease_s = spec.lease_s if spec.lease_s is not None else GUARDED_LEASE_S * guarded
    idle_s = spec.idle_s if spec.idle_s is not None else GUARDED_IDLE_S * guarded
    if not is_local(spec.cloud) and 0 < lease_s <= spec.node_timeout_s:
        raise SpecError(
            f"lease: {lease_s} s is not longer than node_timeout ({spec.node_timeout_s} s), in which nodes start",
            "Write a longer one, such as 8h.",
            code="lease-too-short",
        )
    paid_s = _paid_s(spec, spent_usd, prices, endpoints)
    if paid_s is not None and (not lease_s or paid_s < lease_s):
        return Limits(paid_s, idle_s, by_budget=True)
    return Limits(lease_s, idle_s)


def removal_steps(down_after_s: int) -> tuple[int, int]:
    """Return how often it is looked whether a stopped cluster is due for removal, and how long before it is warned."""
    rate_s = min(_HOUR_S, max(60, down_after_s // 24 // 60 * 60))
    return rate_s, max(rate_s, min(24 * _HOUR_S, down_after_s // 4))


def _paid_s(spec: ClusterSpec, spent_usd: float, prices: Prices, endpoints: int | None) -> int | None:
    """Return for how long the budget pays all nodes and the network; None without a budget. Raises SpecError."""
    rate = usd_per_hour(spec, spec.nodes, prices, endpoints)
    if spec.budget_usd is None or rate == 0.0:
        return None
    if rate is None:
        raise SpecError(
            f"budget: the price of {spec.type} is not known, so that nothing could be stopped in time",
            "Write a `lease` instead, or choose a type whose price `phalanx plan` shows.",
            code="price-unknown",
        )
    paid_s = max(0, int((spec.budget_usd - spent_usd) / rate * _HOUR_S))
    if paid_s <= spec.node_timeout_s:
        spent = f", of which ${spent_usd:.2f} are spent," if spent_usd else ""
        raise SpecError(
            f"budget: {spec.budget}{spent} pays this cluster for {paid_s // 60} min, and its nodes may take "
            f"{spec.node_timeout_s // 60} min to start (${rate:.2f} an hour)",
            "Write a larger budget, fewer `nodes` or a cheaper `type`.",
            code="budget-too-small",
        )
    return paid_s
