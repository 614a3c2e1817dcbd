"""AWS's price list, as `plan` asks it and as the local cloud serves it: in AWS's shape, with the table's prices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from clusters import aws_spec
from stack_fakes import Stacks, stacks

from phalanx.aws import lookups, price_list
from phalanx.aws.aws import Aws
from phalanx.data import location, table
from phalanx.errors import CloudError
from phalanx.plan.money import Prices, usd_per_hour
from phalanx.plan.plan import make_plan
from phalanx.plan.plan_text import as_dict, explain, warnings


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        made.context.prices = location("prices")
        yield made


@pytest.fixture
def aws(local) -> AwsHere:
    return AwsHere(local.client)


def products(local: Stacks, **wanted: str) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    pages = local.client("pricing").get_paginator("get_products")
    answers = pages.paginate(ServiceCode="AmazonEC2", Filters=filters)
    return [json.loads(product) for answer in answers for product in answer["PriceList"]]


# ---- what the local cloud serves


def test_a_type_has_the_products_that_aws_lists_and_filters_choose_one(local):
    found = products(local, instanceType="c5.large", regionCode="us-east-1")
    statuses = {one["product"]["attributes"]["capacitystatus"] for one in found}
    assert statuses == {"Used", "UnusedCapacityReservation", "AllocatedCapacityReservation"}
    (one,) = products(local, instanceType="c5.large", capacitystatus="Used")
    assert one["serviceCode"] == "AmazonEC2" and one["product"]["productFamily"] == "Compute Instance"
    (term,) = one["terms"]["OnDemand"].values()
    (rate,) = term["priceDimensions"].values()
    assert rate["rateCode"] == f"{one['product']['sku']}.JRTCKXETXF.6YS6EN2CT7"
    assert (rate["unit"], rate["pricePerUnit"]) == ("Hrs", {"USD": "0.0850000000"})
    assert rate["description"] == "$0.085 per On Demand Linux c5.large Instance Hour"
    assert products(local, instanceType="c5.large", regionCode="eu-central-1") == []


def test_all_pages_together_are_the_table(local):
    found = products(local, capacitystatus="Used")
    kinds = [one["product"]["attributes"]["instanceType"] for one in found]
    assert len(kinds) == len({*kinds}) and {*kinds} == table("prices")["usd_per_hour"].keys()


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"ServiceCode": "AmazonNothing"}, "NotFoundException"),
        ({"ServiceCode": "AmazonEC2", "NextToken": "x"}, "InvalidNextTokenException"),
        ({"ServiceCode": "AmazonEC2", "MaxResults": 101}, "ValidationException"),
    ],
)
def test_what_aws_refuses_is_refused(local, given, code):
    with pytest.raises(ClientError) as refused:
        local.plain_client("pricing").get_products(**given)
    assert refused.value.response["Error"]["Code"] == code


def test_no_market_has_a_price_here(local):
    """moto would say $0.00001 for everything."""
    assert local.client("ec2").describe_spot_price_history()["SpotPriceHistory"] == []


# ---- what a plan asks


def test_a_plan_has_aws_s_prices_and_says_so(aws):
    spec = aws_spec(type="c5.large", lease_s=8 * 3600)
    made = make_plan(spec, lookups.facts(aws, spec, ""))
    assert made.facts.prices.usd_per_hour == {"c5.large": 0.085}
    (cost,) = (line for line in explain(made) if line.startswith("cost"))
    assert "AWS's price list, us-east-1, 20" in cost and "addresses: prices of us-east-1, 2026-11" in cost
    assert not [text for text in warnings(made) if "price" in text]
    assert as_dict(made)["prices"].startswith("AWS's price list, us-east-1, 20")


def test_the_price_is_that_of_linux_on_shared_machines_that_are_used(aws, monkeypatch):
    asked: list[dict[str, Any]] = []
    call = aws.call
    monkeypatch.setattr(aws, "call", lambda *names, **given: asked.append(given) or call(*names, **given))
    price_list.ask(aws, ["c5.large"])
    given, of_gateway = asked
    assert {one["Field"]: one["Value"] for one in given["Filters"]} == {
        "instanceType": "c5.large",
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    assert {one["Field"]: one["Value"] for one in of_gateway["Filters"]} == {
        "productFamily": "NAT Gateway",
        "group": "NGW:NatGateway",
        "operation": "NatGateway",
        "regionCode": "us-east-1",
    }


def test_the_nat_gateway_has_the_price_of_its_region(aws):
    assert price_list.ask(aws, ["c5.large"]).nat_gateway == 0.045, "of an hour, and not of a GB"
    spec = aws_spec(type="c5.large", region="ap-southeast-1")
    here = Prices({"c5.large": 0.1}, "ap-southeast-1, 2026-11-23", nat_gateway=0.059)
    unknown = replace(here, nat_gateway=None)
    assert usd_per_hour(spec, 1, here) == pytest.approx(0.1 + 0.059 + 2 * 0.005)
    assert usd_per_hour(spec, 1, unknown) == pytest.approx(0.1 + 0.045 + 2 * 0.005)
    assert (here.source.split("; ")[1][:9], unknown.source.split("; ")[1][:7]) == ("addresses", "network")


def test_a_type_that_the_list_lacks_brings_the_table_s_prices_for_all(aws):
    found = price_list.ask(aws, ["c5.large", "x9.large"])
    assert found == Prices(unlisted="AWS's price list has no price of x9.large in us-east-1")
    assert (found.of("c5.large"), found.of("x9.large")) == (0.085, None)


class Api(Aws):
    """A cloud whose answers the test gives, by operation, or as pages; its price list has no NAT gateway."""

    def __init__(self, region: str = "us-east-1", **answers: Any) -> None:
        super().__init__(region)
        self.answers = answers

    def call(self, service: str, operation: str, **arguments: Any) -> Any:
        answer = self.answers[operation]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return {"PriceList": []} if "NAT Gateway" in str(arguments) else answer


def product(amount: str, unit: str = "Hrs") -> str:
    rate = {"unit": unit, "pricePerUnit": {"USD": amount}}
    return json.dumps({"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": rate}}}}})


@pytest.mark.parametrize(
    "listed",
    [
        [],
        [product("0.085"), product("0.170")],
        [product("0.0000000000")],
        [product("0.085", unit="Quantity")],
        [product("-1")],
        [product("1e9")],
        ["{}"],
        ["no JSON"],
        [json.dumps([1])],
    ],
)
def test_a_price_that_is_not_certain_is_none(listed):
    found = price_list.ask(Api(get_products={"PriceList": listed}), ["c5.large"])
    assert found.listed_in == "" and "AWS's price list" in found.unlisted
    assert found.of("c5.large") == 0.085, "the table's"


def test_without_the_right_or_without_an_answer_the_table_is_used_and_that_is_said():
    denied = CloudError("these AWS credentials may not call pricing:GetProducts: no", "Request a policy.")
    found = price_list.ask(Api(get_products=denied), ["c5.large"])
    assert found.source == "prices of us-east-1, 2026-11"
    spec = aws_spec(type="c5.large", region="eu-central-1")
    made = make_plan(spec, replace(FACTS_OF_EU, prices=found))
    said = warnings(made)
    assert "the prices are those of a table: AWS's price list was not read: " + denied.message in said
    assert "the estimate uses prices of us-east-1 (2026-11); eu-central-1 differs" in said


FACTS_OF_EU = lookups.Facts("aws", "eu-central-1", ("eu-central-1a",), vcpus=2)


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        ("cn-north-1", "AWS's price list in China has prices in yuan"),
        ("us-gov-west-1", "AWS's price list takes no credentials of GovCloud"),
    ],
)
def test_other_partitions_are_not_asked(region, reason):
    assert price_list.ask(Api(region), ["c5.large"]) == Prices(unlisted=reason)


def test_spot_workers_show_what_they_cost_now_in_the_zone_that_is_tried_first():
    history = [
        {"InstanceType": "c5.large", "SpotPrice": "0.031000", "AvailabilityZone": "us-east-1b"},
        {"InstanceType": "c5.large", "SpotPrice": "0.012000", "AvailabilityZone": "us-east-1a"},
    ]
    answers = {"get_products": {"PriceList": [product("0.085")]}}
    api = Api(**answers, describe_spot_price_history={"SpotPriceHistory": history})
    prices = price_list.ask(api, ["c5.large"], "us-east-1b")
    assert prices.spot == {"c5.large": 0.031}
    spec = aws_spec(type="c5.large", capacity="spot", zones=["us-east-1b"], nodes=4)
    made = make_plan(spec, replace(FACTS_OF_EU, region="us-east-1", zones=("us-east-1b",), prices=prices))
    (line,) = (line for line in explain(made) if line.startswith("cost now"))
    assert "about $0.23 an hour with spot workers, each at $0.0310 in us-east-1b" in line
    assert as_dict(made)["spot_usd_per_hour"] == pytest.approx(0.085 + 3 * 0.031 + 0.055)
    pages = [{"SpotPriceHistory": [], "NextToken": "more"}, {"SpotPriceHistory": history}]
    assert price_list.ask(Api(**answers, describe_spot_price_history=pages), ["c5.large"], "us-east-1b") == prices
    denied = Api(**answers, describe_spot_price_history=CloudError("no"))
    assert price_list.ask(denied, ["c5.large"], "us-east-1b").spot == {}


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-west-2", "us-east-1"),
        ("eu-west-3", "eu-central-1"),
        ("ap-southeast-1", "ap-south-1"),
        ("sa-east-1", "us-east-1"),
    ],
)
def test_the_nearest_endpoint_is_asked_once_and_briefly(region, endpoint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    client = Aws(region).client("pricing")
    assert client.meta.endpoint_url == f"https://api.pricing.{endpoint}.amazonaws.com"
    config = client.meta.config
    assert config.connect_timeout + config.read_timeout <= 6 and config.retries["total_max_attempts"] == 1
