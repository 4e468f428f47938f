"""Sending: what is stored, and what the producer is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RunningBroker, ok, records, send_arguments

from penstock.format.config_tables import TopicConfig
from penstock.format.record import Record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run


async def stored(broker: RunningBroker, topic: str, queue_id: int = 0) -> list[Record]:
    client = await broker.client()
    return records(await client.pull(topic, queueId=queue_id))


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_message_is_stored_as_it_was_sent(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            properties = {"KEYS": "k1 k2", "TAGS": "paid", "colour": "blau é"}
            changes = {"flag": 7, "bornTimestamp": 1_600_000_000_123, "queueId": 2, "properties": properties}
            if code == RequestCode.SEND_MESSAGE:
                reply = ok(await client.ask(code, b"two shirts", **send_arguments("orders", **changes)))
            else:
                reply = ok(await client.send("orders", b"two shirts", **changes))
            (record,) = await stored(broker, "orders", 2)
            assert (record.body, record.flag, record.born_timestamp) == (b"two shirts", 7, 1_600_000_000_123)
            assert record.properties == {**properties, "CLUSTER": "DefaultCluster"}
            assert record.born_host.startswith("127.0.0.1:")
            assert record.born_host != "127.0.0.1:0"
            assert record.store_host == broker.store.settings.store_host
            assert reply.ext == {
                "msgId": record.msg_id,
                "queueId": "2",
                "queueOffset": "0",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }

    run(check())


def test_queue_offsets_count_up_and_ids_lead_to_the_messages(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            replies = [ok(await client.send("orders", b"%d" % number)) for number in range(3)]
            assert [reply.ext["queueOffset"] for reply in replies] == ["0", "1", "2"]
            found = [broker.store.look_up_id(reply.ext["msgId"]) for reply in replies]
            assert [record.body for record in found if record] == [b"0", b"1", b"2"]

    run(check())


def test_a_one_way_send_is_stored_and_not_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            client.tell(RequestCode.SEND_MESSAGE, b"quiet", **send_arguments("orders"))
            reply = ok(await client.send("orders", b"loud"))
            assert reply.ext["queueOffset"] == "1"
            assert [record.body for record in await stored(broker, "orders")] == [b"quiet", b"loud"]

    run(check())


def test_a_negative_queue_is_the_brokers_choice(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            chosen = {ok(await client.send("orders", queueId=-1)).ext["queueId"] for _ in range(200)}
            assert chosen == {"0", "1", "2", "3"}

    run(check())


def test_a_send_creates_its_topic_after_the_template(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("four"))
            ok(await client.send("eight", defaultTopicQueueNums=100, queueId=7))
            ok(await client.send("one", defaultTopicQueueNums=0))
            queues = {name: broker.state.topics.find(name) for name in ("four", "eight", "one")}
            assert {name: topic.write_queue_nums for name, topic in queues.items() if topic} == {
                "four": 4,
                "eight": 8,
                "one": 1,
            }
            assert {topic.perm for topic in queues.values() if topic} == {6}

    run(check())


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("", {}),
        ("WAIT\x01true", {}),
        ("WAIT\x01true\x02", {}),
        ("TAGS\x01a\x02WAIT\x01true", {"TAGS": "a"}),
        ("WAIT\x01true\x02TAGS\x01a\x02", {"TAGS": "a"}),
        ("KEYS\x01k\x02WAIT\x01true\x02TAGS\x01a", {"KEYS": "k", "TAGS": "a"}),
        ("NOWAIT\x01true\x02TAGS\x01a", {"NOWAIT": "true", "TAGS": "a"}),
        ("WAIT\x01truely", {}),
        ("WAIT\x01true\x02TAGS\x01a\x02WAIT\x01false", {"TAGS": "a"}),
        ("WAIT\x01true\x02NOWAIT\x01true\x02TAGS\x01a", {"NOWAIT": "true", "TAGS": "a"}),
        ("TAGS\x01a\x02CLUSTER\x01elsewhere", {"TAGS": "a"}),
        ("MYDELAY\x013", {"MYDELAY": "3"}),
        ("DELAY\x010\x02TAGS\x01a", {"DELAY": "0", "TAGS": "a"}),
    ],
)
def test_properties_are_kept_and_the_cluster_is_added(
    home: BrokerHome, run: Run, properties: str, expected: dict[str, str]
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"first, by the long way"))
            ok(await client.send("orders", properties=properties))
            record = (await stored(broker, "orders"))[1]
            kept = {name: value for name, value in record.properties.items() if name != "WAIT"}
            assert kept == {**expected, "CLUSTER": "DefaultCluster"}

    run(check())


def test_large_and_empty_bodies_and_system_flags_pass_untouched(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            large = bytes(range(256)) * 800
            ok(await client.send("orders", large, sysFlag=1))
            ok(await client.send("orders", b"", sysFlag=0))
            first, second = await stored(broker, "orders")
            assert (first.body, first.sys_flag) == (large, 1)
            assert second.body == b""

    run(check())


def test_a_binary_header_is_answered_with_one(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ext = {name: str(value) for name, value in send_arguments("orders", properties="TAGS\x01a").items()}
            request = Command(RequestCode.SEND_MESSAGE, ext, b"x", binary=True)
            reply = ok(await client.connection.request(request, 10))
            assert reply.binary
            assert reply.ext["queueOffset"] == "0"

    run(check())


def test_a_topic_with_several_tags_a_message_marks_its_messages(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            broker.state.topics.update(TopicConfig(name="many", filter_type="MULTI_TAG"))
            ok(await client.send("many"))
            (record,) = await stored(broker, "many")
            assert record.sys_flag == 2

    run(check())


def test_a_retry_that_a_client_sends_itself_is_delayed_until_it_is_a_dead_letter(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            retried = {"DELAY": "3", "RETRY_TOPIC": "orders"}
            ok(await client.send("%RETRY%CID", reconsumeTimes=1, maxReconsumeTimes=2, properties=retried))
            ok(await client.send("%RETRY%CID", b"dead", reconsumeTimes=2, maxReconsumeTimes=2, properties=retried))
            assert broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1
            (record,) = await stored(broker, "%DLQ%CID")
            assert (record.body, record.reconsume_times) == (b"dead", 2)
            assert "DELAY" not in record.properties

    run(check())


def test_an_old_client_has_its_retries_counted_by_the_group(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for times in (15, 16):
                ok(await client.send("%RETRY%CID", version=63, reconsumeTimes=times, maxReconsumeTimes=1))
            assert broker.store.max_offset("%RETRY%CID", 0) == 1
            assert broker.store.max_offset("%DLQ%CID", 0) == 1

    run(check())


def test_a_transactional_message_goes_where_transactions_say(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", properties={"TRAN_MSG": "true"}, sysFlag=4))
            assert broker.store.max_offset("orders", 0) == 0
            assert broker.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1

    run(check())


def test_transactional_messages_can_be_refused(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(reject_transaction_message=True) as broker:
            client = await broker.client()
            reply = await client.send("orders", properties={"TRAN_MSG": "true"})
            assert reply.code == ResponseCode.NO_PERMISSION
            assert "rejectTransactionMessage" in (reply.remark or "")

    run(check())
