"""Bytes of a master's log, in pieces that end anywhere: only whole records reach a slave's log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.store import Message, MessageStore, Settings
from penstock.store.replication import replica_log
from penstock.store.replication.replica_log import BytesRefused, DamagedOnTheWay, ReplicaLog, last_record

FILE = 16 << 10


def settings(**changes: object) -> Settings:
    return Settings.dev(mapped_file_size_commit_log=FILE, **changes)


@pytest.fixture
def original(tmp_path: Path) -> bytes:
    """A master's log of some files."""
    with MessageStore.open(tmp_path / "original", settings()) as store:
        random.seed(3)
        for number in range(60):
            store.put(Message("orders", random.randbytes(random.randrange(1500)), keys=f"k{number}"))
        return b"".join(bytes(file.map.view[: file.wrote]) for file in store.log.queue.files)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "slave", settings(broker_role="SLAVE")) as opened:
        yield opened


def taken(store: MessageStore) -> ReplicaLog:
    assert store.replica_log is not None
    return store.replica_log


def content(store: MessageStore) -> bytes:
    return b"".join(bytes(file.map.view[: file.wrote]) for file in store.log.queue.files)


def give(store: MessageStore, data: bytes, start: int, sizes: Iterator[int]) -> None:
    at = start
    while at < len(data):
        size = min(next(sizes), len(data) - at, FILE - at % FILE)
        taken(store).append(at, data[at : at + size])
        at += size


@pytest.mark.parametrize("size", [1, 7, 8, 91, 1000, 5000, FILE])
def test_pieces_of_any_size_make_the_same_log(store: MessageStore, original: bytes, size: int) -> None:
    give(store, original, 0, iter(lambda: size, None))
    assert content(store) == original
    assert store.max_offset("orders", 0) == 60
    assert len(store.query("orders", "k33").records) == 1
    assert store.dispatcher.skipped_bytes == 0


@pytest.mark.parametrize("at_most", [1 << 20, 4000, 100])
def test_several_pieces_at_once_make_the_same_log(
    store: MessageStore, original: bytes, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are joined in memory that is used again, or if they take more than `at_most`, in their own."""
    monkeypatch.setattr(replica_log, "_MAX_JOINED", at_most)
    at, numbers = 0, random.Random(5)
    while at < len(original):
        stop = min(at + numbers.randrange(1, 6000), len(original), at + FILE - at % FILE)
        first, second = (numbers.randrange(at, stop + 1) for _ in range(2))
        cuts = [at, *sorted((first, second)), stop]
        taken(store).append(at, *(original[start:end] for start, end in pairwise(cuts)))
        at = stop
    assert content(store) == original


def test_pages_are_asked_for_once_in_a_while_and_not_with_each_record(store: MessageStore, original: bytes) -> None:
    """The thread that makes them ready takes the interpreter's lock from the one that somebody waits for."""
    asked: list[int] = []
    store.log.appender.page_need = lambda: asked.append(taken(store).end)
    give(store, original, 0, iter(lambda: 500, None))
    assert len(asked) == 1


def test_the_end_is_always_that_of_a_whole_record(store: MessageStore, original: bytes) -> None:
    with_one, rest = taken(store), original
    ends = {0}
    at = 0
    while at < FILE and int.from_bytes(rest[at + 4 : at + 8], "big") == 0xDAA320A7:
        at += int.from_bytes(rest[at : at + 4], "big")
        ends.add(at)
    for position in range(0, at, 11):
        with_one.append(position, original[position : min(position + 11, at)])
        assert with_one.end in ends
    assert with_one.end == at


def test_a_connection_that_is_cut_in_a_record_goes_on_behind_the_last_whole_one(
    store: MessageStore, original: bytes
) -> None:
    first = int.from_bytes(original[:4], "big")
    taken(store).append(0, original[: first + 50])
    assert taken(store).end == first
    with pytest.raises(BytesRefused, match=f"continues at {first + 50}"):
        taken(store).append(first, original[first : first + 10])
    taken(store).drop_partial()
    give(store, original, first, iter(lambda: 777, None))
    assert content(store) == original


def test_what_the_master_has_damaged_is_asked_for_twice_and_copied_then(store: MessageStore, original: bytes) -> None:
    first = int.from_bytes(original[:4], "big")
    second = int.from_bytes(original[first : first + 4], "big")
    data = bytearray(original)
    data[first + 30] ^= 0xFF  # its position, so that it is no record
    with pytest.raises(DamagedOnTheWay):
        give(store, bytes(data), 0, iter(lambda: 1000, None))
    assert taken(store).end == first
    taken(store).drop_partial()
    give(store, bytes(data), first, iter(lambda: 1000, None))
    assert content(store) == bytes(data)
    assert store.max_offset("orders", 0) == 60
    assert store.get("orders", 0, 2).count > 0
    assert store.dispatcher.skipped_bytes == second


def test_a_slave_with_other_file_sizes_than_its_master_refuses(tmp_path: Path, original: bytes) -> None:
    with MessageStore.open(
        tmp_path / "other", Settings.dev(mapped_file_size_commit_log=FILE * 2, broker_role="SLAVE")
    ) as store:
        with pytest.raises(BytesRefused, match="mappedFileSizeCommitLog must be the same"):
            taken(store).append(0, original[:FILE])
        taken(store).drop_partial()
        assert taken(store).end < FILE
    with (
        MessageStore.open(tmp_path / "third", settings(broker_role="SLAVE")) as store,
        pytest.raises(BytesRefused, match="mappedFileSizeCommitLog must be the same"),
    ):
        taken(store).append(FILE // 2, original[:100])


def test_a_slaves_store_opens_again_and_as_a_master(tmp_path: Path, original: bytes) -> None:
    path = tmp_path / "slave"
    for part in (len(original) // 2, len(original)):
        with MessageStore.open(path, settings(broker_role="SLAVE")) as store:
            give(store, original[:part], taken(store).end, iter(lambda: 500, None))
    with MessageStore.open(path, settings()) as promoted:
        assert content(promoted) == original
        assert promoted.put(Message("orders", b"new")).queue_offset == 60


def test_the_last_record_is_found(store: MessageStore, original: bytes, tmp_path: Path) -> None:
    assert last_record(store.log, store.queues, len(original)) is None
    give(store, original, 0, iter(lambda: 5000, None))
    found = last_record(store.log, store.queues, len(original))
    store.catch_up()
    assert found == last_record(store.log, store.queues, len(original))
    assert found is not None
    assert original.endswith(found[1])
    assert found[0] == len(original) - len(found[1])


@pytest.mark.parametrize("size", [200, 100_000, 2**31 - 1])
def test_after_a_damaged_size_field_each_byte_is_examined_a_few_times_at_most(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once for each piece that arrived: 70 minutes of CPU for a file of 1 GiB."""
    wide = Settings.dev(mapped_file_size_commit_log=1 << 20)
    with MessageStore.open(tmp_path / "original", wide) as master:
        for _ in range(3):
            master.put(Message("orders", bytes(300_000)))
        data = bytearray(master.log.queue.files[0].map.view[: master.log.queue.wrote_offset])
    data[0:4] = size.to_bytes(4, "big")
    examined = 0

    def counting(function: Callable[..., Any], begin: int, end: int) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal examined
            examined += arguments[end] - arguments[begin]
            return function(*arguments)

        return counted

    def kept(self: ReplicaLog, offset: int, rest: memoryview, *, needed: int = 0) -> None:
        nonlocal examined
        examined += len(rest) if not isinstance(rest.obj, bytearray) else 0
        keep(self, offset, rest, needed=needed)

    keep = ReplicaLog._keep_partial
    monkeypatch.setattr(ReplicaLog, "_keep_partial", kept)
    monkeypatch.setattr(replica_log, "next_valid", counting(replica_log.next_valid, 2, 3))
    with MessageStore.open(tmp_path / "slave", wide.with_changes(broker_role="SLAVE")) as slave:
        for attempt in range(2):
            try:
                for at in range(0, len(data), 1000):
                    taken(slave).append(at, bytes(data[at : at + 1000]))
            except DamagedOnTheWay:
                assert attempt == 0
                taken(slave).drop_partial()
        assert content(slave) == bytes(data)
    assert examined < 3 * len(data)


def test_a_queue_offset_that_no_log_can_hold_gets_no_unit(tmp_path: Path, store: MessageStore) -> None:
    """A slave would otherwise fill its disk with empty units up to that offset."""
    with MessageStore.open(tmp_path / "original", settings(enabled_append_prop_crc=False)) as master:
        stored = [master.put(Message("orders", b"x")) for _ in range(20)]
        data = bytearray(bytes(master.log.queue.files[0].map.view[: master.log.queue.files[0].wrote]))
    at = stored[10].physical_offset + 20
    data[at : at + 8] = (2**30).to_bytes(8, "big")
    give(store, bytes(data), 0, iter(lambda: 1000, None))
    assert store.max_offset("orders", 0) == 20
    assert store.get("orders", 0, 11).messages[0].queue_offset == 11
    assert len(list((tmp_path / "slave" / "consumequeue" / "orders" / "0").iterdir())) == 1
