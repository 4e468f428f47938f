"""Sends, pulls, offsets, queries and transactions as plain calls: no connection, no command."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RunningBroker, ok, records
from support.core_clients import DONE, PlainClient, RecordedRequests
from support.loopback import until

from penstock.broker.operations_as_plain_calls import Core, Deferred, Denied, Operation, WriteGuard
from penstock.broker.request_reply import REPLY_TO_CLIENT, RequestReply
from penstock.broker.send import SendChecks
from penstock.broker.send_and_pull_results import PullOutcome, SendOutcome
from penstock.format.message_id import decode_message_id
from penstock.format.properties import encode_properties
from penstock.format.record import decode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.groups import SendBack
from penstock.protocol.headers.offsets import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from penstock.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullMessage, QueryMessage, ViewMessage
from penstock.protocol.headers.send import EndTransaction, PushReply, SendMessage
from penstock.protocol.versions import V4_9_8, Language
from penstock.store import MessageStore
from penstock.store.cold_reads import ColdRead

if TYPE_CHECKING:
    from broker.conftest import Run

ME = PlainClient("10.0.0.7", 4711)


def new_send(topic: str = "orders", **changes: Any) -> SendMessage:
    properties = encode_properties(changes.pop("properties", {})).decode()
    given: dict[str, Any] = {
        "producer_group": "PID",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_600_000_000_000,
        "flag": 0,
        "properties": properties,
    }
    return SendMessage(**{**given, **changes})


def new_pull(offset: int = 0, **changes: Any) -> PullMessage:
    given: dict[str, Any] = {
        "consumer_group": "CID",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_millis": 60_000,
        "sub_version": 0,
        "subscription": "*",
    }
    return PullMessage(**{**given, **changes})


def call(broker: RunningBroker, name: str, request: Any, *more: Any) -> Any:
    return broker.broker.core.find(name).call(ME, request, *more)


def offset_of(outcome: SendOutcome) -> int:
    return decode_message_id(outcome.msg_id)[1]


async def settled(deferred: Any) -> Any:
    assert isinstance(deferred, Deferred)
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    deferred.then(outcome.set_result)
    return await asyncio.wait_for(outcome, 60)


def test_a_message_is_sent_pulled_and_viewed(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            sent = call(broker, "send", new_send(properties={"KEYS": "k"}), b"two shirts")
            assert isinstance(sent, SendOutcome)
            assert (sent.code, sent.queue_id, sent.queue_offset) == (ResponseCode.SUCCESS, 0, 0)
            pulled = call(broker, "pull", new_pull())
            assert isinstance(pulled, PullOutcome)
            assert (pulled.code, pulled.next_begin_offset) == (ResponseCode.SUCCESS, 1)
            record = decode_record(pulled.page.records[0])
            assert (record.body, record.born_host) == (b"two shirts", "10.0.0.7:4711")
            assert call(broker, "view", ViewMessage(offset=offset_of(sent))) == pulled.page.records[0]
            asked = QueryMessage(topic="orders", key="k", max_num=8, begin_timestamp=0, end_timestamp=2**62)
            assert (await call(broker, "query", asked)).records == pulled.page.records
            asked.key = "another"
            assert (await call(broker, "query", asked)).code == ResponseCode.QUERY_NOT_FOUND

    run(check())


def test_a_pull_at_the_end_is_settled_by_the_next_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            call(broker, "send", new_send(), b"one")
            assert call(broker, "pull", new_pull(1)).code == ResponseCode.PULL_NOT_FOUND
            held = call(broker, "pull", new_pull(1, sys_flag=SUBSCRIPTION | SUSPEND))
            call(broker, "send", new_send(), b"two")
            pulled = await settled(held)
            assert [decode_record(record).body for record in pulled.page.records] == [b"two"]

    run(check())


def test_a_held_pull_that_fails_is_settled_with_its_error(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            call(broker, "send", new_send(), b"one")
            held = call(broker, "pull", new_pull(1, sys_flag=SUBSCRIPTION | SUSPEND))

            def fail(*_: Any) -> Any:
                raise ValueError("the queue is gone")

            with monkeypatch.context() as patch:
                waiting = asyncio.create_task(settled(held))
                await asyncio.sleep(0)
                patch.setattr(broker.store, "try_get", fail)
                broker.broker.held.release_all()
                assert isinstance(await waiting, ValueError)

    run(check())


@pytest.fixture
def cold(home: BrokerHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is in memory."""

    def try_get(store: MessageStore, *arguments: Any) -> ColdRead[Any]:
        return ColdRead(partial(store.get, *arguments))

    monkeypatch.setattr(MessageStore, "try_get", try_get)


@pytest.mark.usefixtures("cold")
def test_a_pull_of_messages_on_disk_is_awaited(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            call(broker, "send", new_send(), b"one")
            pulled = await call(broker, "pull", new_pull())
            assert (pulled.code, pulled.page.count) == (ResponseCode.SUCCESS, 1)
            held = await call(broker, "pull", new_pull(1, sys_flag=SUBSCRIPTION | SUSPEND))
            call(broker, "send", new_send(), b"two")
            assert (await settled(held)).page.count == 1

    run(check())


@pytest.mark.usefixtures("cold")
def test_a_client_gets_messages_that_are_on_disk(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert len(records(await client.pull("orders"))) == 1
            held = client.hold("orders", 1)
            await until(lambda: len(broker.broker.held) == 1)
            ok(await client.send("orders"))
            assert len(records(await held)) == 1

    run(check())


def test_an_offset_is_committed_and_queried(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            call(broker, "send", new_send(), b"one")
            assert call(broker, "max offset", GetMaxOffset(topic="orders", queue_id=0)).offset == 1
            queue = {"consumer_group": "CID", "topic": "orders", "queue_id": 0}
            assert call(broker, "commit offset", UpdateConsumerOffset(**queue, commit_offset=1)) is None
            assert call(broker, "query offset", QueryConsumerOffset(**queue)).offset == 1
            queue["topic"] = "nowhere"
            with pytest.raises(Refusal) as refusal:
                call(broker, "commit offset", UpdateConsumerOffset(**queue, commit_offset=1))
            assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST

    run(check())


def test_a_message_that_is_sent_back_goes_to_the_retry_topic(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "0s"}) as broker:
            sent = call(broker, "send", new_send(), b"one")
            request = SendBack(offset=offset_of(sent), group="CID", delay_level=0, max_reconsume_times=0)
            assert call(broker, "send back", request).code == ResponseCode.SUCCESS
            assert broker.store.max_offset("%DLQ%CID", 0) == 1, "no retry is allowed"
            with pytest.raises(Refusal, match="no message at offset"):
                call(broker, "send back", SendBack(offset=10**9, group="CID", delay_level=0))

    run(check())


def test_a_transaction_is_ended(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            sent = call(broker, "send", new_send(properties={"TRAN_MSG": "true", "PGROUP": "PID"}), b"one")
            assert broker.store.max_offset("orders", 0) == 0
            request = EndTransaction(
                producer_group="PID",
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=offset_of(sent),
                commit_or_rollback=TRANSACTION_COMMIT,
                msg_id="",
            )
            assert call(broker, "end transaction", request).code == ResponseCode.SUCCESS
            assert broker.store.max_offset("orders", 0) == 1

    run(check())


def test_a_send_waits_for_the_disk_unless_nobody_waits_for_its_outcome(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(sync=True) as broker:
            assert isinstance(call(broker, "send", new_send(), b"one-way", False), SendOutcome)
            assert len(broker.broker.pending_acks) == 0
            sent = await settled(call(broker, "send", new_send(), b"one"))
            assert (sent.code, sent.queue_offset) == (ResponseCode.SUCCESS, 1)

    run(check())


def test_a_refusal_is_an_error_with_a_code(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_topic_enable=False) as broker:
            with pytest.raises(Refusal) as refusal:
                call(broker, "send", new_send("nowhere"), b"x")
            assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST
            assert not isinstance(refusal.value, Denied)
            broker.broker.write_guard.close("test", "no more")
            with pytest.raises(Denied) as denial:
                call(broker, "send", new_send("nowhere"), b"x")
            assert denial.value.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(check())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_reply_message_is_pushed_to_the_client_that_asked(home: BrokerHome, run: Run, arrives: bool) -> None:
    async def check() -> None:
        async with home.running() as broker:
            state, requests, asker = broker.state, RecordedRequests(DONE if arrives else None), PlainClient()
            state.clients.add_producer("PID", "asker", asker, Language.JAVA, V4_9_8)
            checks = SendChecks(state.topics, state.groups, state.settings, state.clock)
            guard = broker.broker.write_guard
            forwarding = RequestReply(broker.store, state.clients, requests, checks, state.settings, state.clock, guard)
            sent = await forwarding.forward(ME, new_send(properties={REPLY_TO_CLIENT: "asker"}), b"yes")
            ((client, pushed),) = requests.asked
            assert client is asker
            assert isinstance(pushed, PushReply)
            assert (sent.code == ResponseCode.SUCCESS) is arrives
            assert broker.store.get("orders", 0, 0).messages[0].body == b"yes"

    run(check())


def test_a_guard_wraps_only_what_it_applies_to() -> None:
    def stay(client: Any, request: Any) -> None: ...

    guard = WriteGuard()
    core = Core(lambda _: None, [guard])
    core.add(Operation("read", stay), Operation("write", stay, writes=True))
    assert core.find("read").call is stay
    core.find("write").call(ME, None)
    guard.why_not = "no more"
    with pytest.raises(Denied, match="no more"):
        core.find("write").call(ME, None)


def test_one_callback_that_raises_keeps_no_outcome_from_the_next() -> None:
    deferred: Deferred[int] = Deferred()
    settled_with: list[Any] = []
    deferred.then(lambda _: 1 / 0)
    deferred.then(settled_with.append)
    deferred.settle(7)
    assert settled_with == [7]
