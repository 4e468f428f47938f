"""Following a store in its files: new units, deleted files, and units that are not trusted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stores import PER_FILE, AgedStore, StoreHome

from penstock.errors import BadStore
from penstock.format.queue_unit import pack_unit
from penstock.store import Message, MessageStore
from penstock.store.readonly import follow_growing_queues as tail
from penstock.store.readonly import follow_growing_queues as tail_module
from penstock.store.readonly.follow_growing_queues import StoreTail
from penstock.store.readonly.store_folder import StoreFolder

UNITS = 5
SIZES = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 20 * UNITS}


@pytest.fixture(autouse=True)
def _list_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refresh lists the folders, so that no test waits."""
    monkeypatch.setattr(tail, "_LIST_EVERY_S", 0.0)


@pytest.fixture
def follow(home: StoreHome) -> Iterator[Callable[[], StoreTail]]:
    """Opens tails of the store; they are closed at the end."""
    opened: list[StoreTail] = []

    def make() -> StoreTail:
        folder = StoreFolder.find(home.path)
        made = StoreTail(folder.layout, folder.settings)
        opened.append(made)
        return made

    yield make
    for each in opened:
        each.close()


def put(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0) -> None:
    StoreHome.put_numbered(store, count, topic, queue_id)
    store.catch_up()


def bounds(seen: StoreTail) -> dict[tuple[str, int], tuple[int, int]]:
    seen.refresh()
    return {name: (queue.min_offset, queue.max_offset) for name, queue in seen.queues.items()}


def units(seen: StoreTail, topic: str = "T", queue_id: int = 0) -> list[Any]:
    """All units that can be read, page by page."""
    queue = seen.queues[topic, queue_id]
    found: list[Any] = []
    at = queue.min_offset
    while (page := queue.page(at, 1000)) is not None:
        found += page.tolist()
        at += len(page)
    return found


def units_of(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Any]:
    queue = store.queues.find(topic, queue_id)
    assert queue is not None
    return [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]


def test_it_follows_appends_new_files_new_queues_and_new_topics(
    home: StoreHome, follow: Callable[[], StoreTail]
) -> None:
    store = home.open(**SIZES)
    put(store, 1)
    seen = follow()
    assert bounds(seen) == {("T", 0): (0, 1)}
    for count in range(2, 4 * UNITS):
        put(store, 1)
        assert bounds(seen) == {("T", 0): (0, count)}
        assert units(seen) == units_of(store)
        assert seen.log_end == store.log.max_offset
    put(store, 2, queue_id=3)
    assert bounds(seen)["T", 3] == (0, 2)
    put(store, 2 * UNITS, topic="U")
    assert bounds(seen)["U", 0] == (0, 2 * UNITS)
    assert units(seen, "U") == units_of(store, "U")


def test_a_queue_that_fills_its_file_exactly_goes_on_in_the_next(
    home: StoreHome, follow: Callable[[], StoreTail]
) -> None:
    store = home.open(**SIZES)
    put(store, UNITS)
    seen = follow()
    assert bounds(seen) == {("T", 0): (0, UNITS)}
    put(store, UNITS)
    assert bounds(seen) == {("T", 0): (0, 2 * UNITS)}
    put(store, 1)
    assert bounds(seen) == {("T", 0): (0, 2 * UNITS + 1)}
    assert units(seen) == units_of(store)


def test_many_units_come_at_once(home: StoreHome, follow: Callable[[], StoreTail]) -> None:
    store = home.open(**SIZES)
    put(store, 2)
    seen = follow()
    put(store, 10 * UNITS)
    assert bounds(seen) == {("T", 0): (0, 10 * UNITS + 2)}
    assert units(seen) == units_of(store)


def test_a_store_that_is_empty_at_first_is_followed_too(home: StoreHome, follow: Callable[[], StoreTail]) -> None:
    store = home.open(**SIZES)
    seen = follow()
    assert bounds(seen) == {}
    assert (seen.log_min, seen.log_end) == (0, 0)
    put(store, 3)
    assert bounds(seen) == {("T", 0): (0, 3)}


def test_the_minimum_moves_with_retention(home: StoreHome, follow: Callable[[], StoreTail]) -> None:
    aged = AgedStore(home)
    aged.fill(8)
    seen = follow()
    assert bounds(seen) == {("T", 0): (0, 8 * PER_FILE)}
    aged.age(hours=100, files=3)
    aged.run_on_request()
    assert aged.log_names == [3, 4, 5, 6, 7]
    assert bounds(seen) == {("T", 0): (3 * PER_FILE, 8 * PER_FILE)}
    assert seen.log_min == 3 * 4096
    assert units(seen) == units_of(aged.store)
    aged.fill(1)
    assert bounds(seen) == {("T", 0): (3 * PER_FILE, 9 * PER_FILE)}


@pytest.mark.parametrize("again", [1, 3, 2 * UNITS], ids=str)
@pytest.mark.parametrize("seen_between", [True, False])
def test_a_topic_that_is_deleted_and_made_again_is_the_new_one(
    home: StoreHome, follow: Callable[[], StoreTail], again: int, seen_between: bool
) -> None:
    store = home.open(**SIZES)
    put(store, 3)
    put(store, 1, topic="other")
    seen = follow()
    assert bounds(seen)["T", 0] == (0, 3)
    store.delete_topic("T")
    if seen_between:
        assert set(bounds(seen)) == {("other", 0)}
    put(store, again)
    assert bounds(seen)["T", 0] == (0, again)
    assert units(seen) == units_of(store)


def test_a_queue_that_a_start_truncated_is_read_again(home: StoreHome, follow: Callable[[], StoreTail]) -> None:
    """After a power loss the log is shorter than the queue, and what comes then gets the same offsets."""
    with home.open(**SIZES) as store:
        put(store, 2 * UNITS + 3)
        kept = store.look_up(store.get("T", 0, UNITS + 1).messages[0].physical_offset)
    assert kept is not None
    seen = follow()
    assert bounds(seen) == {("T", 0): (0, 2 * UNITS + 3)}
    for path in home.log_files():
        data = path.read_bytes()
        keep = max(kept.physical_offset - int(path.name), 0)
        path.write_bytes(data[:keep] + bytes(len(data) - min(keep, len(data))))
    home.mark_crashed()
    store = home.open(**SIZES)
    assert bounds(seen) == {("T", 0): (0, UNITS + 1)}
    for _ in range(UNITS + 2):
        assert store.put(Message("T", b"longer than before")).ok
    store.catch_up()
    assert bounds(seen) == {("T", 0): (0, 2 * UNITS + 3)}, "as many as there were"
    assert units(seen) == units_of(store)


# -- what is not trusted -------------------------------------------------------------------------------------------


class Pen:
    """Writes units into a queue's file, as slowly as a test likes."""

    def __init__(self, home: StoreHome, store: MessageStore) -> None:
        self._home = home
        self._store = store

    def write(self, number: int, data: bytes) -> None:
        path = self._home.queue_files("T")[number // UNITS]
        self._home.write(path, number % UNITS * 20, data)


@pytest.fixture
def store(home: StoreHome) -> MessageStore:
    """Three messages in the queue, and one more record in the log that has no unit yet."""
    with home.open(**SIZES) as store:
        put(store, 4)
    home.write(home.queue_files("T")[0], 60, bytes(20))
    (home.path / "penstock" / "dispatched.json").unlink()
    return store


def unit_of_the_fourth(home: StoreHome) -> bytes:
    with home.open(read_only=True, **SIZES) as view:
        queue = view.queues.find("T", 0)
        assert queue is not None
        return pack_unit(*queue.unit(3))


@pytest.mark.parametrize("part", range(1, 20))
def test_a_torn_unit_is_not_trusted_until_it_is_whole(
    home: StoreHome, store: MessageStore, follow: Callable[[], StoreTail], part: int
) -> None:
    """In whichever order the halves arrive. The tags' hash is not needed to know that the unit is there."""
    whole = unit_of_the_fourth(home)
    for half in (whole[:part] + bytes(20 - part), bytes(part) + whole[part:]):
        pen, seen = Pen(home, store), follow()
        pen.write(3, half)
        enough = half[:12] == whole[:12]
        assert bounds(seen) == {("T", 0): (0, 4 if enough else 3)}
        pen.write(3, whole)
        assert bounds(seen) == {("T", 0): (0, 4)}
        assert units(seen)[3] == units(follow())[3]
        pen.write(3, bytes(20))


def test_a_unit_whose_record_is_missing_is_trusted_once_it_exists(
    home: StoreHome, store: MessageStore, follow: Callable[[], StoreTail]
) -> None:
    whole = unit_of_the_fourth(home)
    offset = int.from_bytes(whole[:8], "big")
    log = home.log_files()[0]
    record = log.read_bytes()[offset : offset + 8]
    home.write(log, offset, bytes(8))
    seen = follow()
    Pen(home, store).write(3, whole)
    assert bounds(seen) == {("T", 0): (0, 3)}
    assert seen.log_end <= offset
    home.write(log, offset, record)
    assert bounds(seen) == {("T", 0): (0, 4)}, "without anything else having come"


def test_what_was_not_dispatched_is_left_to_a_start(home: StoreHome, store: MessageStore, follow: Any) -> None:
    assert bounds(follow()) == {("T", 0): (0, 3)}


# -- cheap ---------------------------------------------------------------------------------------------------------


def test_an_idle_look_lists_nothing_and_opens_nothing(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open(**SIZES)
    for number in range(200):
        assert store.put(Message(f"topic{number % 20}", b"x", queue_id=number // 20)).ok
    store.catch_up()
    calls: list[str] = []

    class Counted(tail.OverlayFiles):
        def names(self, folder: Path) -> list[str]:
            calls.append("names")
            return super().names(folder)

        def open_map(self, path: Path) -> Any:
            calls.append("open")
            return super().open_map(path)

        def is_folder(self, path: Path) -> bool:
            calls.append("is_folder")
            return super().is_folder(path)

    monkeypatch.setattr(tail, "OverlayFiles", Counted)
    monkeypatch.setattr(tail_module, "OverlayFiles", Counted)
    monkeypatch.setattr(tail, "_LIST_EVERY_S", 3600.0)
    folder = StoreFolder.find(home.path)
    seen = StoreTail(folder.layout, folder.settings)
    assert len(seen.queues) == 200
    calls.clear()
    for _ in range(10):
        seen.refresh()
    assert len(calls) <= 10, "at most one read of the sink's journal each time"
    assert store.put(Message("topic7", b"x", queue_id=3)).ok
    store.catch_up()
    calls.clear()
    seen.refresh()
    assert seen.queues["topic7", 3].max_offset == 2
    assert len(calls) <= 2
    seen.close()


def test_a_new_topic_and_a_new_queue_are_seen_at_once(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open(**SIZES)
    put(store, 1)
    monkeypatch.setattr(tail, "_LIST_EVERY_S", 3600.0)
    folder = StoreFolder.find(home.path)
    seen = StoreTail(folder.layout, folder.settings)
    put(store, 1, topic="new")
    assert set(bounds(seen)) == {("T", 0), ("new", 0)}
    put(store, 1, topic="new", queue_id=1)
    assert set(bounds(seen)) == {("T", 0), ("new", 0), ("new", 1)}
    seen.close()


def test_folders_that_show_no_change_are_listed_when_it_is_time(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(tail.OverlayFiles):
        def folder_state(self, folder: Path) -> tuple[int, int] | None:
            return None

    monkeypatch.setattr(tail, "OverlayFiles", Blind)
    store = home.open(**SIZES)
    put(store, 1)
    now = [100.0]
    monkeypatch.setattr(tail, "_LIST_EVERY_S", 0.2)
    monkeypatch.setattr(tail.time, "monotonic", lambda: now[0])
    folder = StoreFolder.find(home.path)
    seen = StoreTail(folder.layout, folder.settings)
    put(store, 1, topic="new")
    assert set(bounds(seen)) == {("T", 0)}
    now[0] += 0.25
    assert set(bounds(seen)) == {("T", 0), ("new", 0)}
    seen.close()


def test_it_keeps_nothing_open_of_a_store_that_is_gone(home: StoreHome, follow: Callable[[], StoreTail]) -> None:
    with home.open(**SIZES) as store:
        put(store, 3)
    seen = follow()
    shutil.rmtree(home.path)
    assert bounds(seen) == {}


def test_a_queue_whose_files_do_not_fit_is_said_and_not_hidden(
    home: StoreHome, follow: Callable[[], StoreTail]
) -> None:
    with home.open(**SIZES) as store:
        put(store, 3 * UNITS)
    seen = follow()
    path = home.queue_files("T")[1]
    path.write_bytes(path.read_bytes() + bytes(20))
    with pytest.raises(BadStore, match="the file has another size"):
        follow()
    home.queue_files("T")[0].unlink()
    with pytest.raises(BadStore, match="the file has another size"):
        seen.refresh()
