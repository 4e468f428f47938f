"""New log files: made ahead of need, warmed up, lent a buffer, and what happens where that is not possible."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disks import WAIT_SECONDS, WatchedFiles

from penstock.errors import StoreFailed
from penstock.store import FlushDiskType, Message, MessageStore, PutStatus, Settings
from penstock.store.files import preallocate as allocate_module
from penstock.store.files.file_io import FileMap
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.files.preallocate import Allocator

PAGE = 4096
SIZE = 16 * PAGE


class Workshop(WatchedFiles):
    """A disk that tells when a file was made, and may be full, slow or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.room = True
        self.go = threading.Event()
        self.go.set()
        self._news = threading.Condition()

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        assert self.go.wait(WAIT_SECONDS)
        made = super().create_map(path, size, allocated=allocated)
        with self._news:
            self.made.append(path.name)
            self._news.notify_all()
        return made

    def _create_whole(self, path: Path, size: int, allocated: int) -> int:
        if not self.room and path.parent.name in ("commitlog", "log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super()._create_whole(path, size, allocated)

    def wait_until_made(self, name: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: name in self.made, WAIT_SECONDS), f"{name} was not made"


@pytest.fixture
def disk() -> Workshop:
    return Workshop()


class Bench:
    """An allocator with its folder; closes what was taken from it."""

    def __init__(self, folder: Path, disk: Workshop, **changes: Any) -> None:
        changes = {"pre_allocate_files": True, "mapped_file_size_commit_log": SIZE, **changes}
        self.folder = folder
        self.allocator = Allocator(disk, Settings.dev(**changes), None)
        self.taken: list[FileMap] = []

    def take(self, number: int) -> FileMap:
        offset = number * SIZE
        self.taken.append(self.allocator.allocate(self.folder / file_name(offset), offset).map)
        return self.taken[-1]

    def names(self) -> list[int]:
        return sorted(int(path.name) // SIZE for path in self.folder.iterdir())

    def close(self) -> None:
        self.allocator.close()
        for each in self.taken:
            each.close()


@pytest.fixture
def bench(tmp_path: Path, disk: Workshop) -> Iterator[Bench]:
    bench = Bench(tmp_path / "log", disk)
    yield bench
    bench.close()


Open = Callable[..., MessageStore]


@pytest.fixture
def open_store(tmp_path: Path, disk: Workshop) -> Iterator[Open]:
    opened: list[MessageStore] = []

    def new(name: str = "store", **changes: Any) -> MessageStore:
        settings = Settings.dev(**{"mapped_file_size_commit_log": SIZE, **changes})
        opened.append(MessageStore.open(tmp_path / name, settings, files=disk))
        return opened[-1]

    yield new
    for store in opened:
        store.close()


def fill_files(store: MessageStore, count: int) -> list[bytes]:
    """Puts messages until the log has grown by `count` files."""
    goal = store.log.queue.wrote_offset + count * SIZE
    bodies = []
    while store.log.queue.wrote_offset < goal:
        bodies.append(b"%d" % len(bodies) + bytes(10_000))
        answer = store.put(Message("orders", bodies[-1]))
        assert answer.ok, answer.reason
    return bodies


def read_all(store: MessageStore) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < store.max_offset("orders", 0):
        bodies += [message.body for message in store.get("orders", 0, len(bodies)).messages]
    return bodies


# -- made ahead ----------------------------------------------------------------------------------------------


def test_taking_a_file_has_the_next_one_made_ahead(bench: Bench, disk: Workshop) -> None:
    bench.take(0)
    disk.wait_until_made(file_name(SIZE))
    assert bench.names() == [0, 1]
    bench.take(1)
    disk.wait_until_made(file_name(2 * SIZE))
    assert disk.made == [file_name(0), file_name(SIZE), file_name(2 * SIZE)], "each is made once"


def test_a_file_that_was_made_ahead_is_handed_out_while_the_disk_is_busy(bench: Bench, disk: Workshop) -> None:
    bench.take(0)
    disk.wait_until_made(file_name(SIZE))
    disk.go.clear()
    assert len(bench.take(1)) == SIZE
    disk.go.set()


def test_what_was_made_and_not_taken_is_removed_at_a_clean_close(bench: Bench, disk: Workshop) -> None:
    bench.take(0)
    disk.wait_until_made(file_name(SIZE))
    bench.allocator.close()
    assert bench.names() == [0]


def test_without_pre_allocation_a_file_is_made_when_it_is_taken(tmp_path: Path, disk: Workshop) -> None:
    bench = Bench(tmp_path / "log", disk, pre_allocate_files=False)
    bench.take(0)
    bench.take(1)
    assert disk.made == [file_name(0), file_name(SIZE)]
    bench.close()
    assert bench.names() == [0, 1]


def test_a_store_leaves_no_unused_file_behind(open_store: Open, disk: Workshop, tmp_path: Path) -> None:
    store = open_store(pre_allocate_files=True)
    store.put(Message("orders", b"one"))
    disk.wait_until_made(file_name(SIZE))
    store.close()
    assert [path.name for path in (tmp_path / "store" / "commitlog").iterdir()] == [file_name(0)]


def test_a_file_made_ahead_and_left_by_a_crash_does_no_harm(open_store: Open, disk: Workshop, tmp_path: Path) -> None:
    store = open_store(pre_allocate_files=True)
    store.put(Message("orders", b"one"))
    disk.wait_until_made(file_name(SIZE))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert (tmp_path / "copy" / "commitlog" / file_name(SIZE)).exists()
    after_crash = open_store("copy")
    assert not after_crash.report.clean_exit
    assert [path.name for path in (tmp_path / "copy" / "commitlog").iterdir()] == [file_name(0)]
    assert read_all(after_crash) == [b"one"]
    assert after_crash.put(Message("orders", b"two")).ok


def test_after_a_start_the_next_file_is_made_once_the_last_is_half_full(
    open_store: Open, disk: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate_module, "MIN_PREPARED_SIZE", SIZE)
    monkeypatch.setattr(allocate_module, "CHECK_SECONDS", 0.01)
    store = open_store()
    while store.log.queue.wrote_offset < SIZE * 2 // 3:
        assert store.put(Message("orders", bytes(5_000))).ok
    store.close()
    assert disk.made.count(file_name(SIZE)) == 0
    open_store(pre_allocate_files=True)
    disk.wait_until_made(file_name(SIZE))


def test_an_append_that_must_not_block_does_not_wait_for_a_file(open_store: Open, disk: Workshop) -> None:
    store = open_store(pre_allocate_files=True)
    assert store.append(Message("orders", b"first")).ok, "the first file of all is waited for"
    disk.wait_until_made(file_name(SIZE))
    disk.go.clear()
    large = bytes(30_000)
    for _ in range(3):  # two in each of the files that are there
        assert store.append(Message("orders", large)).ok
    while (answer := store.append(Message("orders", large))).ok:
        pass
    assert answer.status is PutStatus.OS_PAGECACHE_BUSY
    assert "the next log file is not ready" in answer.reason
    assert store.append_many([Message("orders", b"a"), Message("orders", b"b")]).status is PutStatus.OS_PAGECACHE_BUSY
    disk.go.set()
    disk.wait_until_made(file_name(2 * SIZE))
    assert store.put(Message("orders", large)).ok


def test_an_append_that_must_not_block_does_not_wait_for_a_put_that_does(open_store: Open, disk: Workshop) -> None:
    store = open_store(pre_allocate_files=True)
    fill_files(store, 1)
    disk.wait_until_made(file_name(2 * SIZE))
    fill_files(store, 1)
    disk.wait_until_made(file_name(3 * SIZE))
    disk.go.clear()
    while store.log.locked_for() == 0 and store.append(Message("orders", bytes(30_000))).ok:
        pass
    putting = threading.Thread(target=store.put, args=[Message("orders", bytes(30_000))])
    putting.start()
    while store.log.locked_for() == 0:  # it waits for a file, and holds the put lock
        pass
    answer = store.append(Message("orders", bytes(30_000)))
    assert answer.status is PutStatus.OS_PAGECACHE_BUSY
    assert "another put holds the log" in answer.reason
    disk.go.set()
    putting.join(WAIT_SECONDS)


# -- where there is no room ----------------------------------------------------------------------------------


def test_a_failure_is_answered_and_the_next_attempt_tries_again(bench: Bench, disk: Workshop) -> None:
    disk.room = False
    for _ in range(3):
        with pytest.raises(StoreFailed, match="no space left on the disk"):
            bench.take(0)
    disk.room = True
    assert len(bench.take(0)) == SIZE


def test_a_failure_to_make_a_file_ahead_is_forgotten_once_there_is_room(bench: Bench, disk: Workshop) -> None:
    bench.take(0)
    disk.wait_until_made(file_name(SIZE))
    disk.room = False
    bench.take(1)  # has the next one made ahead, which fails in the background
    with pytest.raises(StoreFailed, match="no space left"):
        bench.take(2)
    disk.room = True
    assert len(bench.take(2)) == SIZE


def test_a_broken_folder_does_not_end_the_making_of_files(bench: Bench, disk: Workshop) -> None:
    def broken(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.sync_folder = broken  # type: ignore[method-assign]
    with pytest.raises(StoreFailed, match="Input/output error"):
        bench.take(0)
    del disk.sync_folder
    assert len(bench.take(0)) == SIZE
    assert bench.names()[0] == 0


def test_a_disk_that_is_too_slow_is_answered_and_its_file_used_later(
    bench: Bench, disk: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate_module, "WAIT_SECONDS", 0.01)
    disk.go.clear()
    with pytest.raises(StoreFailed, match=r"no new file after 0\.01 seconds: the disk is too slow"):
        bench.take(0)
    disk.go.set()
    disk.wait_until_made(file_name(0))
    monkeypatch.setattr(allocate_module, "WAIT_SECONDS", WAIT_SECONDS)
    assert len(bench.take(0)) == SIZE
    assert disk.made.count(file_name(0)) == 1


@pytest.mark.parametrize("ahead", [True, False], ids=["made ahead", "made when needed"])
def test_a_put_without_room_for_a_new_file_is_refused_until_there_is_room(
    open_store: Open, disk: Workshop, ahead: bool
) -> None:
    store = open_store(pre_allocate_files=ahead)
    put = fill_files(store, 1)
    if ahead:
        put += fill_files(store, 1)
    disk.room = False
    large = b"x" * 30_000
    while (answer := store.put(Message("orders", large))).ok:  # what was made ahead, and the rest of the last file
        put.append(large)
    assert answer.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert "no space left on the disk" in answer.reason
    small = store.put(Message("orders", b"small"))
    assert small.status is PutStatus.CREATE_MAPEDFILE_FAILED, "the file before is closed for good"
    assert read_all(store) == put
    disk.room = True
    assert store.put(Message("orders", b"small")).ok
    store.close()
    again = open_store()
    assert again.report.clean_exit
    assert read_all(again) == [*put, b"small"]


# -- warm-up -------------------------------------------------------------------------------------------------


def memory_facts(path: Path) -> dict[str, int]:
    """What the kernel says about this process's map of a file, in bytes."""
    facts: dict[str, int] = {}
    inside = False
    inode = str(path.stat().st_ino)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):  # range, rights, offset, device, inode, name
            inside = words[4] == inode
        elif inside and words[-1] == "kB":
            facts[words[0].rstrip(":")] = facts.get(words[0].rstrip(":"), 0) + int(words[1]) * 1024
    return facts


def test_a_warmed_file_is_in_memory_before_the_first_put(tmp_path: Path, disk: Workshop) -> None:
    warm = Bench(tmp_path / "warm", disk, warm_mapped_file_enable=True)
    cold = Bench(tmp_path / "cold", disk)
    warm.take(0)
    cold.take(0)
    assert memory_facts(warm.folder / file_name(0))["Rss"] == SIZE
    assert memory_facts(cold.folder / file_name(0))["Rss"] < SIZE
    assert bytes(warm.taken[0].view) == bytes(SIZE)
    warm.close()
    cold.close()


def test_warming_syncs_as_it_goes_where_puts_wait_for_the_disk(tmp_path: Path, disk: Workshop) -> None:
    changes = {"warm_mapped_file_enable": True, "flush_least_pages_when_warm_mapped_file": 4}
    lazy = Bench(tmp_path / "lazy", disk, pre_allocate_files=False, **changes)
    lazy.take(0)
    assert disk.syncs["lazy"] == 0
    eager = Bench(
        tmp_path / "eager", disk, pre_allocate_files=False, flush_disk_type=FlushDiskType.SYNC_FLUSH, **changes
    )
    eager.take(0)
    assert disk.syncs["eager"] == 3, "after 4, 8 and 12 of 16 pages"
    lazy.close()
    eager.close()


def test_a_store_that_warms_its_files_works_and_lets_go_of_full_ones(open_store: Open, tmp_path: Path) -> None:
    store = open_store(warm_mapped_file_enable=True)
    put = fill_files(store, 2)
    log = tmp_path / "store" / "commitlog"
    assert memory_facts(log / file_name(0)).get("Locked") == 0
    assert memory_facts(log / file_name(2 * SIZE))["Locked"] in (SIZE, 0), "0 where the limit forbids it"
    assert read_all(store) == put
