"""AWS's price list: GetProducts for EC2's machines, with the prices of a file that the local cloud is started with.

The file has what instance types and a NAT gateway cost an hour, and where: {"prices_of": {"region", "date"},
"usd_per_hour": {TYPE: PRICE}, "network_usd_per_hour": {"nat_gateway"}}. Of other regions there are no products. Shape:
docs/aws-behaviour.md 2.39.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from localcloud.context import Context
from localcloud.iam import errors
from localcloud.iam.calls import Call

SERVICE = "pricing"
_MOST = 100
# AWS's codes of the offer and of the rate of an hour on demand.
_OFFER, _RATE = "JRTCKXETXF", "6YS6EN2CT7"
# How the hours of one machine are sold: used, reserved and unused, and reserved and used, which cost nothing more.
_STATUSES = {
    "Used": ("BoxUsage", "On Demand", 1.0),
    "UnusedCapacityReservation": ("UnusedBox", "Unused Reservation", 1.0),
    "AllocatedCapacityReservation": ("Reservation", "Reservation", 0.0),
}


class _RefusedError(Exception):
    """The request is refused; `code` is AWS's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer(context: Context, call: Call, start_response: Any) -> Iterable[bytes]:
    """Answer GetProducts, the only operation that is served."""
    try:
        document = _products(context, call.params)
    except _RefusedError as refused:
        return errors.refused(call, refused.code, str(refused), start_response, 400)
    body = json.dumps(document).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]


def _products(context: Context, wanted: Mapping[str, Any]) -> dict[str, Any]:
    if wanted.get("ServiceCode") != "AmazonEC2":
        raise _RefusedError("NotFoundException", f"Service code {wanted.get('ServiceCode')} was not found.")
    filters = wanted.get("Filters") or []
    for one in filters:
        if one["Type"] not in ("TERM_MATCH", "EQUALS"):
            raise _RefusedError(
                "InvalidParameterException", f"The local cloud does not serve filters of {one['Type']}."
            )
    found = [product for product in _all(context) if all(_matches(product, one) for one in filters)]
    begin = _begin(wanted.get("NextToken"), len(found))
    end = begin + min(int(wanted.get("MaxResults") or _MOST), _MOST)
    more = {"NextToken": str(end)} if end < len(found) else {}
    page = [json.dumps(product, separators=(",", ":")) for product in found[begin:end]]
    return {"FormatVersion": "aws_v1", "PriceList": page, **more}


def _begin(token: Any, number: int) -> int:
    if token is None:
        return 0
    if not str(token).isdecimal() or int(token) >= number:
        raise _RefusedError("InvalidNextTokenException", "The pagination token is invalid.")
    return int(token)


def _matches(product: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    values = {**product["product"]["attributes"], "productFamily": product["product"]["productFamily"]}
    return str(values.get(wanted["Field"], "")).lower() == wanted["Value"].lower()


def _all(context: Context) -> Iterator[dict[str, Any]]:
    if context.prices is None:
        return
    table = json.loads(context.prices.read_text(encoding="utf-8"))
    for kind, usd_per_hour in table["usd_per_hour"].items():
        for status in _STATUSES:
            yield _instance(kind, usd_per_hour, table["prices_of"], status)
    for usage, unit in (("Hours", "Hrs"), ("Bytes", "Quantity")):
        yield _nat_gateway(table["network_usd_per_hour"]["nat_gateway"], table["prices_of"], usage, unit)


def _nat_gateway(amount: float, where: Mapping[str, str], usage: str, unit: str) -> dict[str, Any]:
    attributes = {
        "group": "NGW:NatGateway",
        "groupDescription": "Hourly charge for NAT Gateways" if unit == "Hrs" else "Charge for per GB data processed",
        "operation": "NatGateway",
        "usagetype": f"NatGateway-{usage}",
    }
    return _product("NAT Gateway", attributes, where, amount, f"${amount:g} per NAT Gateway {unit}", unit)


def _instance(kind: str, usd_per_hour: float, where: Mapping[str, str], status: str) -> dict[str, Any]:
    usage, words, share = _STATUSES[status]
    amount, sizes = usd_per_hour * share, INSTANCE_TYPES[kind]
    attributes = {
        "instanceType": kind,
        "vcpu": str(sizes["VCpuInfo"]["DefaultVCpus"]),
        "memory": f"{sizes['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "tenancy": "Shared",
        "capacitystatus": status,
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        "usagetype": f"{usage}:{kind}",
    }
    text = f"${amount:g} per {words} Linux {kind} Instance Hour"
    return _product("Compute Instance", attributes, where, amount, text)


def _product(
    family: str, of_family: Mapping[str, str], where: Mapping[str, str], amount: float, text: str, unit: str = "Hrs"
) -> dict[str, Any]:
    sku = hashlib.sha256(json.dumps(of_family).encode()).hexdigest()[:16].upper()
    attributes = {
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
        "locationType": "AWS Region",
        "regionCode": where["region"],
        **of_family,
    }
    rate = {
        "unit": unit,
        "beginRange": "0",
        "endRange": "Inf",
        "appliesTo": [],
        "rateCode": f"{sku}.{_OFFER}.{_RATE}",
        "description": text,
        "pricePerUnit": {"USD": f"{amount:.10f}"},
    }
    term = {
        "sku": sku,
        "offerTermCode": _OFFER,
        "effectiveDate": f"{where['date']}-01T00:00:00Z",
        "termAttributes": {},
        "priceDimensions": {rate["rateCode"]: rate},
    }
    return {
        "product": {"productFamily": family, "attributes": attributes, "sku": sku},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{sku}.{_OFFER}": term}},
        "version": where["date"].replace("-", "") + "01000000",
        "publicationDate": f"{where['date']}-01T00:00:00Z",
    }
