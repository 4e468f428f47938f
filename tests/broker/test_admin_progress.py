"""How far groups are, as administrators see it; and a queue's units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.brokers import BrokerHome, RawClient, RunningBroker, ok

from penstock.protocol.bodies.queues import MessageQueue, QueryConsumeQueueResponseBody
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper, QueryConsumeTimeSpanBody
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run


def queue(queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(broker_name="broker-a", queue_id=queue_id, topic=topic)


async def filled(broker: RunningBroker) -> RawClient:
    """Two topics with two messages in queue 0; a group has consumed one of the first and none of the second."""
    client = await broker.client()
    for topic in ("orders", "other"):
        for tag in "ab":
            ok(await client.send(topic, properties={"TAGS": tag, "n": tag}))
    broker.store.catch_up()
    broker.state.groups.find_or_create("CID")
    broker.state.offsets.commit("CID", "orders", 0, 1)
    broker.state.offsets.commit("CID", "other", 0, 0)
    return client


async def stats(client: RawClient, **arguments: object) -> dict[MessageQueue, OffsetWrapper]:
    reply = ok(await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CID", **arguments))
    return ConsumeStats.from_bytes(reply.body).offset_table


def test_a_groups_progress_by_queue(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            found = await stats(client)
            assert {each.topic for each in found} == {"orders", "other"}
            at = found[queue(0)]
            assert (at.broker_offset, at.consumer_offset) == (2, 1)
            assert at.last_timestamp == broker.store.store_time("orders", 0, 0)
            assert found[queue(0, "other")].last_timestamp == 0
            assert {each.topic for each in await stats(client, topic="orders")} == {"orders"}
            assert {each.topic for each in await stats(client, topic="", topicList="other;none")} == {"other"}

    run(check())


def test_what_a_group_no_longer_subscribes_to_is_left_out(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            await client.heartbeat("me", consumes={"CID": {"other": "*"}})
            assert {each.topic for each in await stats(client)} == {"other"}

    run(check())


def test_the_rate_is_that_of_the_pulls(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            ok(await client.pull("orders", consumerGroup="CID"))
            reply = ok(await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CID"))
            assert ConsumeStats.from_bytes(reply.body).consume_tps > 0

    run(check())


def test_all_groups_of_the_broker(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            reply = ok(await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False))
            found = ConsumeStatsList.from_bytes(reply.body)
            by_group = {group: per_topic for each in found.consume_stats_list for group, per_topic in each.items()}
            assert found.total_diff == 3
            assert [one.total_diff() for one in by_group["CID"]] == [1, 2]
            reply = ok(await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True))
            assert ConsumeStatsList.from_bytes(reply.body).total_diff == 0

    run(check())


def test_how_late_a_group_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await filled(broker)
            asked = {"topic": "orders", "group": "CID"}
            reply = ok(await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, **asked))
            spans = QueryConsumeTimeSpanBody.from_bytes(reply.body).consume_time_span_set
            first = next(span for span in spans if span.message_queue == queue(0))
            times = [broker.store.store_time("orders", 0, number) for number in (0, 1)]
            assert [first.min_time_stamp, first.max_time_stamp] == times
            assert first.consume_time_stamp == times[0]
            assert 0 <= first.delay_time <= broker.state.clock() - times[1]
            reply = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="none", group="CID")
            assert reply.code == ResponseCode.TOPIC_NOT_EXIST

    run(check())


def test_a_look_at_the_units_of_a_queue(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=True) as broker:
            client = await filled(broker)
            asked = {"topic": "orders", "queueId": 0, "index": 0, "count": 10, "consumerGroup": "CID"}
            reply = ok(await client.ask(RequestCode.QUERY_CONSUME_QUEUE, **asked))
            body = QueryConsumeQueueResponseBody.from_bytes(reply.body)
            assert (body.min_queue_index, body.max_queue_index) == (0, 2)
            assert [unit.tags_code for unit in body.queue_data] == [ord("a"), ord("b")]
            assert [unit.eval for unit in body.queue_data] == [False, False]
            assert body.filter_data == "CID@orders is not online!"
            for group in ({}, {"consumerGroup": ""}):
                alone = {name: value for name, value in asked.items() if name != "consumerGroup"}
                reply = ok(await client.ask(RequestCode.QUERY_CONSUME_QUEUE, **alone, **group))
                body = QueryConsumeQueueResponseBody.from_bytes(reply.body)
                assert [unit.eval for unit in body.queue_data] == [False, False], "no group selects it"
                assert body.filter_data is None
            for expression, kind in (("b", "TAG"), ("n = 'b'", "SQL92")):
                await client.heartbeat("me", consumes={"CID": {"orders": expression}}, expression_type=kind, version=9)
                reply = ok(await client.ask(RequestCode.QUERY_CONSUME_QUEUE, **asked))
                body = QueryConsumeQueueResponseBody.from_bytes(reply.body)
                assert [unit.eval for unit in body.queue_data] == [False, True], kind
                assert body.filter_data == "null"
                client.connection.close()
                client = await broker.client()
            reply = ok(await client.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**asked, "index": 1, "count": 1}))
            assert len(QueryConsumeQueueResponseBody.from_bytes(reply.body).queue_data) == 1
            reply = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**asked, "queueId": 9})
            assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())
