"""Consumer groups as administrators make, change, delete and see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, ok

from penstock.format.config_tables import SubscriptionGroup, SubscriptionGroups
from penstock.protocol.bodies.admin import TopicList, decode_config
from penstock.protocol.bodies.queues import QuerySubscriptionResponseBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run


async def update(client: RawClient, group: str, **fields: Any) -> Command:
    body = json.dumps({"groupName": group, **fields}).encode()
    return await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


def test_a_group_is_made_and_changed_and_survives_a_restart(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await update(client, "CID", retryMaxTimes=3, consumeEnable=False, newIn5="kept"))
            reply = ok(await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CID"))
            found = decode_config(SubscriptionGroup, reply.body)
            assert (found.retry_max_times, found.consume_enable, found.extra) == (3, False, {"newIn5": "kept"})
            ok(await client.send("orders"))
            broker.store.catch_up()
            assert (await client.pull("orders", consumerGroup="CID")).code == ResponseCode.NO_PERMISSION
        async with home.running() as broker:
            client = await broker.client()
            reply = ok(await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
            found = decode_config(SubscriptionGroups, reply.body).groups["CID"]
            assert found.retry_max_times == 3

    run(check())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"groupName":""}',
        b'{"groupName":"../up"}',
        b'{"groupName":"g","retryQueueNums":-1}',
        b'{"groupName":"g","retryQueueNums":100000}',
        b'{"groupName":"g","retryMaxTimes":"often"}',
    ],
)
def test_a_group_that_may_not_be_made(home: BrokerHome, run: Run, body: bytes) -> None:
    async def check() -> None:
        async with home.running() as broker:
            before = dict(broker.state.groups.all())
            client = await broker.client()
            reply = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert dict(broker.state.groups.all()) == before

    run(check())


def test_there_are_no_more_groups_than_the_settings_allow(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(max_groups=8) as broker:
            client = await broker.client()
            ok(await update(client, "one"))
            assert "maxGroups" in ((await update(client, "two")).remark or "")

    run(check())


@pytest.mark.parametrize("clean", ["cleanOffset", "removeOffset", ""])
def test_a_group_is_deleted_with_its_progress_if_that_is_wanted(home: BrokerHome, run: Run, clean: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await update(client, "CID"))
            broker.state.offsets.commit("CID", "orders", 0, 7)
            wanted = {clean: True} if clean else {}
            ok(await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CID", **wanted))
            assert broker.state.groups.find("CID") is None
            assert broker.state.offsets.query("CID", "orders", 0) == (-1 if clean else 7)
            reply = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CID")
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            ok(await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CID"))

    run(check())


def test_what_a_group_consumes_and_subscribes_to(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            broker.state.offsets.commit("CID", "orders", 0, 7)
            broker.state.offsets.commit("CID", "%RETRY%CID", 0, 1)
            reply = ok(await client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="CID"))
            assert TopicList.from_bytes(reply.body).topic_list == ["%RETRY%CID", "orders"]
            await client.heartbeat("me", consumes={"CID": {"orders": "A || B"}})
            asked = {"group": "CID", "topic": "orders"}
            reply = ok(await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, **asked))
            found = QuerySubscriptionResponseBody.from_bytes(reply.body).subscription_data
            assert found is not None
            assert found.tags_set == ["A", "B"]
            reply = ok(await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="CID", topic="other"))
            assert QuerySubscriptionResponseBody.from_bytes(reply.body).subscription_data is None

    run(check())
