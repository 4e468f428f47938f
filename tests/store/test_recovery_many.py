"""Starts with so much to build that queues and index are written in large pieces."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.store import Message, MessageStore

COUNT = 20_000
SETTINGS = {"max_hash_slot_num": 5_000, "max_index_num": 15_000, "mapped_file_size_consume_queue": 7_000 * 20}


def fill(home: StoreHome) -> dict[str, list[bytes]]:
    """Twenty thousand messages with a key each, in two queues; returns what was dispatched as they came."""
    with home.open(**SETTINGS) as store:
        for number in range(COUNT):
            queue_id = 0 if number % 5 else 1
            assert store.put(Message("T", b"%d" % number, keys=(f"k{number}",), tags="tag", queue_id=queue_id)).ok
            if number % 1000 == 0:
                store.catch_up()  # in pieces too small to be written at once
    return built(home)


def built(home: StoreHome) -> dict[str, list[bytes]]:
    """The content of all files of queues and index, in their order."""
    found = {}
    for folder in ("consumequeue/T/0", "consumequeue/T/1", "index"):
        found[folder] = [path.read_bytes() for path in sorted((home.path / folder).iterdir())]
    return found


def assert_serves_all(store: MessageStore) -> None:
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [COUNT * 4 // 5, COUNT // 5]
    for number in range(0, COUNT, 777):
        assert [hit.body for hit in store.query("T", f"k{number}")] == [b"%d" % number]


@pytest.fixture
def before(home: StoreHome) -> dict[str, list[bytes]]:
    found = fill(home)
    assert [len(files) for files in found.values()] == [3, 1, 2]
    return found


def lose_queues_and_index(home: StoreHome) -> None:
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")


def test_queues_and_index_that_are_lost_are_built_byte_for_byte(
    home: StoreHome, before: dict[str, list[bytes]]
) -> None:
    lose_queues_and_index(home)
    with home.open(**SETTINGS) as store:
        assert_serves_all(store)
    assert built(home) == before


def test_after_a_crash_they_are_the_same(home: StoreHome, before: dict[str, list[bytes]]) -> None:
    home.mark_crashed()
    with home.open(**SETTINGS) as store:
        assert_serves_all(store)
    assert built(home) == before


def test_a_view_builds_them_too_and_leaves_the_disk_alone(home: StoreHome, before: dict[str, list[bytes]]) -> None:
    lose_queues_and_index(home)
    with home.open(read_only=True, **SETTINGS) as store:
        assert_serves_all(store)
    assert not (home.path / "consumequeue").exists()
    assert not (home.path / "index").exists()


@pytest.mark.parametrize("fails_at", range(4))
def test_where_the_disk_refuses_a_piece_the_start_fails_and_the_next_one_ends_the_same(
    home: StoreHome, before: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    lose_queues_and_index(home)
    really_write, pieces = os.pwrite, []

    def write(descriptor: int, data: bytes, position: int) -> int:
        if len(data) > 1000:  # not the four bytes of `lock`
            pieces.append(position)
            if len(pieces) > fails_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really_write(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        with pytest.raises(StoreFailed, match="cannot write"):
            home.open(**SETTINGS)
    with home.open(**SETTINGS) as store:
        assert_serves_all(store)
    assert built(home) == before


def test_items_that_a_killed_start_counted_and_did_not_write_are_built_by_the_next(
    home: StoreHome, before: dict[str, list[bytes]]
) -> None:
    """Many items are written behind their slots and counts: a kill in between leaves zeros."""
    path = sorted((home.path / "index").iterdir())[-1]
    items = 40 + 4 * SETTINGS["max_hash_slot_num"] + 20
    content = path.read_bytes()
    path.write_bytes(content[: items + 20 * 100] + bytes(len(content) - items - 20 * 100))
    home.mark_crashed()
    with home.open(**SETTINGS) as store:
        assert_serves_all(store)
    assert built(home) == before
