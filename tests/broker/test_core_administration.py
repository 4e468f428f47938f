"""Administration, clients and locks as plain calls: no connection, no command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RunningBroker
from support.core_clients import DONE, PlainClient, RecordedRequests

from penstock.broker.access import Access, is_local, only_local
from penstock.broker.admin.clients import AdminClients
from penstock.broker.admin.groups import AdminOffsets
from penstock.broker.admin.topics import AdminTopics
from penstock.broker.consumers import Clients, Heartbeat
from penstock.broker.operations_as_plain_calls import Core, Denied, Operation, administration
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import BrokerState
from penstock.clock import now_ms
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.queues import LockBatchRequestBody, MessageQueue
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import CreateTopic, TopicName
from penstock.protocol.headers.groups import (
    ConsumerGroupRequest,
    GetConsumerRunningInfo,
    GetConsumeStats,
    UnregisterClient,
)
from penstock.protocol.headers.offsets import QueryConsumerOffset, QueryConsumeTimeSpan, ResetOffset
from penstock.protocol.headers.pull import QueryConsumeQueue
from penstock.protocol.versions import V4_9_8, Language
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run


def new_topic(topic: str) -> CreateTopic:
    return CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=2,
        write_queue_nums=2,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )


def beat(client_id: str, group: str) -> Heartbeat:
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[ConsumerData(group_name=group)],
        producer_data_set=[ProducerData(group_name="PID")],
    )
    return Heartbeat(data, Language.JAVA, V4_9_8)


@asynccontextmanager
async def tables(path: Path) -> AsyncIterator[BrokerState]:
    """The tables of a broker that does not run."""
    store = MessageStore.open(path, Settings.dev())
    try:
        yield BrokerState(store, BrokerSettings(), now_ms)
    finally:
        store.close()


def call(broker: RunningBroker, name: str, *arguments: Any) -> Any:
    return broker.broker.core.find(name).call(*arguments)


def test_a_topic_is_created_shown_and_deleted(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            me = PlainClient()
            assert call(broker, "create topic", me, new_topic("orders")) is None
            shown = call(broker, "show topic", me, TopicName(topic="orders"))
            assert isinstance(shown, TopicConfig)
            assert shown.write_queue_nums == 2
            assert len((await call(broker, "topic stats", me, TopicName(topic="orders"))).offset_table) == 2
            await call(broker, "delete topic", me, TopicName(topic="orders"))
            with pytest.raises(Refusal) as refusal:
                call(broker, "show topic", me, TopicName(topic="orders"))
            assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST

    run(check())


def test_a_deleted_topic_takes_no_retry_topic_of_another_group(home: BrokerHome, run: Run) -> None:
    """`%RETRY%team_orders` is the retry topic of group `team_orders`, though group `team` consumes `orders`."""

    async def check() -> None:
        async with home.running() as broker:
            me, state = PlainClient(), broker.state
            call(broker, "create topic", me, new_topic("orders"))
            state.offsets.commit("team", "orders", 0, 1)
            state.offsets.commit("crew", "orders", 0, 1)
            for group in ("team", "team_orders"):
                call(broker, "update group", me, SubscriptionGroup(name=group))
            for topic in ("%RETRY%team_orders", "%RETRY%team+orders", "%RETRY%crew_orders"):
                state.topics.create_for_send_back(topic, 1)
            await call(broker, "delete topic", me, TopicName(topic="orders"))
            kept = [name for name in state.topics.all() if name.startswith("%RETRY%")]
            assert kept == ["%RETRY%team_orders"]

    run(check())


def test_a_heartbeat_joins_a_group_and_its_consumers_are_notified(tmp_path: Path, run: Run) -> None:
    async def check() -> None:
        async with tables(tmp_path / "store") as state:
            requests = RecordedRequests()
            clients = Clients(state.clients, state.groups, state.topics, state.settings, requests)
            one, two = PlainClient(port=1), PlainClient(port=2)
            clients.heartbeat(one, beat("one", "CID"))
            clients.heartbeat(two, beat("two", "CID"))
            assert clients.list_consumers(one, ConsumerGroupRequest(consumer_group="CID")).consumer_id_list == [
                "one",
                "two",
            ]
            await asyncio.sleep(0)
            assert [client for client, _ in requests.told] == [one, two]
            clients.unregister(one, UnregisterClient(client_id="one", consumer_group="CID", producer_group="PID"))
            two.close()
            with pytest.raises(Refusal):
                clients.list_consumers(one, ConsumerGroupRequest(consumer_group="CID"))
            assert state.clients.producers("PID") == []
            await asyncio.sleep(0)

    run(check())


def test_a_reset_is_told_to_the_clients_and_a_question_is_passed_on(tmp_path: Path, run: Run) -> None:
    async def check() -> None:
        async with tables(tmp_path / "store") as state:
            requests = RecordedRequests(DONE)
            clients = Clients(state.clients, state.groups, state.topics, state.settings, requests)
            consumer, me = PlainClient(port=1), PlainClient(port=2)
            AdminTopics(state).create(me, new_topic("orders"))
            clients.heartbeat(consumer, beat("one", "CID"))
            for queue_id in (0, 1):
                state.offsets.commit("CID", "orders", queue_id, 5)
            request = ResetOffset(topic="orders", group="CID", timestamp=0, is_force=True)
            body = await AdminOffsets(state, requests).reset(me, request)
            assert set(body.offset_table.values()) == {0}
            assert requests.told[-1] == (consumer, request)
            admin = AdminClients(state, requests)
            question = GetConsumerRunningInfo(consumer_group="CID", client_id="one")
            assert await admin.running_info(me, question) == DONE
            assert requests.asked == [(consumer, question)]
            requests.answer = None
            with pytest.raises(Refusal, match="the client is gone"):
                await admin.running_info(me, question)
            await asyncio.sleep(0)

    run(check())


def test_store_times_and_records_are_not_read_on_the_loop(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be on disk only, and the loop serves every other client."""

    async def check() -> None:
        async with home.running() as broker:
            me, store = PlainClient(), broker.store
            store.put(Message("orders", b"one"))
            call(broker, "create topic", me, new_topic("orders"))
            broker.state.offsets.commit("CID", "orders", 0, 1)
            threads: list[str] = []
            store_time, find = store.store_time, store.queues.find

            def read_time(*place: Any) -> int:
                threads.append(threading.current_thread().name)
                return store_time(*place)

            def find_queue(*place: Any) -> Any:
                threads.append(threading.current_thread().name)
                return find(*place)

            with monkeypatch.context() as patched:
                patched.setattr(store, "store_time", read_time)
                await call(broker, "topic stats", me, TopicName(topic="orders"))
                await call(broker, "group progress", me, GetConsumeStats(consumer_group="CID", topic="orders"))
                await call(broker, "time span", me, QueryConsumeTimeSpan(group="CID", topic="orders"))
                patched.setattr(store.queues, "find", find_queue)
                shown = await call(broker, "queue units", me, QueryConsumeQueue(topic="orders", queue_id=0, count=1))
            assert len(shown.queue_data) == 1
            assert len(threads) >= 4
            assert threading.current_thread().name not in threads

    run(check())


def test_a_queue_is_locked_for_one_client(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")
            me = PlainClient()
            for client_id, locked in (("one", [queue]), ("two", [])):
                request = LockBatchRequestBody(consumer_group="CID", client_id=client_id, mq_set=[queue])
                assert call(broker, "lock queues", me, request).locked == locked

    run(check())


# -- who may ask ---------------------------------------------------------------------------------------------


def core_of(admission: Any, *guards: Any) -> Core:
    core = Core(admission, guards)
    core.add(
        Operation("query offset", lambda client, request: "offset"),
        administration("delete everything", lambda client: "deleted"),
        administration("copy everything", lambda client: "copied", for_slaves=True),
    )
    return core


def may(core: Core, name: str, client: PlainClient) -> bool:
    admit = core.find(name).admit
    assert admit is not None
    try:
        admit(client)
    except Denied:
        return False
    return True


def test_without_accounts_administration_is_for_this_machine_and_copies_are_for_slaves() -> None:
    core = core_of(only_local(lambda client: client.is_loopback, lambda client: client.peer[0] == "10.0.0.1"))
    me, slave, stranger = PlainClient(), PlainClient("10.0.0.1"), PlainClient("10.0.0.2")
    assert [may(core, "delete everything", client) for client in (me, slave, stranger)] == [True, False, False]
    assert [may(core, "copy everything", client) for client in (me, slave, stranger)] == [True, True, False]
    operation = core.find("query offset")
    assert operation.admit is None
    assert operation.call(stranger, None) == "offset"


NO_STORE: Any = None
"""The store of a guard whose operations are not about a record."""


def test_rights_are_checked_by_operation_and_request(tmp_path: Path) -> None:
    path = tmp_path / "acl.yml"
    path.write_text(
        "globalWhiteRemoteAddresses: [10.0.0.9]\n"
        "accounts:\n"
        "- {accessKey: the-admin, secretKey: very-secret, admin: true}\n"
        "- {accessKey: consumer, secretKey: very-secret, topicPerms: [orders=SUB], groupPerms: [CID=SUB]}\n"
    )
    access = Access(path)
    core = core_of(access.admission(is_local), access.guard(NO_STORE))
    admin, consumer = PlainClient(account="the-admin"), PlainClient(account="consumer")
    unsigned, unknown, white = PlainClient(), PlainClient(account="unknown"), PlainClient("10.0.0.9")
    clients = (admin, consumer, unsigned, unknown, white)
    assert [may(core, "delete everything", client) for client in clients] == [True, False, False, False, True]

    query = core.find("query offset").call
    own = QueryConsumerOffset(consumer_group="CID", topic="orders", queue_id=0)
    others = QueryConsumerOffset(consumer_group="CID", topic="secrets", queue_id=0)
    assert query(consumer, own) == query(admin, others) == query(white, others) == "offset"
    with pytest.raises(Denied, match="SUB on topic 'secrets'"):
        query(consumer, others)
    for client in (unsigned, unknown):
        with pytest.raises(Denied):
            query(client, own)


def test_an_operation_without_a_rule_cannot_be_added_with_accounts(tmp_path: Path) -> None:
    path = tmp_path / "acl.yml"
    path.write_text("accounts: [{accessKey: the-admin, secretKey: very-secret}]")
    access = Access(path)
    with pytest.raises(KeyError):
        Core(access.admission(is_local), [access.guard(NO_STORE)]).add(Operation("something new", lambda client: None))
