"""Asks AWS's price list what nodes cost on demand, and EC2 what spot instances cost now (docs/aws-behaviour.md 2.39).

It is asked once and briefly (`phalanx.aws.aws`), and the dated table is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from phalanx.errors import CloudError
from phalanx.plan.money import Prices

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_ELSEWHERE = {
    "cn-": "AWS's price list in China has prices in yuan",
    "us-gov-": "AWS's price list takes no credentials of GovCloud",
    "eusc-": "AWS's price list takes no credentials of the European Sovereign Cloud",
}
# Without all of these the answer has other products of the type: with Windows or SQL Server, on dedicated hosts, and in
# reservations, whose unused hours cost the same and whose used ones cost nothing.
_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
# A NAT gateway is sold by the hour, and by the GB.
_NAT = {"productFamily": "NAT Gateway", "group": "NGW:NatGateway", "operation": "NatGateway"}
_AMOUNT = re.compile(r"\d{1,6}(\.\d{1,10})?")


def ask(api: Aws, types: Collection[str], spot_in: str = "") -> Prices:
    """Return what nodes of these types cost in the cloud's region; the table's prices, and why, if AWS does not say."""
    spot = _spot(api, types, spot_in) if spot_in else {}
    reason = next((why for prefix, why in _ELSEWHERE.items() if api.region.startswith(prefix)), "")
    if reason:
        return Prices(unlisted=reason, spot=spot)
    try:
        found = {one: _on_demand(api, {**_LINUX, "instanceType": one}) for one in dict.fromkeys(types)}
        gateway = _on_demand(api, _NAT)
    except CloudError as error:
        return Prices(unlisted=f"AWS's price list was not read: {error.message}", spot=spot)
    missing = [one for one, price in found.items() if price is None]
    if missing:
        return Prices(unlisted=f"AWS's price list has no price of {', '.join(missing)} in {api.region}", spot=spot)
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    listed = {one: price for one, price in found.items() if price is not None}
    return Prices(listed, f"{api.region}, {day}", spot=spot, nat_gateway=gateway)


def _on_demand(api: Aws, attributes: Mapping[str, str]) -> float | None:
    """Return the price of an hour; None unless the list has exactly one."""
    wanted = {**attributes, "regionCode": api.region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    products = list(api.pages("pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters))
    try:
        amounts = {amount for product in products for amount in _hourly(json.loads(product))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CloudError(
            f"its answer has another form ({type(error).__name__}: {error})", code="price-list-format"
        ) from error
    return float(amounts.pop()) if len(amounts) == 1 else None


def _hourly(product: Mapping[str, Any]) -> Iterator[str]:
    """Yield the amounts in dollars for an hour on demand."""
    for term in product["terms"]["OnDemand"].values():
        for dimension in term["priceDimensions"].values():
            amount = dimension["pricePerUnit"].get("USD", "")
            if dimension["unit"] == "Hrs" and _AMOUNT.fullmatch(amount) and float(amount) > 0:
                yield amount


def _spot(api: Aws, types: Collection[str], zone: str) -> dict[str, float]:
    """Return what spot instances cost now, by type, as far as EC2 says: with a time of now it returns the current."""
    now = datetime.now(timezone.utc)
    given = {"StartTime": now, "EndTime": now, "ProductDescriptions": ["Linux/UNIX"], "AvailabilityZone": zone}
    try:
        found = list(
            api.pages("ec2", "describe_spot_price_history", "SpotPriceHistory", InstanceTypes=list(types), **given)
        )
    except CloudError:
        return {}
    entries = (one for one in found if _AMOUNT.fullmatch(one["SpotPrice"]))
    return {one["InstanceType"]: float(one["SpotPrice"]) for one in entries if one["AvailabilityZone"] == zone}
