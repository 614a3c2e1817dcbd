"""What `make smoke-aws` costs at most, by list prices of us-east-1, if everything is deleted within an hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.data import table

TYPE, NODES = "t3.small", 2
HOURS = 1
_HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class Item:
    """One line of the bill: `quantity` of a `unit` at `usd_each`."""

    what: str
    quantity: float
    unit: str
    usd_each: float

    @property
    def usd(self) -> float:
        return self.quantity * self.usd_each


def bill() -> Iterator[Item]:
    """Yield what is billed. Prices: aws.amazon.com/ec2/pricing, and the same of vpc, ebs and efs."""
    prices, sizes = table("prices"), table("instance_types")["types"][TYPE]
    network = prices["network_usd_per_hour"]
    yield Item(f"{NODES} {TYPE}", NODES * HOURS, "h", prices["usd_per_hour"][TYPE])
    # T3 is `unlimited` by default: full load beyond the baseline costs extra. Here it lasts for minutes.
    yield Item("their CPU credits: 15 minutes at full load", NODES * sizes["vcpus"] / 4, "vCPU h", 0.05)
    yield Item("NAT gateway, each hour that begins", HOURS, "h", network["nat_gateway"])
    yield Item("its traffic: what the worker installs", 0.3, "GB", 0.045)
    yield Item("public addresses of head and NAT gateway", 2 * HOURS, "h", network["public_address"])
    yield Item("disks of 8 GiB", NODES * 8 * HOURS / _HOURS_PER_MONTH, "GiB month", 0.08)
    yield Item("shared directory, 3 GiB", 3 * HOURS / _HOURS_PER_MONTH, "GiB month", table("efs")["usd_per_gib_month"])
    yield Item("requests to SQS, DynamoDB, SNS, Lambda, logs", 1, "allowance", 0.01)


def total_usd() -> float:
    return sum(item.usd for item in bill())


def lines() -> Iterator[str]:
    for item in bill():
        yield f"  {item.what:<46}{item.quantity:>7.3g} {item.unit:<10} × ${item.usd_each:<7g} = ${item.usd:.4f}"
    yield f"  {'at most':<76}${total_usd():.2f}"
