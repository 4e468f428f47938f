"""Pulling: the checks in their order, and the answer to each situation of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from support.brokers import WAIT_S, BrokerHome, RawClient, RunningBroker, bodies, ok, pull_arguments, records
from support.stores import is_one_sentence

from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.protocol.bodies.clients import ConsumerData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.subscription import MAX_TAGS, SubscriptionData
from penstock.protocol.versions import Language

if TYPE_CHECKING:
    from broker.conftest import Run


async def filled(broker: RunningBroker, count: int = 3, **changes: Any) -> RawClient:
    """A client that has sent so many messages to the topic orders."""
    client = await broker.client()
    for number in range(count):
        ok(await client.send("orders", b"%d" % number, **changes))
    broker.store.catch_up()
    return client


def bounds(reply: Command) -> tuple[int, int, int]:
    """Next, lowest and highest offset; every answer has them."""
    assert reply.ext["suggestWhichBrokerId"] == "0"
    return int(reply.ext["nextBeginOffset"]), int(reply.ext["minOffset"]), int(reply.ext["maxOffset"])


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_messages_come_in_their_order_with_the_next_offset(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker, 5)
            reply = await client.ask(code, **pull_arguments("orders", 1, maxMsgNums=3, sysFlag=4 | 16))
            assert bodies(reply) == [b"1", b"2", b"3"]
            assert bounds(reply) == (4, 0, 5)
            assert reply.remark == "FOUND"
            assert broker.state.counters.got["orders", "CID_test"][0] == 3

    run(check())


def test_a_page_has_at_most_32_messages_and_at_least_one(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker, 40)
            assert len(records(await client.pull("orders", maxMsgNums=1000))) == 32
            assert len(records(await client.pull("orders", maxMsgNums=0))) == 1
            ok(await client.send("orders", bytes(300_000)))
            assert len(records(await client.pull("orders", 40))) == 1

    run(check())


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, 3),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
def test_an_offset_at_or_outside_the_bounds(
    home: BrokerHome, run: Run, offset: int, code: ResponseCode, next_offset: int
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            reply = await client.pull("orders", offset)
            assert reply.code == code
            assert bounds(reply) == (next_offset, 0, 3)

    run(check())


@pytest.mark.parametrize(("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (7, ResponseCode.PULL_OFFSET_MOVED)])
def test_a_queue_without_messages(home: BrokerHome, run: Run, offset: int, code: ResponseCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            reply = await client.pull("orders", offset, queueId=3)
            assert reply.code == code
            assert bounds(reply) == (0, 0, 0)

    run(check())


def test_tags_are_picked_by_the_broker_and_none_that_match_is_tried_again(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for number, tag in enumerate("abcab"):
                ok(await client.send("orders", b"%d" % number, properties={"TAGS": tag}))
            assert bodies(await client.pull("orders", subscription="a")) == [b"0", b"3"]
            assert bodies(await client.pull("orders", subscription="b || c")) == [b"1", b"2", b"4"]
            reply = await client.pull("orders", subscription="z")
            assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert bounds(reply) == (5, 0, 5)
            assert reply.body == b""

    run(check())


def test_an_offset_below_the_oldest_message_moves_there(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            broker.store.catch_up()
            queue = broker.store.queues.find("orders", 0)
            assert queue is not None
            queue.min_offset = 2
            reply = await client.pull("orders", 1)
            assert reply.code == ResponseCode.PULL_OFFSET_MOVED
            assert bounds(reply) == (2, 2, 3)

    run(check())


def test_bit_0_commits_the_offset_that_comes_along(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            ok(await client.pull("orders", 2, sysFlag=5, commitOffset=2))
            assert broker.state.offsets.query("CID_test", "orders", 0) == 2
            ok(await client.pull("orders", 2, sysFlag=4, commitOffset=1))
            ok(await client.pull("orders", 2, sysFlag=5, commitOffset=-1))
            assert broker.state.offsets.query("CID_test", "orders", 0) == 2

    run(check())


async def refused(client: RawClient, topic: str, **changes: Any) -> ResponseCode:
    reply = await client.pull(topic, **changes)
    assert is_one_sentence(reply.remark or ""), reply.remark
    return ResponseCode(reply.code)


def test_the_checks_and_their_order(home: BrokerHome, run: Run) -> None:
    """Each step puts right what was refused before, and meets the next check."""

    async def check() -> None:
        async with home.running(auto_create_subscription_group=False, broker_permission=2) as broker:
            state, client = broker.state, await broker.client()
            state.groups.update(SubscriptionGroup(name="CID_off", consume_enable=False))
            state.topics.update(TopicConfig(name="closed", perm=2, read_queue_nums=1))
            state.topics.update(TopicConfig(name="open", read_queue_nums=2, write_queue_nums=8))
            wrong = {"consumerGroup": "CID_none", "queueId": 9}
            assert await refused(client, "none", **wrong) is ResponseCode.NO_PERMISSION
            state.settings.change(broker_permission=6)
            assert await refused(client, "none", **wrong) is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            wrong["consumerGroup"] = "CID_off"
            assert await refused(client, "none", **wrong) is ResponseCode.NO_PERMISSION
            state.groups.update(SubscriptionGroup(name="CID_off"))
            assert await refused(client, "none", **wrong) is ResponseCode.TOPIC_NOT_EXIST
            assert await refused(client, "closed", **wrong) is ResponseCode.NO_PERMISSION
            assert await refused(client, "open", **wrong) is ResponseCode.SYSTEM_ERROR
            assert await refused(client, "open", **{**wrong, "queueId": 2}) is ResponseCode.SYSTEM_ERROR
            assert await refused(client, "open", **{**wrong, "queueId": -1}) is ResponseCode.SYSTEM_ERROR
            wrong["queueId"] = 1
            parse = {**wrong, "subscription": "||"}
            assert await refused(client, "open", **parse) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
            known = {**wrong, "sysFlag": 0, "subVersion": 5}
            assert await refused(client, "open", **known) is ResponseCode.SUBSCRIPTION_NOT_EXIST
            await client.heartbeat("me", consumes={"CID_off": {"elsewhere": "*"}}, version=4)
            assert await refused(client, "open", **known) is ResponseCode.SUBSCRIPTION_NOT_EXIST
            await client.heartbeat("me", consumes={"CID_off": {"open": "*"}}, version=4)
            assert await refused(client, "open", **known) is ResponseCode.SUBSCRIPTION_NOT_LATEST
            await client.heartbeat("me", consumes={"CID_off": {"open": "*"}}, version=5)
            assert (await client.pull("open", **known)).code == ResponseCode.PULL_NOT_FOUND

    run(check())


def test_what_was_allowed_once_is_checked_anew_after_each_change(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_subscription_group=False) as broker:
            state, client = broker.state, await broker.client()
            group, topic = SubscriptionGroup(name="CID_test"), TopicConfig(name="orders", read_queue_nums=2)
            state.groups.update(group)
            state.topics.update(topic)
            ok(await client.send("orders", queueId=1))

            async def pull() -> ResponseCode:
                return ResponseCode((await client.pull("orders", queueId=1)).code)

            def renew() -> None:
                state.groups.update(group)
                state.topics.update(topic)
                state.settings.change(broker_permission=6)

            for change, code in (
                (lambda: state.settings.change(broker_permission=2), ResponseCode.NO_PERMISSION),
                (lambda: state.groups.delete("CID_test"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
                (
                    lambda: state.groups.update(msgspec.structs.replace(group, consume_enable=False)),
                    ResponseCode.NO_PERMISSION,
                ),
                (lambda: state.topics.delete("orders"), ResponseCode.TOPIC_NOT_EXIST),
                (lambda: state.topics.update(msgspec.structs.replace(topic, perm=2)), ResponseCode.NO_PERMISSION),
                (
                    lambda: state.topics.update(msgspec.structs.replace(topic, read_queue_nums=1)),
                    ResponseCode.SYSTEM_ERROR,
                ),
            ):
                assert await pull() is ResponseCode.SUCCESS
                change()
                assert await pull() is code
                renew()

    run(check())


def test_a_pull_with_a_binary_header_is_answered_in_kind(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            arguments = {name: str(value) for name, value in pull_arguments("orders", 1).items()}
            request = Command(RequestCode.PULL_MESSAGE, arguments, binary=True)
            reply = await client.connection.request(request, WAIT_S)
            assert reply.binary
            assert bodies(reply) == [b"1", b"2"]
            assert bounds(reply) == (3, 0, 3)

    run(check())


def test_a_group_is_made_by_its_first_pull(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            ok(await client.pull("orders", consumerGroup="CID_new"))
            assert broker.state.groups.find("CID_new") is not None
            reply = await client.pull("orders", consumerGroup="no/such\x01name")
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(check())


def test_without_bit_2_the_subscription_of_the_heartbeat_counts(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for tag in "ab":
                ok(await client.send("orders", tag.encode(), properties={"TAGS": tag}))
            await client.heartbeat("me", consumes={"CID_test": {"orders": "b"}}, version=9)
            reply = await client.pull("orders", sysFlag=0, subscription="a", subVersion=9)
            assert bodies(reply) == [b"b"]

    run(check())


def test_too_many_tags_are_refused_wherever_they_come_from(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            ok(await client.pull("orders"))
            long = "a||" * MAX_TAGS
            assert await refused(client, "orders", subscription=long) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
            kept = SubscriptionData(topic="orders", sub_string=long, tags_set=["a"], sub_version=9)
            data = ConsumerData(group_name="CID_test", subscription_data_set=[kept])
            (served,) = broker.broker.server.connections
            broker.state.clients.add_consumer(data, "me", served, Language.JAVA, 0)
            for _ in range(2):
                assert await refused(client, "orders", sysFlag=0) is ResponseCode.FILTER_DATA_NOT_EXIST

    run(check())


def test_a_group_that_may_not_broadcast(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            broker.state.groups.update(SubscriptionGroup(name="CID_test", consume_broadcast_enable=False))
            model = {"messageModel": "BROADCASTING"}
            await client.heartbeat("me", consumes={"CID_test": {"orders": "*"}}, group=model)
            assert await refused(client, "orders", sysFlag=0) is ResponseCode.NO_PERMISSION

    run(check())


def test_sql92_is_refused_unless_consumers_may_use_it(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=False) as broker:
            client = await filled(broker)
            sql = {"subscription": "a > 1", "expressionType": "SQL92"}
            assert await refused(client, "orders", **sql) is ResponseCode.SYSTEM_ERROR
            await client.heartbeat("me", consumes={"CID_test": {"orders": "a > 1"}}, expression_type="SQL92")
            assert await refused(client, "orders", sysFlag=0) is ResponseCode.SYSTEM_ERROR

    run(check())


def test_an_sql_filter_picks_messages_page_by_page(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=True) as broker:
            client = await broker.client()
            for number in range(100):
                ok(await client.send("orders", b"%d" % number, properties={"number": number}))
            sql = {"subscription": "number = 70", "expressionType": "SQL92"}
            reply = await client.pull("orders", **sql)
            assert bodies(reply) == [b"70"]
            assert 71 <= bounds(reply)[0] <= 100
            reply = await client.pull("orders", 71, **sql)
            assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert bounds(reply) == (100, 0, 100)
            broken = {"subscription": "number = ", "expressionType": "SQL92"}
            assert await refused(client, "orders", **broken) is ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(check())
