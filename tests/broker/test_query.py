"""Finding messages by key and by id, over the network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RawClient, bodies, ok, records

from penstock.format.message_id import decode_message_id
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run

EVER = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1}


async def query(client: RawClient, key: str, topic: str = "orders", most: int = 32, **changes: object) -> Command:
    arguments = {"topic": topic, "key": key, "maxNum": most, **EVER, **changes}
    return await client.ask(RequestCode.QUERY_MESSAGE, **arguments)


def test_messages_are_found_by_any_of_their_keys_and_by_their_unique_key(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"1", properties={"KEYS": "a b", "UNIQ_KEY": "U1"}))
            ok(await client.send("orders", b"2", properties={"KEYS": "b c", "UNIQ_KEY": "U2"}))
            ok(await client.send("other", b"3", properties={"KEYS": "a"}))
            assert bodies(await query(client, "a")) == [b"1"]
            assert bodies(await query(client, "b")) == [b"1", b"2"]
            assert bodies(await query(client, "b", most=1)) == [b"2"]
            assert bodies(await query(client, "U2", most=1, _UNIQUE_KEY_QUERY=True)) == [b"2"]

    run(check())


def test_the_answer_says_how_far_the_index_reaches(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            sent = ok(await client.send("orders", properties={"KEYS": "a"}))
            (record,) = records(reply := await query(client, "a"))
            assert reply.ext == {
                "indexLastUpdateTimestamp": str(record.store_timestamp),
                "indexLastUpdatePhyoffset": str(decode_message_id(sent.ext["msgId"])[1]),
            }

    run(check())


def test_what_is_not_there_is_not_found(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            assert (await query(client, "a")).code == ResponseCode.QUERY_NOT_FOUND
            ok(await client.send("orders", properties={"KEYS": "a"}))
            missing = [await query(client, "z"), await query(client, "a", endTimestamp=5), await query(client, "")]
            assert [reply.code for reply in missing] == [ResponseCode.QUERY_NOT_FOUND] * 3
            assert "indexLastUpdateTimestamp" in missing[0].ext

    run(check())


def test_an_answer_has_bounds_and_prefers_what_is_new(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"mapped_file_size_commit_log": 32 << 20, "max_message_size": 4 << 20}) as broker:
            client = await broker.client()
            for number in range(4):
                ok(await client.send("orders", b"%d" % number + bytes(3 << 20), properties={"KEYS": "a"}))
            found = records(await query(client, "a"))
            assert [record.body[:1] for record in found] == [b"2", b"3"]

    run(check())


def test_queries_do_not_hold_up_the_others(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, other = await broker.client(), await broker.client()
            for number in range(50):
                ok(await client.send("orders", b"%d" % number, properties={"KEYS": "a"}))
            asked = [asyncio.create_task(query(client, "a", most=50)) for _ in range(100)]
            ok(await other.send("orders"))
            assert {len(records(reply)) for reply in await asyncio.gather(*asked)} == {50}

    run(check())


def test_a_broker_without_an_index_says_so(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_index_enable": False}) as broker:
            reply = await query(await broker.client(), "a")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "messageIndexEnable" in (reply.remark or "")
            assert str(home.path) not in (reply.remark or "")

    run(check())


def test_a_message_is_shown_by_its_id(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            sent = ok(await client.send("orders", b"seen", properties={"TAGS": "t"}))
            offset = decode_message_id(sent.ext["msgId"])[1]
            (record,) = records(await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset))
            assert (record.body, record.tags, record.msg_id) == (b"seen", "t", sent.ext["msgId"])

    run(check())


@pytest.mark.parametrize("offset", [1, 1 << 40, -1, 2**63 - 1])
def test_no_message_is_shown_where_none_begins(home: BrokerHome, run: Run, offset: int) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"seen"))
            reply = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.body == b""

    run(check())
