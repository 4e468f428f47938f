"""Sends that are refused: the code, the sentence, and that nothing was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RunningBroker, ok, send_arguments
from support.stores import is_one_sentence

from penstock.broker.broker import frames_note
from penstock.format.config_tables import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run


async def refused(broker: RunningBroker, topic: str, body: bytes = b"x", **changes: Any) -> Command:
    """The answer to a send of which nothing may be stored."""
    client = await broker.client()
    end = broker.store.log.max_offset
    reply = await client.send(topic, body, **changes)
    assert broker.store.log.max_offset == end
    assert is_one_sentence(reply.remark or ""), reply.remark
    assert reply.ext["MSG_REGION"] == "DefaultRegion"
    assert reply.ext["TRACE_ON"] == "true"
    return reply


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", ResponseCode.SYSTEM_ERROR),
        ("../../etc", ResponseCode.SYSTEM_ERROR),
        ("two words", ResponseCode.SYSTEM_ERROR),
        ("päckchen", ResponseCode.SYSTEM_ERROR),
        ("t" * 128, ResponseCode.SYSTEM_ERROR),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("TRANS_CHECK_MAX_TIME_TOPIC", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("OFFSET_MOVED_EVENT", ResponseCode.NO_PERMISSION),
    ],
)
def test_a_topic_that_nobody_may_send_to(home: BrokerHome, run: Run, topic: str, code: ResponseCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            assert (await refused(broker, topic)).code == code

    run(check())


def test_the_longest_topic_is_taken(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("t" * 127))

    run(check())


def test_an_unknown_topic_where_sends_create_none(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_topic_enable=False) as broker:
            assert (await refused(broker, "orders")).code == ResponseCode.TOPIC_NOT_EXIST
            assert broker.state.topics.find("orders") is None

    run(check())


def test_an_unknown_topic_with_a_template_that_may_not_be_inherited(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            broker.state.topics.update(TopicConfig(name="plain"))
            assert (await refused(broker, "orders", defaultTopic="plain")).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await refused(broker, "orders", defaultTopic="nobody")).code == ResponseCode.TOPIC_NOT_EXIST

    run(check())


def test_more_topics_than_there_may_be(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(max_topics=12) as broker:
            replies = [await (await broker.client()).send(f"topic{number}") for number in range(12)]
            assert {reply.code for reply in replies} == {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}
            assert len(broker.state.topics.all()) == 12

    run(check())


def test_a_queue_that_there_is_not(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            broker.state.topics.update(TopicConfig(name="orders", read_queue_nums=6, write_queue_nums=2))
            client = await broker.client()
            ok(await client.send("orders", queueId=5))
            reply = await refused(broker, "orders", queueId=6)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "6 queues, and no queue 6" in (reply.remark or "")

    run(check())


def test_a_topic_that_may_not_be_written_to(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.state.topics.update(TopicConfig(name="orders", perm=4))
            assert (await refused(broker, "orders")).code == ResponseCode.NO_PERMISSION

    run(check())


def test_a_broker_that_may_not_be_written_to(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.state.settings.change(broker_permission=4)
            assert (await refused(broker, "orders")).code == ResponseCode.NO_PERMISSION
            broker.state.settings.change(broker_permission=6)
            ok(await client.send("orders"))

    run(check())


def test_a_broker_that_does_not_take_messages_yet(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(start_accept_send_request_time_stamp=2**62) as broker:
            reply = await refused(broker, "orders")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "startAcceptSendRequestTimeStamp" in (reply.remark or "")

    run(check())


def test_a_body_or_properties_that_are_too_long(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            limit = broker.store.settings.max_message_size
            client = await broker.client()
            ok(await client.send("orders", bytes(limit)))
            assert (await refused(broker, "orders", bytes(limit + 1))).code == ResponseCode.MESSAGE_ILLEGAL
            long = "p\x01" + "x" * 32_768
            assert (await refused(broker, "orders", properties=long)).code == ResponseCode.MESSAGE_ILLEGAL

    run(check())


def test_a_delay_that_is_no_number(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            reply = await refused(broker, "orders", properties={"DELAY": "soon"})
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL

    run(check())


def test_a_retry_for_a_group_that_there_is_not(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_subscription_group=False) as broker:
            reply = await refused(broker, "%RETRY%CID")
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(check())


@pytest.mark.parametrize("missing", ["topic", "queueId", "producerGroup"])
def test_an_argument_that_is_missing_is_named(home: BrokerHome, run: Run, missing: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            arguments = {name: value for name, value in send_arguments("orders").items() if name != missing}
            reply = await client.ask(RequestCode.SEND_MESSAGE, b"x", **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert f"'{missing}'" in (reply.remark or "")

    run(check())


@pytest.mark.parametrize("properties", ["p\x01" + "\0" * 1100, "p\x01v" + "\0" * 1100 + "v\x02q\x01w\x02"])
def test_properties_that_look_like_a_lost_sector(home: BrokerHome, run: Run, properties: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            ok(await (await broker.client()).send("orders"))
            assert (await refused(broker, "orders", properties=properties)).code == ResponseCode.MESSAGE_ILLEGAL

    run(check())


def test_a_property_that_ends_with_nul_survives_a_restart(home: BrokerHome, run: Run) -> None:
    """The broker adds its own properties after it, so nothing looks like a lost sector."""
    count = 300

    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(count):
                ok(await client.send("orders", queueId=0, properties="p\x01v\0"))
        async with home.running() as broker:
            assert broker.store.report.notes == []
            assert broker.store.max_offset("orders", 0) == count
            offset = 0
            while offset < count:
                page = broker.store.get("orders", 0, offset)
                assert page.messages
                assert all(each.properties["p"] == "v\0" for each in page.messages)
                offset = page.next_begin_offset

    run(check())


def test_a_message_may_be_as_large_as_the_setting_says_and_the_start_says_who_cannot_read_it(
    home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        large = {"mapped_file_size_commit_log": 64 << 20, "max_message_size": 17 << 20}
        async with home.running(store=large) as broker:
            client = await broker.client()
            ok(await client.send("orders", bytes((16 << 20) + 1)))
            refused = await client.send("orders", bytes((17 << 20) + 1))
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "maxMessageSize=17825792: clients read frames of at most 16777216 bytes" in caplog.text

    run(check())


def test_frames_follow_the_largest_message_up_to_a_ceiling() -> None:
    assert frames_note(4 << 20) == frames_note(15 << 20) == ""
    assert "takes messages" not in frames_note(127 << 20)
    assert f"takes messages of at most {127 << 20} bytes" in frames_note(1 << 30)
