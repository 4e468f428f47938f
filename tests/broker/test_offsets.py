"""Offsets of groups (14, 15) and of queues (29 to 32)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers import AT_ONCE, HALF, OP, SYSTEM_GROUP, BrokerHome, RawClient, make_round, ok, send_half

from penstock.broker.offsets import OffsetTable, OwnOffsets
from penstock.errors import StoreFailed
from penstock.format.config_tables import ConsumerOffsets
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pull import COMMIT_OFFSET
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run

QUEUE = {"topic": "orders", "queueId": 0}
GROUP = {"consumerGroup": "CID", **QUEUE}


async def query(client: RawClient, **changes: object) -> Command:
    return await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **{**GROUP, **changes})


async def update(client: RawClient, offset: int, **changes: object) -> Command:
    arguments = {**GROUP, "commitOffset": offset, **changes}
    return await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **arguments)


def test_what_is_committed_is_found(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            ok(await update(client, 7))
            assert ok(await query(client)).ext == {"offset": "7"}
            ok(await update(client, 3))
            assert ok(await query(client)).ext == {"offset": "3"}
            ok(await update(client, -1))
            assert ok(await query(client)).ext == {"offset": "3"}

    run(check())


def test_a_one_way_commit_counts(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, **GROUP, commitOffset=5)
            assert ok(await query(client)).ext == {"offset": "5"}

    run(check())


def test_a_new_group_starts_at_the_beginning_of_a_queue_that_is_whole_and_recent(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert ok(await query(client)).ext == {"offset": "0"}
            assert ok(await query(client, topic="unknown")).ext == {"offset": "0"}

    run(check())


def test_a_new_group_of_a_queue_that_lost_its_beginning_is_told_so(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            broker.store.catch_up()
            queue = broker.store.queues.find("orders", 0)
            assert queue is not None
            queue.min_offset = 1
            assert (await query(client)).code == ResponseCode.QUERY_NOT_FOUND

    run(check())


def test_a_new_group_of_a_queue_whose_beginning_is_old_is_told_so(home: BrokerHome, run: Run) -> None:
    """Nothing counts as recent here, so that every message but the last is old."""

    async def check() -> None:
        async with home.running(store={"access_message_in_memory_max_ratio": 0}) as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            assert (await query(client)).code == ResponseCode.QUERY_NOT_FOUND

    run(check())


def test_a_client_may_ask_not_to_be_told_zero(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert (await query(client, setZeroIfNotFound=False)).code == ResponseCode.QUERY_NOT_FOUND
            assert ok(await query(client, setZeroIfNotFound=True)).ext == {"offset": "0"}

    run(check())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "a@b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_what_there_is_not_cannot_be_committed(
    home: BrokerHome, run: Run, changes: dict[str, object], code: ResponseCode
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert (await update(client, 5, **changes)).code == code
            assert broker.state.offsets.snapshot().offsets == {}

    run(check())


def test_the_bounds_of_a_queue(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            assert ok(await client.ask(RequestCode.GET_MAX_OFFSET, **QUEUE)).ext == {"offset": "3"}
            assert ok(await client.ask(RequestCode.GET_MIN_OFFSET, **QUEUE)).ext == {"offset": "0"}
            nothing = {"topic": "unknown", "queueId": 0}
            assert ok(await client.ask(RequestCode.GET_MAX_OFFSET, **nothing)).ext == {"offset": "0"}
            assert ok(await client.ask(RequestCode.GET_MIN_OFFSET, **nothing)).ext == {"offset": "0"}

    run(check())


def test_offsets_by_time_and_the_earliest_time(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            first = broker.store.store_time("orders", 0, 0)
            last = broker.store.store_time("orders", 0, 2)
            reply = ok(await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **QUEUE))
            assert reply.ext == {"timestamp": str(first)}

            async def search(timestamp: int, **more: object) -> str:
                arguments = {**QUEUE, "timestamp": timestamp, **more}
                return ok(await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **arguments)).ext["offset"]

            assert await search(first - 1000) == "0"
            assert await search(last + 1000) == "2"
            assert await search(last + 1000, boundaryType="lower") == "3"
            assert await search(last + 1000, boundaryType="UPPER") == "2"
            nothing = {"topic": "unknown", "queueId": 0}
            reply = ok(await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **nothing))
            assert reply.ext == {"timestamp": "-1"}

    run(check())


def test_offsets_survive_a_restart(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            ok(await update(client, 7))
        async with home.running() as broker:
            assert ok(await query(await broker.client())).ext == {"offset": "7"}

    run(check())


def test_clients_do_not_move_the_offsets_of_the_brokers_own_groups(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for topic in (HALF, OP):
                where = {"consumerGroup": SYSTEM_GROUP, "topic": topic, "queueId": 0}
                reply = await update(client, 10**12, **where)
                assert reply.code == ResponseCode.NO_PERMISSION
                await client.pull(topic, 0, consumerGroup=SYSTEM_GROUP, sysFlag=COMMIT_OFFSET, commitOffset=10**12)
                assert broker.broker.state.offsets.query(SYSTEM_GROUP, topic, 0) == -1

    run(check())


def test_a_position_behind_the_end_does_not_end_the_checks_of_transactions(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            broker.broker.state.offsets.commit(SYSTEM_GROUP, HALF, 0, 10**12)
            broker.broker.state.offsets.commit(SYSTEM_GROUP, OP, 0, 10**12)
            await send_half(client)
            broker.store.catch_up()
            assert await make_round(broker) == 1

    run(check())


def test_a_client_that_commits_back_and_forth_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    table = OffsetTable(ConsumerOffsets())
    for number in range(20_000):
        table.commit("CID", "orders", 0, 5 + number % 2)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "offset moved back: group=CID topic=orders queue=0 from=6 to=5"
    assert len(lines) < 60, "one a second"
    assert table.query("CID", "orders", 0) == 6


def test_the_progress_of_transaction_checks_is_noted_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        assert store.put(Message("orders", b"paid")).ok
        really = store.engine.io.replace_bytes
        table = OffsetTable(ConsumerOffsets())
        own = OwnOffsets(store, table)

        def counted(path: Path, data: bytes, keep_backup: bool = False) -> None:
            written.append(path)
            if len(written) == 2:
                raise StoreFailed("cannot write: the disk is full", path=path)
            really(path, data, keep_backup)

        def save(own: OwnOffsets) -> int:
            before = len(written)
            own.begin_save()
            own.before_write()
            return len(written) - before

        monkeypatch.setattr(store.engine.io, "replace_bytes", counted)
        table.commit("CID", "orders", 0, 7)
        assert save(own) == 0, "only a client's offset has changed"
        table.commit(SYSTEM_GROUP, HALF, 0, 1)
        assert save(own) == 1
        table.commit("CID", "orders", 0, 8)
        assert save(own) == 0
        table.commit(SYSTEM_GROUP, HALF, 0, 2)
        with pytest.raises(StoreFailed):
            save(own)
        assert save(own) == 1, "the file does not have it yet"
        assert save(own) == 0
        again = OwnOffsets(store, table)
        assert not again.is_rolled_back
        assert save(again) == 0, "a start reads what the file has"
        assert set(written) == {store.layout.checked}
