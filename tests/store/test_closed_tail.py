"""A cleanly closed store is distinguished from one that a start would have to recover."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.store import MessageStore
from penstock.store.readonly.follow_growing_queues import StoreTail
from penstock.store.readonly.store_folder import StoreFolder

LOG_FILE = 4096
SIZES = {"mapped_file_size_commit_log": LOG_FILE, "mapped_file_size_consume_queue": 20 * 50}
MESSAGES = 60


@pytest.fixture
def closed(home: StoreHome) -> StoreHome:
    """A store of several log files, closed cleanly."""
    store = home.open(**SIZES)
    home.put_numbered(store, MESSAGES, "orders")
    home.put_numbered(store, MESSAGES, "returns", 1)
    home.close_all()
    return home


def is_cleanly_closed(home: StoreHome) -> bool:
    folder = StoreFolder.find(home.path)
    tail = StoreTail(folder.layout, folder.settings)
    try:
        return tail.is_cleanly_closed
    finally:
        tail.close()


def log_files(home: StoreHome) -> list[Path]:
    return sorted((home.path / "commitlog").iterdir())


def log_end(home: StoreHome) -> int:
    with MessageStore.open(home.path, home.open(read_only=True, **SIZES).settings, read_only=True) as view:
        return view.log.confirmed_offset


def write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_closed_store_is_as_it_was_closed_and_ends_where_a_view_does(closed: StoreHome) -> None:
    assert is_cleanly_closed(closed)
    folder = StoreFolder.find(closed.path)
    tail = StoreTail(folder.layout, folder.settings)
    view = closed.open(read_only=True, **SIZES)
    assert tail.log_end == view.log.confirmed_offset
    ends = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in view.queues}
    assert {name: (queue.min_offset, queue.max_offset) for name, queue in tail.queues.items()} == ends
    tail.close()


def test_files_that_were_made_ahead_do_no_harm(closed: StoreHome) -> None:
    ahead = len(log_files(closed)) * LOG_FILE
    (closed.path / "commitlog" / f"{ahead:020}").write_bytes(bytes(LOG_FILE))
    assert is_cleanly_closed(closed)


def say_that_it_was_not_closed(home: StoreHome) -> None:
    (home.path / "abort").touch()


def remove_note(home: StoreHome) -> None:
    (home.path / "penstock" / "dispatched.json").unlink()


def remove_queue(home: StoreHome) -> None:
    shutil.rmtree(home.path / "consumequeue" / "returns")


def zero_last_unit(home: StoreHome) -> None:
    write(home.path / "consumequeue/orders/0/00000000000000001000", 20 * 9, bytes(20))


def remove_first_log_file_but_one(home: StoreHome) -> None:
    log_files(home)[1].unlink()


def remove_last_log_file(home: StoreHome) -> None:
    log_files(home)[-1].unlink()


def write_behind_the_end(home: StoreHome) -> None:
    end = log_end(home)
    write(log_files(home)[end // LOG_FILE], end % LOG_FILE, bytes.fromhex("00000070daa320a7"))


def begin_the_next_file(home: StoreHome) -> None:
    ahead = len(log_files(home)) * LOG_FILE
    (home.path / "commitlog" / f"{ahead:020}").write_bytes(b"\0\0\0\1".ljust(LOG_FILE, b"\0"))


def note_damage(home: StoreHome) -> None:
    (home.path / "penstock" / "damaged.json").write_text("[]")


@pytest.mark.parametrize(
    "touch",
    [
        say_that_it_was_not_closed,
        remove_note,
        remove_queue,
        zero_last_unit,
        remove_first_log_file_but_one,
        remove_last_log_file,
        write_behind_the_end,
        begin_the_next_file,
        note_damage,
    ],
)
def test_a_store_that_was_touched_is_not(closed: StoreHome, touch: Callable[[StoreHome], None]) -> None:
    touch(closed)
    assert not is_cleanly_closed(closed)


def test_a_store_that_was_never_closed_is_not(home: StoreHome) -> None:
    home.put_numbered(home.open(**SIZES), 3)
    assert not is_cleanly_closed(home)
