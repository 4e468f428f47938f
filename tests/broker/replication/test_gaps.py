"""A replica whose log has a gap from a power loss: it counts for nothing until it has copied its log again."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker
from support.clusters import FILE, caught_up, log_bytes, master, same_log, slave
from support.loopback import until

from penstock.store import Message, MessageStore
from penstock.store.replication.log_gaps import lacks_messages, log_damage

Run = Callable[[Coroutine[Any, Any, None]], None]
SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 60_000}
COUNT = 90
PAGE = 4096


def put(broker: RunningBroker, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert broker.store.append(Message("orders", b"%03d" % number + b"x" * 500)).stored


def numbers(store: MessageStore) -> list[int]:
    found: list[int] = []
    offset = 0
    while page := store.get("orders", 0, offset).messages:
        found += [int(record.body[:3]) for record in page]
        offset = page[-1].queue_offset + 1
    return found


def lose_page(store: Path, number: int, *, queues: bool = False) -> None:
    """Leaves a closed store as a power loss can: a page of the log did not reach the disk; perhaps no unit did."""
    (store / "abort").touch()
    with (store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(number * PAGE)
        log.write(bytes(PAGE))
    if queues:
        for file in (store / "consumequeue").rglob("0*"):
            if file.is_file():
                file.write_bytes(bytes(file.stat().st_size))


async def pair(tmp_path: Path) -> None:
    """A master "m" and its slave "s", which have the same log."""
    async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
        await until(lambda: m.store.watermarks.reports)
        m.store.require_replicas(frozenset({1}))
        put(m, 0, COUNT)
        await caught_up(m, s)
        assert m.store.watermarks.appended < FILE
        assert not lacks_messages(s.store)


@pytest.mark.parametrize("queues", [False, True], ids=["whole queues", "lost queues"])
def test_a_slave_with_a_gap_is_cut_there_and_copies_the_rest_again(run: Run, tmp_path: Path, queues: bool) -> None:
    """Although consumers have seen messages behind the gap: the master has them all."""

    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "s", 5, queues=queues)
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            said: list[str] = []
            async with slave(tmp_path / "s", m) as s:
                s.broker.replication.on_cut(said.append)
                (gap,) = log_damage(s.store)
                await until(lambda: said)
                assert f"a gap of {gap.size} bytes at {gap.physical_offset}" in said[0]
                assert s.store.watermarks.visible > gap.end, "it has shown what lies behind the gap"
                assert not m.store.watermarks.reports.get(1), "it has reported nothing"
                assert not m.broker.replication.replicas()
                assert lacks_messages(s.store)
            async with slave(tmp_path / "s", m) as s:
                assert s.store.report.log_end == gap.physical_offset
                await caught_up(m, s)
                await until(lambda: m.store.watermarks.reports.get(1) == m.store.watermarks.appended)
                same_log(s.store, m.store)
                s.store.catch_up()
                assert numbers(s.store) == list(range(COUNT))
                assert not log_damage(s.store)
                assert not lacks_messages(s.store)
                assert [each.is_learner for each in m.broker.replication.replicas()] == [False]
            (kept,) = (tmp_path / "s" / "penstock" / "quarantine").glob("*/tail-*")
            manifest = json.loads((kept / "manifest.json").read_text())
            assert manifest["offset"] == gap.physical_offset
            assert 0 < manifest["messages"]["orders"] < COUNT

    run(go())


def test_a_replica_that_was_cut_at_a_gap_lacks_messages_until_it_has_them_again(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "s", 5)
        async with master(tmp_path / "m", store=SYNC) as m:
            said: list[str] = []
            async with slave(tmp_path / "s", m) as s:
                s.broker.replication.on_cut(said.append)
                await until(lambda: said)
        for _ in range(2):
            with MessageStore.open(tmp_path / "s", s.store.settings, in_sync_set=True) as store:
                assert not log_damage(store), "it is cut"
                assert lacks_messages(store), "and must not be elected: the master may be gone"
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            m.store.require_replicas(frozenset({1}))
            await caught_up(m, s)
            await until(lambda: not lacks_messages(s.store))

    run(go())


def test_an_old_master_with_a_gap_heals_as_the_slave_of_its_successor(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "m", 4, queues=True)
        async with master(tmp_path / "s", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            put(m, COUNT, 3)
            said: list[str] = []
            async with slave(tmp_path / "m", m) as s:
                s.broker.replication.on_cut(said.append)
                await until(lambda: said)
            async with slave(tmp_path / "m", m) as s:
                await caught_up(m, s)
                same_log(s.store, m.store)
                s.store.catch_up()
                assert numbers(s.store) == list(range(COUNT + 3))

    run(go())


def test_damage_that_the_master_has_too_is_no_gap(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        await pair(tmp_path)
        for name in ("m", "s"):
            lose_page(tmp_path / name, 5)
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            async with slave(tmp_path / "s", m) as s:
                assert lacks_messages(s.store), "it does not know yet"
                put(m, COUNT, 1)
                await caught_up(m, s)
                await until(lambda: m.store.watermarks.reports.get(1) == m.store.watermarks.appended)
                assert not lacks_messages(s.store)
                before = log_bytes(s.store)
        with MessageStore.open(tmp_path / "s", s.store.settings, in_sync_set=True) as store:
            assert log_damage(store)
            assert not lacks_messages(store), "it is noted: no master can be asked in an election"
            assert log_bytes(store) == before

    run(go())


def test_a_slave_that_copies_its_masters_damage_lacks_nothing(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            put(m, 0, COUNT)
        lose_page(tmp_path / "m", 5)
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            await caught_up(m, s)
            s.store.catch_up()
            await until(lambda: log_damage(s.store))
            same_log(s.store, m.store)
            assert not lacks_messages(s.store)
        with MessageStore.open(tmp_path / "s", s.store.settings, in_sync_set=True) as store:
            assert store.report.damage
            assert not lacks_messages(store)

    run(go())


def test_logs_with_gaps_in_different_places_are_left_alone_and_the_slave_does_not_count(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "m", 9)
        lose_page(tmp_path / "s", 5)
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            await until(lambda: m.broker.replication.replicas())
            assert "where this one is whole" in caplog.text
            assert "its reports acknowledge nothing" in caplog.text
            assert not m.store.watermarks.reports
            assert not m.store.watermarks.connected_slaves
            assert [each.is_learner for each in m.broker.replication.replicas()] == [True]
            assert lacks_messages(s.store)
            assert not s.store.layout.cut.exists()

    run(go())


def test_a_slave_with_a_gap_and_no_room_to_keep_its_tail_follows_and_does_not_count(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "s", 5)
        small = {"quarantine_max_bytes": 1000}
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m, store=small) as s:
            put(m, COUNT, 1)
            await until(lambda: s.store.watermarks.appended == m.store.watermarks.appended)
            assert "quarantineMaxBytes allows 1000" in caplog.text
            assert not m.store.watermarks.connected_slaves
            assert lacks_messages(s.store)

    run(go())
