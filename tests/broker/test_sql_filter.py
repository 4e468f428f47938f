"""Consumers that filter by SQL92: what they are given, what is passed over, and what they are told about mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, RunningBroker, bodies, ok
from support.loopback import until

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run

ON: dict[str, Any] = {"enable_property_filter": True}


async def filled(broker: RunningBroker, count: int = 6) -> RawClient:
    client = await broker.client()
    for number in range(count):
        properties = {"price": str(number), "region": "north" if number % 2 else "south", "TAGS": "t"}
        ok(await client.send("orders", b"%d" % number, properties=properties))
    broker.store.catch_up()
    return client


async def pull(client: RawClient, expression: str, offset: int = 0, **changes: Any) -> Command:
    return await client.pull("orders", offset, subscription=expression, expressionType="SQL92", **changes)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("price > 3", [b"4", b"5"]),
        ("price BETWEEN 1 AND 2 OR region = 'south'", [b"0", b"1", b"2", b"4"]),
        ("region IN ('north') AND NOT (price = 3)", [b"1", b"5"]),
        ("nothing IS NULL AND TAGS = 't'", [b"0", b"1", b"2", b"3", b"4", b"5"]),
    ],
)
def test_a_pull_gives_what_its_expression_selects(
    home: BrokerHome, run: Run, expression: str, wanted: list[bytes]
) -> None:
    async def check() -> None:
        async with home.running(**ON) as broker:
            client = await filled(broker)
            reply = await pull(client, expression)
            assert bodies(reply) == wanted
            assert reply.ext["nextBeginOffset"] == "6"

    run(check())


def test_where_nothing_is_selected_the_consumer_goes_on_behind_it(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**ON) as broker:
            client = await filled(broker, 100)
            reply = await pull(client, "price > 1000")
            assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert reply.ext["nextBeginOffset"] == "100"

    run(check())


def test_the_expression_of_the_heartbeat_counts_for_pulls_without_one(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**ON) as broker:
            client = await filled(broker)
            ok(await client.heartbeat("me", consumes={"CID_test": {"orders": "price >= 5"}}, expression_type="SQL92"))
            assert bodies(await client.pull("orders", sysFlag=0)) == [b"5"]

    run(check())


def test_a_consumer_that_waits_is_woken_by_what_it_wants(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**ON) as broker:
            client, producer = await filled(broker, 1), await broker.client()
            waiting = client.hold("orders", 1, subscription="price > 10", expressionType="SQL92")
            await until(lambda: len(broker.broker.held) == 1)
            for price in (3, 11):
                ok(await producer.send("orders", b"%d" % price, properties={"price": str(price)}))
            reply = await waiting
            assert bodies(reply) == [b"11"]
            assert reply.ext["nextBeginOffset"] == "3"

    run(check())


def test_a_wrong_expression_is_refused_with_the_place(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**ON) as broker:
            client = await filled(broker)
            reply = await pull(client, "price > > 1")
            assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "column 9" in (reply.remark or "")

    run(check())


@pytest.mark.parametrize(
    ("expression", "is_on", "code"),
    [
        ("price > 1", True, ResponseCode.SUCCESS),
        ("price >", True, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("(" * 5000 + "a" + ")" * 5000, True, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("price > 1", False, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_consumer_that_starts_asks_whether_its_expression_is_understood(
    home: BrokerHome, run: Run, expression: str, is_on: bool, code: ResponseCode
) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=is_on) as broker:
            client = await broker.client()
            subscription = {"topic": "orders", "subString": expression, "expressionType": "SQL92"}
            body = json.dumps({"clientId": "me", "group": "CID_test", "subscriptionData": subscription}).encode()
            assert (await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body)).code == code

    run(check())
