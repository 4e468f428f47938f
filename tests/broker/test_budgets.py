"""What a stranger can make grow has a limit in bytes: the budgets of the broker's tables."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from support.brokers import BrokerHome, ok
from support.core_clients import PlainClient
from support.disks import ColdFiles
from support.loopback import until

from penstock.broker import consumers, queue_locks, stats
from penstock.broker.consumers import ClientTable
from penstock.broker.filters import by_tags, compile_sql
from penstock.broker.offsets import OffsetTable
from penstock.broker.queue_locks import LOCK_SECONDS, QueueLocks
from penstock.broker.replay_protection import ReplayGuard
from penstock.broker.settings import TABLE
from penstock.broker.stats import MessageCounters
from penstock.format.config_tables import ConsumerOffsets, TopicConfig, TopicConfigs
from penstock.namesrv.handlers import KvTable
from penstock.namesrv.name_server import NameServer
from penstock.namesrv.route_table import RegisteredBroker, RouteTable
from penstock.protocol.bodies.clients import ConsumerData
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.subscription import SubscriptionData
from penstock.protocol.table_memory_limits import Budget
from penstock.protocol.versions import Language
from penstock.store.settings import TABLE as STORE_TABLE

if TYPE_CHECKING:
    from broker.conftest import Run

SECURITY = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"
SOURCE = Path(__file__).parents[2] / "src" / "penstock"


def test_a_budget_has_a_limit_for_one_client_and_one_for_all() -> None:
    budget = Budget("things", 150, 100)
    one, two = PlainClient(), PlainClient(port=2)
    budget.charge(100, one)
    with pytest.raises(Refusal, match="of one connection"):
        budget.charge(1, one)
    with pytest.raises(Refusal, match="of all connections"):
        budget.charge(51, two)
    budget.charge(-60, one)
    budget.charge(51, two)
    assert budget.used == 91


def test_locks_take_no_more_than_their_budget() -> None:
    now = 0.0
    locks, client = QueueLocks(lambda: now), PlainClient()
    locks.budget.per_client = 1 << 20
    queues = [MessageQueue(topic="T" * 100, broker_name="b", queue_id=number) for number in range(10_000)]
    with pytest.raises(Refusal):
        locks.lock(client, "CID", "me", queues)
    assert locks.budget.used <= 1 << 20
    now = LOCK_SECONDS + 1
    locks.drop_expired()
    assert locks.budget.used == 0
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    for _ in range(3):
        assert locks.lock(client, "CID", "me", [queue]) == [queue]
    once = locks.budget.used
    locks.unlock("CID", "me", [queue])
    assert once
    assert locks.budget.used == 0


def test_heartbeats_take_no_more_than_their_budget() -> None:
    table, client = ClientTable(), PlainClient()
    table.budget.per_client = 1 << 20
    topics = [SubscriptionData(topic=f"topic-{number}", sub_string="a || b") for number in range(100)]

    def beat(number: int) -> None:
        data = ConsumerData(group_name=f"group-{number}", subscription_data_set=topics)
        table.add_consumer(data, "me", client, Language.JAVA, 0)

    for _ in range(100):  # a client is charged once for a group
        beat(0)
    of_one = table.budget.used
    fitting = (1 << 20) // of_one
    for number in range(1, fitting):
        beat(number)
    with pytest.raises(Refusal):
        beat(fitting + 100)
    assert table.budget.used <= 1 << 20
    table.add_producer("group-0", "me", PlainClient(port=2), Language.JAVA, 0)
    client.close()
    assert 0 < table.budget.used < 1 << 12


@pytest.mark.parametrize(
    "subscription",
    [
        '{"topic":"T","subString":"a","expressionType":"' + "x" * 100_000 + '"}',
        '{"topic":"T","subString":"a","tagsSet":["a"],"codeSet":[' + ",".join(map(str, range(1000, 21_000))) + "]}",
        '{"topic":"T","subString":"' + "||".join(f"t{number}" for number in range(4000)) + '"}',
    ],
    ids=["a long type", "many codes", "many tags"],
)
def test_a_heartbeat_is_charged_for_all_that_is_kept_of_it(subscription: str) -> None:
    table, encoded = ClientTable(), subscription.encode()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        data = ConsumerData(group_name="CID", subscription_data_set=[SubscriptionData.from_bytes(encoded)])
        table.add_consumer(data, "me", PlainClient(), Language.JAVA, 0)
        assert table.budget.used > tracemalloc.get_traced_memory()[0] - before > 0
    finally:
        tracemalloc.stop()


def test_a_subscription_that_stays_when_its_client_leaves_stays_charged() -> None:
    table, light = ClientTable(), PlainClient()
    table.kept.in_all = 1 << 20

    def beat(number: int, client: PlainClient, expression: str, version: int) -> None:
        topics = [SubscriptionData(topic="T", sub_string=expression, sub_version=version)]
        data = ConsumerData(group_name=f"group-{number}", subscription_data_set=topics)
        table.add_consumer(data, "me", client, Language.JAVA, 0)

    def heavy_beats(count: int) -> None:
        for number in range(count):
            beat(number, light, "a", 1)
            heavy = PlainClient(port=2)
            try:
                beat(number, heavy, "x" * 50_000, 2)
            finally:
                heavy.close()

    with pytest.raises(Refusal, match="the subscriptions of all groups may take 1 MiB"):
        heavy_beats(100)
    kept = [each.subscriptions["T"].sub_string for each in table.consumer_groups()]
    assert 1 <= kept.count("x" * 50_000) < 20
    assert 1 << 19 < table.kept.used <= 1 << 20
    beat(0, light, "b", 3)  # what is smaller fits in
    light.close()
    assert table.kept.used == table.budget.used == 0


def test_the_newest_producer_with_an_id_is_found_until_it_leaves() -> None:
    table, one, two = ClientTable(), PlainClient(), PlainClient(port=2)

    def add(group: str, client_id: str, client: PlainClient) -> None:
        table.add_producer(group, client_id, client, Language.JAVA, 0)

    def found(*names: str) -> list[PlainClient | None]:
        members = [table.find_producer(name) for name in names]
        return [member and member.client for member in members]  # type: ignore[misc]

    add("a", "first", one)
    add("b", "first", two)
    add("a", "first", one)  # a heartbeat makes no client newer
    add("a", "second", two)
    add("c", "first", one)
    assert found("first", "second", "third") == [one, two, None]
    table.remove_producer("c", one)
    table.remove_producer("c", one)
    assert found("first") == [two]
    add("a", "other", one)  # the client has a new id in this group
    assert found("first", "other") == [two, one]
    two.close()
    assert found("first", "second", "other") == [None, None, one]
    one.close()
    assert not table._producers_of_id


def test_held_pulls_take_no_more_than_their_budget(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.broker.held.budget.per_client = 1 << 20
            pulls = [client.hold("orders", 1, subscription="a" * 30_000) for _ in range(40)]
            done, held = await asyncio.wait(pulls, timeout=None, return_when=asyncio.FIRST_COMPLETED)
            assert {pull.result().code for pull in done} == {ResponseCode.SYSTEM_BUSY}
            assert held
            assert 0 < broker.broker.held.budget.used <= 1 << 20
            client.close()
            await asyncio.gather(*held, return_exceptions=True)

    run(check())


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("||".join(f"t{number}" for number in range(1000)), "TAG"), ("a IN ('x'" + ",'y'" * 1000 + ")", "SQL92")],
)
def test_a_held_pull_is_charged_for_its_filter(home: BrokerHome, run: Run, expression: str, kind: str) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=True) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            tracemalloc.start()
            try:
                pull = client.hold("orders", 1, subscription=expression, expressionType=kind)
                await until(lambda: len(broker.broker.held) == 1)
                (held,) = next(iter(broker.broker.held._by_client.values()))
                size = broker.broker.held.budget.used
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                kept = by_tags(expression + "||more") if kind == "TAG" else compile_sql(expression + " AND b = 1")
                assert size > tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            assert kept is not None
            assert held.cost == size
            client.close()
            await asyncio.gather(pull, return_exceptions=True)

    run(check())


def test_a_pull_that_waits_keeps_neither_the_body_nor_unknown_arguments_of_its_request(
    home: BrokerHome, run: Run
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            pull = client.hold("orders", 1, junk="x" * 60_000)
            await until(lambda: len(broker.broker.held) == 1)
            (held,) = next(iter(broker.broker.held._by_client.values()))
            kept = [cell.cell_contents for each in held._callbacks for cell in each.__closure__ or ()]  # type: ignore[attr-defined]
            assert [(each.ext, each.body) for each in kept if isinstance(each, Command)] == [({}, b"")]
            client.close()
            await asyncio.gather(pull, return_exceptions=True)

    run(check())


def test_held_pulls_are_answered_as_the_client_reads(home: BrokerHome, run: Run) -> None:
    """One message for many held pulls of one connection: their replies are not all made at once."""

    async def check() -> None:
        async with home.running(store={"mapped_file_size_commit_log": 32 << 20, "max_message_size": 4 << 20}) as broker:
            client, sender = await broker.client(), await broker.client()
            ok(await sender.send("orders", queueId=0))
            pulls = [client.hold("orders", 1) for _ in range(40)]
            while len(broker.broker.held) < len(pulls):
                await asyncio.sleep(0)
            (served,) = [each for each in broker.broker.server.connections if broker.broker.held.count_of(each)]
            most = 0
            put = served._enqueue_parts

            def watched(parts: list[bytes]) -> None:
                nonlocal most
                put(parts)
                most = max(most, served._out_bytes)

            served._enqueue_parts = watched  # type: ignore[method-assign, assignment]
            ok(await sender.send("orders", bytes(2 << 20), queueId=0))
            for reply in await asyncio.gather(*pulls):
                assert len(ok(reply).body) > 2 << 20
            assert most < 2 * (2 << 20)

    run(check())


def test_4000_held_pulls_and_one_large_message_take_no_more_than_a_few_replies(home: BrokerHome, run: Run) -> None:
    """The client reads nothing."""

    async def check() -> None:
        size = 4 << 20
        async with home.running(store={"mapped_file_size_commit_log": 32 << 20, "max_message_size": size}) as broker:
            client, sender = await broker.client(), await broker.client()
            ok(await sender.send("orders", queueId=0))
            pulls = [client.hold("orders", 1) for _ in range(4000)]
            await until(lambda: len(broker.broker.held) == len(pulls))
            (served,) = [each for each in broker.broker.server.connections if broker.broker.held.count_of(each)]
            client.connection._transport.pause_reading()
            ok(await sender.send("orders", bytes(size - 1000), queueId=0))
            await until(lambda: served.congested)
            for _ in range(100):
                await asyncio.sleep(0)
            unsent = served._out_bytes + served._transport.get_write_buffer_size()
            assert unsent < 2 * size
            assert len(broker.broker.held) >= len(pulls) - 2
            broker.broker.held.release_all()  # as when the broker stops: they are dropped, not answered all at once
            assert len(broker.broker.held) == broker.broker.held.budget.used == 0
            assert served._out_bytes + served._transport.get_write_buffer_size() <= unsent
            client.close()
            await asyncio.gather(*pulls, return_exceptions=True)

    run(check())


def test_pulls_that_wait_for_the_disk_read_as_their_client_reads(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        large = {"mapped_file_size_commit_log": 32 << 20, "max_message_size": 4 << 20}
        async with home.running(store=large) as broker:
            client = await broker.client()
            for _ in range(4):
                ok(await client.send("orders", bytes(3 << 20), queueId=0))
        disk = ColdFiles()
        async with home.running(files=disk, store=large) as broker:
            client = await broker.client()
            ok(await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0))
            (served,) = broker.broker.server.connections
            other = await broker.client()
            client.connection._transport.pause_reading()
            disk.evict()
            pulls = [asyncio.create_task(client.pull("orders", 0, maxMsgNums=1)) for _ in range(40)]
            await until(lambda: served.congested)
            for _ in range(20):  # the disk has time for as many reads of the first client
                disk.evict()
                ok(await other.pull("orders", 0, maxMsgNums=1))
            unsent = served._out_bytes + served._transport.get_write_buffer_size()
            assert unsent < 3 * (3 << 20)
            assert broker.broker.held.budget.used > 0
            client.connection._transport.resume_reading()
            for reply in await asyncio.gather(*pulls):
                ok(reply)
            assert broker.broker.held.budget.used == 0

    run(check())


def test_8_lock_frames_take_no_more_than_their_budget(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            budget = broker.broker.state.locks.budget
            codes = set()
            for frame in range(8):
                queues = [{"topic": f"t{frame}", "brokerName": "b", "queueId": number} for number in range(4000)]
                body = msgspec.json.encode({"consumerGroup": "CID", "clientId": "me", "mqSet": queues})
                codes.add((await client.ask(RequestCode.LOCK_BATCH_MQ, body)).code)
            assert codes == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
            assert 0 < budget.used <= queue_locks.MAX_BYTES_OF_CLIENT

    run(check())


def test_6_heartbeats_take_no_more_than_their_budget(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            budget = broker.broker.state.clients.budget
            codes = set()
            for beat in range(6):
                groups = [{"groupName": f"group-{beat}-{number}" + "x" * 40} for number in range(6000)]
                body = msgspec.json.encode({"clientID": "me", "producerDataSet": groups})
                codes.add((await client.ask(RequestCode.HEART_BEAT, body)).code)
            assert ResponseCode.SYSTEM_ERROR in codes  # more than 4,096 groups
            assert 0 < budget.used <= consumers.MAX_BYTES_OF_CLIENT

    run(check())


def test_consumer_offsets_take_no_more_than_their_budget() -> None:
    table = OffsetTable(ConsumerOffsets())
    table.budget.in_all = 1 << 20

    def commit_many() -> None:
        for number in range(1_000_000):
            table.commit(f"group-{number}", "topic", 0, 5)

    with pytest.raises(Refusal, match="consumer offsets"):
        commit_many()
    kept = len(table.groups_of("topic"))
    assert 0 < table.budget.used <= 1 << 20
    table.commit("group-0", "topic", 0, 6)  # an offset that is there moves on
    table.commit("CID_RMQ_SYS_TRANS", "topic", 0, 6)  # and so do those of the broker itself
    assert table.query("group-0", "topic", 0) == 6
    assert OffsetTable(table.snapshot()).budget.used == table.budget.used
    for number in range(kept):
        table.remove_group(f"group-{number}")
    table.remove_topic("topic")
    assert table.budget.used == 0


def test_one_connection_does_not_create_all_topics_groups_and_offsets(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            greedy, other = await broker.client(), await broker.client()
            state, tables = broker.state, (broker.state.topics, broker.state.groups, broker.state.offsets)
            for table in tables:
                table.created.per_client = 10_000
            ok(await other.send("orders", queueId=0))
            before = len(state.topics.all())
            codes = [(await greedy.send(f"topic-{number}", queueId=0)).code for number in range(50)]
            assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
            assert len(state.topics.all()) == before + codes.count(ResponseCode.SUCCESS)
            commit = {"topic": "orders", "queueId": 0, "commitOffset": 1}
            for number in range(50):
                reply = await greedy.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=f"g-{number}", **commit)
            assert reply.code == ResponseCode.SYSTEM_BUSY
            for table in tables:
                assert 5_000 < table.created.used <= 11_000
            ok(await other.send("another", queueId=0))  # others still can
            ok(await other.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="mine", **commit))
            greedy.close()
            other.close()
            await until(lambda: not any(table.created.used for table in tables))

    run(check())


def test_a_full_table_of_offsets_does_not_stop_a_pull(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", queueId=0))
            broker.broker.state.offsets.budget.in_all = 0
            ok(await client.pull("orders", 0, sysFlag=5, commitOffset=0))
            commit = {"consumerGroup": "CID_test", "topic": "orders", "queueId": 0, "commitOffset": 1}
            reply = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
            assert reply.code == ResponseCode.SYSTEM_BUSY

    run(check())


def test_counters_have_a_limited_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_COUNTED", 10)
    counters = MessageCounters()
    for number in range(100):
        counters.count_got(f"topic-{number}", "group", 1, 10)
        counters.count_sent(f"topic-{number}", 1, 10)
        counters.count_sent_back(f"topic-{number}", "group")
    assert len(counters.got) == len(counters.sent) == len(counters.sent_back) == 11
    assert sum(entry[0] for entry in counters.got.values()) == sum(counters.sent_back.values()) == 100


def test_registrations_take_no_more_than_their_budget() -> None:
    routes = RouteTable()
    routes.budget.per_client = 1 << 20
    topics = {f"topic-{number}": TopicConfig(name=f"topic-{number}") for number in range(10_000)}
    broker = RegisteredBroker(name="broker-a", address="10.0.0.1:10911")
    with pytest.raises(Refusal, match="of one broker"):
        routes.register(broker, TopicConfigs(topics=topics), now=0.0)
    assert routes.topics() == []
    assert routes.brokers == []
    few = TopicConfigs(topics={name: topics[name] for name in list(topics)[:100]})
    for now in range(3):
        routes.register(broker, few, now=float(now))
    used = routes.budget.used
    moved = RegisteredBroker(name="broker-a", address="10.0.0.2:10911")
    routes.register(moved, few, now=3.0)
    assert routes.budget.used == used > 0
    routes.delete_topic("topic-0")
    assert routes.budget.used < used
    assert routes.unregister(moved)
    assert routes.budget.used == 0


def test_the_kv_configuration_takes_no_more_than_its_budget(run: Run) -> None:
    async def check() -> None:
        table = KvTable()
        table.budget.in_all = 1 << 20
        await table.put("n", "k", "v" * 400_000)
        await table.put("n", "k", "v" * 400_001)
        with pytest.raises(Refusal, match="KV configuration"):
            await table.put("n", "other", "v" * 400_000)
        await table.delete("n", "k")
        assert table.budget.used == 0

    run(check())


# -- the page about security ---------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    """Returns the table of what strangers can make grow: what, limit, setting, where it is counted."""
    text = SECURITY.read_text().partition("## What strangers can make grow")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_each_limit_is_counted_where_the_page_says(row: list[str]) -> None:
    assert len(row) == 4
    places = re.findall(r"`([a-z_0-9.]+)((?:\.[A-Z]\w+)?)`", row[3])
    assert places
    for module, name in places:
        spec = importlib.util.find_spec(f"penstock.{module}")
        assert spec is not None
        assert not name or re.search(rf"^(class )?{name[1:]}\b", Path(str(spec.origin)).read_text(), re.MULTILINE)
    names = {setting.name for table in (TABLE, STORE_TABLE) for setting in table} | {"registerBrokerFrom"}
    for setting in re.findall(r"`([a-z]\w+)`", row[2]):
        assert setting in names or setting == "body_limit"


def test_the_page_names_every_budget_with_its_limits(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            state, server = broker.broker.state, NameServer()
            of_broker = [state.locks, state.clients, state.offsets, broker.broker.held, ReplayGuard()]
            budgets: list[tuple[object, Budget]] = [(owner, owner.budget) for owner in of_broker]  # type: ignore[attr-defined]
            budgets += [(owner, owner.budget) for owner in (server.routes, server.kv)]  # type: ignore[attr-defined]
            budgets += [(state.clients, state.clients.kept)]
            budgets += [(owner, owner.created) for owner in (state.topics, state.groups, state.offsets)]  # type: ignore[attr-defined]
            made = sum(len(re.findall(r"= Budget\(", file.read_text())) for file in SOURCE.rglob("*.py"))
            assert made == len(budgets)
            for owner, budget in budgets:
                place = f"{type(owner).__module__}.{type(owner).__name__}"
                limits = [each >> 20 for each in (budget.per_client, budget.in_all) if each is not None]
                wanted = " and ".join(f"{each} MiB" for each in limits)
                of_owner = [row for row in rows() if f"`{place.removeprefix('penstock.')}`" in row[3]]
                assert any(wanted in row[1] and budget.what in row[0] for row in of_owner), (place, wanted)

    run(check())
