"""Administration over the network."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from client.test_push_consumer import send_numbers
from support.clients import Gathered, until_true

from penstock.client import Admin, Message, Producer, PullConsumer, PushConsumer, PushOptions, ReceivedMessage
from penstock.errors import BadMessage, NoRoute, Refused
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.clients import CMResult

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}


def test_topics_are_made_changed_and_deleted(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Admin(b.namesrv) as admin:
            assert await admin.topics.create("made", queues=3) == [b.address]
            assert "made" in await admin.topics.names()
            assert "made" in await admin.topics.names("DefaultCluster")
            config = (await admin.topics.config("made"))["broker-a"]
            assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
            await admin.topics.create("made", read_queues=5, write_queues=2, perm=4, broker=b.address)
            config = (await admin.topics.config("made"))["broker-a"]
            assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (5, 2, 4)
            route = await admin.topics.route("made")
            assert (len(route.subscribe_queues), len(route.publish_queues)) == (5, 0)
            assert await admin.topics.clusters("made") == {"DefaultCluster"}
            assert await admin.topics.delete("made") == [b.address]
            assert "made" not in await admin.topics.names()
            with pytest.raises(Refused, match="characters other than letters"):
                await admin.topics.create("no topic")

    run(main())


def test_an_ordered_topic_is_told_to_the_name_servers_and_forgotten_with_it(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Admin(b.namesrv) as admin:
            await admin.topics.create("in-order", queues=2, order=True)
            assert await admin.cluster.get_kv("ORDER_TOPIC_CONFIG", "in-order") == "broker-a:2"
            assert (await admin.topics.route("in-order")).data.order_topic_conf == "broker-a:2"
            await admin.topics.delete("in-order")
            assert await admin.cluster.get_kv("ORDER_TOPIC_CONFIG", "in-order") is None

    run(main())


def test_the_statistics_of_a_topic_are_those_of_its_queues(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        await send_numbers(b.namesrv, 0, 20)
        b.settle()
        async with Admin(b.namesrv) as admin:
            stats = await admin.topics.stats("orders")
            assert [queue.queue_id for queue in stats] == [0, 1, 2, 3]
            assert sum(at.max_offset - at.min_offset for at in stats.values()) == 20
            assert all(abs(at.last_update_timestamp - time.time() * 1000) < 60_000 for at in stats.values())
            with pytest.raises(NoRoute):
                await admin.topics.stats("%DLQ%unknown")

    run(main())


def test_groups_are_made_changed_and_deleted_with_their_topics(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with Admin(b.namesrv) as admin:
            await admin.groups.update(SubscriptionGroup(name="CID", retry_max_times=3))
            assert (await admin.groups.configs())["CID"].retry_max_times == 3
            async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
                await gathered.until_has(await send_numbers(b.namesrv, 0, 10))
            assert "%RETRY%CID" in await admin.topics.names()
            await admin.groups.delete("CID", remove_offset=True)
            assert "CID" not in await admin.groups.configs()
            assert "%RETRY%CID" not in await admin.topics.names()
            queue = (await admin.offsets.queues("orders"))[0]
            assert await admin.offsets.committed("CID", queue, exact=True) is None

    run(main())


def test_the_progress_of_a_group_is_what_it_has_consumed_and_what_it_has_not(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with Admin(b.namesrv) as admin:
            async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
                await gathered.until_has(await send_numbers(b.namesrv, 0, 40))
            await send_numbers(b.namesrv, 40, 52)
            b.settle()
            progress = await admin.groups.progress("CID", "orders")
            assert len(progress.queues) == 4
            assert (progress.lag, sum(queue.consumer_offset for queue in progress.queues)) == (12, 40)
            assert all(queue.lag == queue.broker_offset - queue.consumer_offset for queue in progress.queues)
            everything = await admin.groups.progress("CID")
            assert {queue.queue.topic for queue in everything.queues} >= {"orders"}
            assert await admin.topics.groups("orders") == ["CID"]
            assert "orders" in await admin.groups.topics("CID")

    run(main())


def test_who_is_connected(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Admin(b.namesrv) as admin:
            with pytest.raises(Refused) as caught:
                await admin.groups.connections("CID")
            assert caught.value.code == 206
            with pytest.raises(Refused):
                await admin.groups.producers("PID", "orders")
            async with (
                PushConsumer("CID", Gathered(), b.namesrv, subscriptions={"orders": "paid"}) as consumer,
                Producer("PID", b.namesrv) as producer,
            ):
                await producer.send(Message("orders", b"x"))
                consumers = await admin.groups.connections("CID")
                assert [each.client_id for each in consumers.connection_set] == [consumer.client_id]
                assert consumers.subscription_table["orders"].sub_string == "paid"
                (mine,) = (await admin.groups.producers("PID", "orders")).connection_set
                assert (mine.language, mine.client_addr.split(":")[0]) == ("PYTHON", "127.0.0.1")
                everywhere = await admin.groups.all_producers()
                assert [each.client_id for each in everywhere["PID"]] == [mine.client_id]
                here = await admin.groups.all_producers(broker=b.address)
                assert [each.client_id for each in here["PID"]] == [mine.client_id]
                await until_true(lambda: len(consumer.assigned) == 5)
                info = await admin.groups.running_info("CID", consumer.client_id)
                assert {queue.topic for queue in info.mq_table} == {"orders", "%RETRY%CID"}
                assert info.properties["PROP_CONSUMEORDERLY"] == "false"

    run(main())


def test_offsets_of_a_group_that_runs_are_reset_at_once(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with Admin(b.namesrv) as admin, PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
            sent = await send_numbers(b.namesrv, 0, 40)
            await gathered.until_has(sent)
            offsets = await admin.offsets.reset("CID", "orders", 0)
            assert set(offsets.values()) == {0}
            await gathered.until(lambda: all(count >= 2 for count in gathered.counts.values()))
            ends = await admin.offsets.reset("CID", "orders", -1)
            assert sum(ends.values()) == 40

    run(main())


def test_offsets_of_a_group_that_is_away_are_reset_for_its_next_start(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        sent = await send_numbers(b.namesrv, 0, 40)
        first, second = Gathered(), Gathered()
        async with PushConsumer("CID", first, b.namesrv, subscriptions=ORDERS):
            await first.until_has(sent)
        async with Admin(b.namesrv) as admin:
            assert set((await admin.offsets.reset("CID", "orders", 0)).values()) == {0}
            assert (await admin.groups.progress("CID", "orders")).lag == 40
        async with PushConsumer("CID", second, b.namesrv, subscriptions=ORDERS):
            await second.until_has(sent)

    run(main())


def test_a_group_goes_on_where_another_one_is(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
            await gathered.until_has(await send_numbers(b.namesrv, 0, 20))
        async with Admin(b.namesrv) as admin, PullConsumer("other", b.namesrv) as other:
            await admin.offsets.clone("CID", "other", "orders", offline=True)
            committed = [await other.offsets.committed("other", queue) for queue in await other.queues("orders")]
            assert sum(committed) == 20  # type: ignore[arg-type]
            spans = await admin.offsets.time_span("CID", "orders")
            assert len(spans) == 4

    run(main())


def test_messages_are_found_by_key_by_id_and_by_place(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer, Admin(b.namesrv) as admin:
            results = [
                await producer.send(Message("orders", b"%d" % number, keys=("all", f"order_{number}")))
                for number in range(5)
            ]
            sent = results[3]
            b.settle()
            by_key = await admin.messages.by_key("orders", "order_3")
            by_unique = await admin.messages.by_unique_id("orders", sent.msg_id)
            by_offset = await admin.messages.by_offset_id(sent.offset_msg_id)
            at_place = await admin.messages.at(sent.queue, sent.queue_offset)
            found = [*by_key, *by_unique, by_offset, at_place]
            assert [message.body for message in found if message] == [b"3"] * 4
            assert [m.body for m in await admin.messages.by_key("orders", "all")] == [b"0", b"1", b"2", b"3", b"4"]
            assert len(await admin.messages.by_key("orders", "all", max_messages=2)) == 2
            for name in (sent.msg_id, sent.offset_msg_id):
                assert [message.body for message in await admin.messages.by_id(name, "orders")] == [b"3"]
            assert await admin.messages.by_key("orders", "nothing") == []
            assert await admin.messages.at(sent.queue, 99) is None
            with pytest.raises(BadMessage, match="is not a message id"):
                await admin.messages.by_offset_id("xyz")
            units = await admin.messages.units(sent.queue, 0, 10)
            assert (units.min_queue_index, len(units.queue_data)) == (0, units.max_queue_index)

    run(main())


def test_a_message_is_consumed_by_whom_the_administrator_says(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered(lambda message: None)
        async with (
            Admin(b.namesrv) as admin,
            Producer("PID", b.namesrv) as producer,
            PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS) as consumer,
        ):
            sent = await producer.send(Message("orders", b"again"))
            await gathered.until_count(1)
            result = await admin.messages.consume_directly("CID", consumer.client_id, sent.offset_msg_id)
            assert result.consume_result is CMResult.CR_SUCCESS
        assert gathered.bodies == [b"again"] * 2

    run(main())


def test_brokers_and_name_servers_are_looked_at_and_set(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Admin(b.namesrv) as admin:
            info = await admin.cluster.info()
            assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
            assert await admin.cluster.masters() == {"broker-a": b.address}
            with pytest.raises(NoRoute, match="no master broker in cluster 'nowhere'"):
                await admin.cluster.masters("nowhere")
            runtime = await admin.cluster.runtime_info(b.address)
            assert {"bootTimestamp", "msgPutTotalTodayNow", "brokerVersionDesc"} <= runtime.keys()
            config = await admin.cluster.broker_config(b.address)
            assert config["brokerName"] == "broker-a"
            await admin.cluster.update_broker_config(b.address, {"transactionCheckMax": "7"})
            assert (await admin.cluster.broker_config(b.address))["transactionCheckMax"] == "7"
            assert await admin.cluster.wipe_write_perm("broker-a") > 0
            assert (await admin.topics.route("orders")).publish_queues == ()
            assert await admin.cluster.add_write_perm("broker-a") > 0
            assert len((await admin.topics.route("orders")).publish_queues) == 4
            assert (await admin.cluster.namesrv_config())[b.namesrv]
            await admin.cluster.put_kv("mine", "a", "1")
            assert await admin.cluster.list_kv("mine") == {"a": "1"}
            await admin.cluster.delete_kv("mine", "a")
            assert await admin.cluster.list_kv("mine") == {}

    run(main())


def test_an_ordered_consumer_is_reset_too(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        options = PushOptions(ordered=True)
        async with (
            Admin(b.namesrv) as admin,
            PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options),
        ):
            await gathered.until_has(await send_numbers(b.namesrv, 0, 20))
            await admin.offsets.reset("CID", "orders", 0)
            await gathered.until(lambda: all(count >= 2 for count in gathered.counts.values()))
            again = await send_numbers(b.namesrv, 20, 30)
            await gathered.until_has(again)

    run(main())


def test_offsets_that_are_reset_during_a_handler_are_not_overwritten_by_it(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered, may_end = Gathered(), asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            await gathered(message)
            await may_end.wait()

        async with Producer("PID", b.namesrv) as producer:
            queue = (await producer.queues("orders"))[0]
            for number in range(5):
                await producer.send(Message("orders", b"%d" % number), queue=queue)
        async with (
            Admin(b.namesrv) as admin,
            PushConsumer(
                "CID", slow, b.namesrv, subscriptions=ORDERS, options=PushOptions(max_in_flight=5)
            ) as consumer,
        ):
            await gathered.until_count(5)
            await until_true(lambda: len(consumer.assigned) == 5)
            await consumer._store.save()  # as it does every five seconds: a reset is for queues with offsets
            held = consumer._assignments.table[queue]
            assert (await admin.offsets.reset("CID", "orders", -1))[queue] == 5
            await until_true(lambda: consumer._assignments.table.get(queue, held) is not held)
            may_end.set()
        async with PullConsumer("CID", b.namesrv) as look:
            assert await look.offsets.committed("CID", queue) == 5

    run(main())
