"""A replica whose log has a gap from a power loss: it counts for nothing until it has copied its log again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker
from support.clusters import FILE, caught_up, log_bytes, master, same_log, slave
from support.loopback import until

from penstock.broker.replication import handshake, slave_connection
from penstock.store import Message, MessageStore
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.replication.log_gaps import begin_mending, first_gap, lacks_messages, log_damage

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


def log_file(store: Path, number: int) -> Path:
    return store / "commitlog" / f"{number * FILE:020}"


def lose_page(store: Path, number: int, *, file: int = 0, queues: bool = False) -> None:
    """Leaves a closed store as a power loss can: a page of the log did not reach the disk; perhaps no unit did."""
    (store / "abort").touch()
    with log_file(store, file).open("r+b") as log:
        log.seek(number * PAGE)
        log.write(bytes(PAGE))
    if queues:
        for file in (store / "consumequeue").rglob("0*"):
            if file.is_file():
                file.write_bytes(bytes(file.stat().st_size))


async def pair(tmp_path: Path, *, files: int = 1) -> None:
    """A master "m" and its slave "s", which have the same log, and have acknowledged all of it."""
    async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
        await until(lambda: m.store.watermarks.reports)
        m.store.require_replicas(frozenset({1}))
        put(m, 0, files * COUNT)
        await caught_up(m, s)
        assert len(m.store.log.queue.files) == files
        assert not lacks_messages(s.store)


async def mended(tmp_path: Path, m: RunningBroker) -> None:
    """The slave "s" is cut, and has its master's log again after the next start; meanwhile it is not whole."""
    said: list[str] = []
    async with slave(tmp_path / "s", m) as s:
        s.broker.replication.on_cut(said.append)
        await until(lambda: said)
    with MessageStore.open(tmp_path / "s", s.store.settings, in_sync_set=True) as store:
        assert lacks_messages(store), "it must not be elected: the master may be gone"
    async with slave(tmp_path / "s", m) as s:
        await caught_up(m, s)
        same_log(s.store, m.store)
        await until(lambda: m.store.watermarks.reports.get(1) == m.store.watermarks.appended)
        assert not log_damage(s.store)
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


@pytest.mark.parametrize("first", [0, 1], ids=["of a log", "of a log whose first file is deleted"])
def test_a_slave_with_a_gap_at_the_start_copies_everything_again(run: Run, tmp_path: Path, first: int) -> None:
    async def go() -> None:
        await pair(tmp_path, files=3)
        for name in ("m", "s"):
            for number in range(first):
                log_file(tmp_path / name, number).unlink()
        lose_page(tmp_path / "s", 0, file=first)
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            await mended(tmp_path, m)
            assert list((tmp_path / "s" / "penstock" / "quarantine").glob("*/store-*/commitlog"))

    run(go())


def test_a_gap_that_begins_before_the_masters_log_does_is_mended(run: Run, tmp_path: Path) -> None:
    """The slave lost its second and its third file, and retention has deleted the first two of the master's."""

    async def go() -> None:
        await pair(tmp_path, files=4)
        for number in (1, 2):
            lose_page(tmp_path / "s", 0, file=number)
            log_file(tmp_path / "s", number).write_bytes(bytes(FILE))
        for number in (0, 1):
            log_file(tmp_path / "m", number).unlink()
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            await mended(tmp_path, m)

    run(go())


def test_a_slave_whose_first_file_is_there_and_empty_is_sent_the_whole_log(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            put(m, 0, 3 * COUNT)
            log_file(tmp_path / "s", 0).parent.mkdir(parents=True)
            log_file(tmp_path / "s", 0).write_bytes(bytes(FILE))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                same_log(s.store, m.store)

    run(go())


def test_a_slave_does_not_cut_its_log_for_a_master_that_does_not_say_where_it_is_damaged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master of an earlier version: both may have the same damage, and the slave would cut at every start."""

    async def go() -> None:
        await pair(tmp_path)
        for name in ("m", "s"):
            lose_page(tmp_path / name, 5)
        monkeypatch.setattr(slave_connection, "masters_ranges", lambda damage: None)
        async with master(tmp_path / "m", store=SYNC) as m:
            put(m, COUNT, 1)
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: s.store.watermarks.appended == m.store.watermarks.appended)
                same_log(s.store, m.store)
            assert not (tmp_path / "s" / "penstock" / "quarantine").exists()

    run(go())


def test_the_damaged_ranges_of_a_slave_are_not_compared_on_the_masters_loop(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def compare(*ranges: Any) -> DamagedRange | None:
        threads.append(threading.current_thread())
        return first_gap(*ranges)

    async def go() -> None:
        await pair(tmp_path)
        lose_page(tmp_path / "s", 5)
        monkeypatch.setattr(slave_connection, "first_gap", compare)
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m):
            await until(lambda: threads)
            assert threading.current_thread() not in threads

    run(go())


@pytest.mark.parametrize("name", ["s", "empty"])
def test_a_cut_replica_is_whole_when_it_has_all_that_its_new_master_has(run: Run, tmp_path: Path, name: str) -> None:
    """It was cut as the slave of an earlier master, whose log reached further than that of the elected one."""

    async def go() -> None:
        await pair(tmp_path)
        async with master(tmp_path / "m", store=SYNC) as m:
            end = m.store.watermarks.appended
            settings = m.store.settings.with_changes(broker_role="SLAVE")
            with MessageStore.open(tmp_path / name, settings) as store:
                begin_mending(store, store.watermarks.appended, end + 1000)
                assert lacks_messages(store)
            async with slave(tmp_path / name, m) as s:
                await until(lambda: not lacks_messages(s.store))
                assert s.store.watermarks.appended == end

    run(go())


def test_both_sides_agree_on_a_slave_with_more_damage_than_a_handshake_can_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        await pair(tmp_path)
        monkeypatch.setattr(handshake, "_SENT_RANGES", 1)
        for page in (5, 9):
            lose_page(tmp_path / "m", page)
            lose_page(tmp_path / "s", page)
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            put(m, COUNT, 1)
            await until(lambda: s.store.watermarks.appended == m.store.watermarks.appended)
            assert "2 damaged ranges, as the master's: too many for a handshake" in caplog.text
            assert [each.is_learner for each in m.broker.replication.replicas()] == [True]
            assert lacks_messages(s.store), "it neither acknowledges nor stands for election"
            assert not s.store.layout.cut.exists()

    run(go())


def test_a_gap_among_more_damage_than_a_handshake_can_name_is_mended(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        await pair(tmp_path)
        monkeypatch.setattr(handshake, "_SENT_RANGES", 1)
        for page in (5, 9):
            lose_page(tmp_path / "s", page)
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({1}))
            await mended(tmp_path, m)

    run(go())


def test_a_gap_is_left_alone_if_the_master_has_more_damage_than_it_can_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Perhaps it is damaged where this log is whole: then a cut would lose messages."""

    async def go() -> None:
        await pair(tmp_path)
        monkeypatch.setattr(handshake, "MAX_ENTRIES", 1)
        for page in (3, 9):
            lose_page(tmp_path / "m", page)
        for page in (3, 5):
            lose_page(tmp_path / "s", page)
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            await until(lambda: m.broker.replication.replicas())
            assert "more damaged ranges than a handshake can name" in caplog.text
            assert [each.is_learner for each in m.broker.replication.replicas()] == [True]
            assert lacks_messages(s.store)
            assert not s.store.layout.cut.exists()

    run(go())
