"""DynamoDB's limits in the local cloud: the size of an item, and the reads of a partition key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import Cloud, cloud, name

from localcloud.storage.tables import ITEM_MOST_BYTES, item_bytes


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


@pytest.fixture
def table(local) -> str:
    made = name("table")
    local.client("dynamodb").create_table(
        TableName=made,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
    )
    return made


def item_of(size_bytes: int) -> dict:
    return {"item": {"S": "roster"}, "text": {"S": "x" * (size_bytes - len("itemrostertext"))}}


def test_an_item_has_at_most_409600_bytes(local, table):
    api = local.client("dynamodb")
    api.put_item(TableName=table, Item=item_of(ITEM_MOST_BYTES))
    with pytest.raises(ClientError, match=r"ValidationException.*Item size has exceeded the maximum allowed size"):
        api.put_item(TableName=table, Item=item_of(ITEM_MOST_BYTES + 1))


def test_names_count_and_so_do_nested_values():
    assert item_bytes({"é": {"S": "ab"}, "m": {"M": {"a": {"N": "12"}}}, "l": {"L": [{"S": "x"}]}}) == 4 + 8 + 6
    assert item_bytes({"b": {"B": "QUJD"}}) == 1 + 3


def test_a_partition_key_has_3000_read_units_a_second(local, table):
    """An item of 100 units: 30 consistent reads in a second, or 60 others."""
    api = local.client("dynamodb")
    api.put_item(TableName=table, Item=item_of(100 * 4096 - 200))
    for consistent, most in ((True, 30), (False, 60)):
        local.clock.advance(1)
        for _ in range(most):
            api.get_item(TableName=table, Key={"item": {"S": "roster"}}, ConsistentRead=consistent)
        with pytest.raises(ClientError, match="ProvisionedThroughputExceededException"):
            api.get_item(TableName=table, Key={"item": {"S": "roster"}}, ConsistentRead=consistent)
    api.get_item(TableName=table, Key={"item": {"S": "another"}})


def test_a_batch_reads_from_each_item_s_partition(local, table):
    api = local.client("dynamodb")
    api.put_item(TableName=table, Item=item_of(100 * 4096 - 200))
    wish = {table: {"Keys": [{"item": {"S": "roster"}}, {"item": {"S": "another"}}]}}
    local.clock.advance(1)
    for _ in range(60):
        assert len(api.batch_get_item(RequestItems=wish)["Responses"][table]) == 1
    with pytest.raises(ClientError, match="ProvisionedThroughputExceededException"):
        api.batch_get_item(RequestItems=wish)
    assert "Item" not in api.get_item(TableName=table, Key={"item": {"S": "another"}})
