"""Offsets as administrators move them and as slaves copy them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, RunningBroker, ok

from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import QueryCorrectionOffsetBody, ResetOffsetBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.versions import Language

if TYPE_CHECKING:
    from broker.conftest import Run

COUNT = 4


async def filled(broker: RunningBroker, consumed: int = 2) -> RawClient:
    """A topic of two queues with four messages in each, of which a group has consumed some."""
    client = await broker.client()
    for number in range(2 * COUNT):
        ok(await client.send("orders", queueId=number % 2, defaultTopicQueueNums=2))
    broker.store.catch_up()
    for queue_id in range(2):
        broker.state.offsets.commit("CID", "orders", queue_id, consumed)
    return client


async def reset(client: RawClient, timestamp: int, **changes: Any) -> Command:
    arguments = {"topic": "orders", "group": "CID", "timestamp": timestamp, "isForce": True, **changes}
    return await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **arguments)


def offsets(body: bytes | memoryview) -> list[int]:
    table = ResetOffsetBody.from_bytes(body).offset_table
    return [table[each] for each in sorted(table)]


async def told(client: RawClient) -> Command:
    """The next thing the broker tells, other than who is in the group."""
    while (command := await client.notice()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        pass
    return command


def test_a_reset_is_told_to_every_client_of_the_group(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, other = await filled(broker), await broker.client()
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await other.heartbeat("two", consumes={"CID": {"orders": "*"}})
            reply = ok(await reset(client, 0))
            assert offsets(reply.body) == [0, 0]
            for consumer in (client, other):
                notice = await told(consumer)
                assert notice.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
                assert notice.is_oneway
                assert (notice.ext["topic"], notice.ext["group"]) == ("orders", "CID")
                assert offsets(notice.body) == [0, 0]

    run(check())


def test_a_client_in_c_plus_plus_gets_a_list(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}}, language=Language.CPP)
            ok(await reset(client, 0))
            table = json.loads((await told(client)).body)["offsetTable"]
            assert {"brokerName": "broker-a", "queueId": 1, "topic": "orders", "offset": 0} in table

    run(check())


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"), [(-1, True, COUNT), (-1, False, 2), (0, False, 0), (2**62, True, COUNT - 1)]
)
def test_where_a_reset_goes(home: BrokerHome, run: Run, timestamp: int, force: bool, expected: int) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            reply = ok(await reset(client, timestamp, isForce=force))
            assert offsets(reply.body) == [expected, expected]

    run(check())


def test_one_queue_alone_goes_to_an_offset(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            reply = ok(await reset(client, 0, queueId=1, offset=3))
            expected = {MessageQueue(broker_name="broker-a", queue_id=1, topic="orders"): 3}
            assert ResetOffsetBody.from_bytes(reply.body).offset_table == expected
            assert (await reset(client, 0, queueId=7)).code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_a_reset_that_cannot_be_done(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            assert (await reset(client, 0, topic="none")).code == ResponseCode.SYSTEM_ERROR
            assert (await reset(client, 0, group="CID_new")).code == ResponseCode.SYSTEM_ERROR
            reply = await reset(client, 0)
            assert reply.code == ResponseCode.CONSUMER_NOT_ONLINE
            assert broker.state.offsets.query("CID", "orders", 0) == 2

    run(check())


def test_one_group_starts_where_another_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            broker.state.offsets.commit("CID", "gone", 0, 9)
            ok(await client.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CID", destGroup="CID_2"))
            assert broker.state.offsets.of_group("CID_2") == {"orders": {0: 2, 1: 2}}
            broker.state.offsets.commit("CID", "orders", 0, 3)
            ok(await client.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CID", destGroup="CID_3", topic="orders"))
            assert broker.state.offsets.query("CID_3", "orders", 0) == 3
            assert broker.state.offsets.query("CID_2", "orders", 0) == 2
            reply = await client.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CID", destGroup="no/name")
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(check())


def test_what_slaves_copy(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "0s 1h"}) as broker:
            client = await filled(broker)
            reply = ok(await client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
            assert json.loads(reply.body)["offsetTable"]["orders@CID"] == {"0": 2, "1": 2}
            reply = ok(await client.ask(RequestCode.GET_ALL_DELAY_OFFSET))
            assert "offsetTable" in json.loads(reply.body)

    run(check())


def test_the_offsets_that_a_group_is_corrected_by(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            for group, offset in (("CID_slow", 1), ("CID_left_out", 0)):
                broker.state.offsets.commit(group, "orders", 0, offset)
            asked = {"topic": "orders", "compareGroup": "CID", "filterGroups": "CID_left_out"}
            reply = ok(await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, **asked))
            assert QueryCorrectionOffsetBody.from_bytes(reply.body).correction_offsets == {0: 1, 1: 2}
            asked["compareGroup"] = "CID_left_out"
            reply = ok(await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, **asked))
            assert QueryCorrectionOffsetBody.from_bytes(reply.body).correction_offsets == {0: 2**63 - 1, 1: 2}

    run(check())
