"""Reads of what is not in memory: by threads, without the GIL, one at a time for each key, and errors of the disk."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest
from support.disks import WAIT_SECONDS, ColdFiles
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.format.record import Record
from penstock.store import Boundary, GetStatus, Message, MessageStore, Page, PutResult, TagFilter
from penstock.store.cold_reads import ColdRead, ColdReads, try_read
from penstock.store.get import usable_memory

ALL = TagFilter("*")
BODY = bytes(5_000)


@pytest.fixture
def disk() -> ColdFiles:
    return ColdFiles()


def fill(home: StoreHome, count: int = 40, topics: tuple[str, ...] = ("T",)) -> list[PutResult]:
    """Puts messages with the keys k0, k1, ... and a tag, in turn into each topic, and closes the store."""
    store = home.open(mapped_file_size_commit_log=1 << 17)
    stored = []
    for number in range(count):
        message = Message(
            topics[number % len(topics)], b"%d" % number + BODY, keys=(f"k{number}",), tags=f"t{number % 3}"
        )
        stored.append(store.put(message))
    store.close()
    return stored


def opened(home: StoreHome, disk: ColdFiles | None = None) -> MessageStore:
    store = home.open(files=disk, mapped_file_size_commit_log=1 << 17)
    if disk is not None:
        disk.evict()  # the start reads some units
    return store


def refusing(begin: int, end: int) -> object:
    """An `on_read` of a disk that cannot read the bytes [begin, end) of the first log file."""

    def on_read(path: Path, start: int, stop: int) -> None:
        if path.parent.name == "commitlog" and int(path.name) == 0 and start < end and stop > begin:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return on_read


def page_of(read: Page | ColdRead[Page]) -> Page:
    assert isinstance(read, Page)
    return read


def cold(read: Page | ColdRead[Page]) -> ColdRead[Page]:
    assert isinstance(read, ColdRead)
    return read


# -- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", ["*", "t1", "t0 || t2"])
@pytest.mark.parametrize("topics", [("T",), tuple(f"T{number}" for number in range(20))], ids=["dense", "scattered"])
def test_a_cold_store_is_read_like_any_other(
    home: StoreHome, disk: ColdFiles, tags: str, topics: tuple[str, ...]
) -> None:
    fill(home, 200, topics)
    pages = []
    for files in (None, disk):
        store = opened(home, files)
        read: list[Page] = []
        for topic in topics:
            offset = 0
            while offset < store.max_offset(topic, 0):
                read.append(store.get(topic, 0, offset, 32, tags))
                offset = read[-1].next_begin_offset
        pages.append(read)
        store.close()
    assert pages[0] == pages[1]
    assert any(page.count for page in pages[0])


def test_a_page_that_is_not_in_memory_is_read_by_a_thread(home: StoreHome, disk: ColdFiles) -> None:
    fill(home)
    store = opened(home, disk)
    readers: set[str] = set()
    disk.on_read = lambda path, start, stop: readers.add(threading.current_thread().name)
    read = cold(store.try_get("T", 0, 0, 8, ALL))
    assert not readers, "nothing is read yet"
    page = store.read_cold(read, "a consumer").result(WAIT_SECONDS)
    assert [message.body[:1] for message in page.messages] == [b"%d" % number for number in range(8)]
    assert all(name.startswith("penstock-read") for name in readers)
    readers.clear()
    assert page_of(store.try_get("T", 0, 0, 8, ALL)) == page, "it is in memory now"
    assert not readers


def test_what_this_process_has_just_written_needs_no_read(home: StoreHome, disk: ColdFiles) -> None:
    store = home.open(files=disk)
    for number in range(10):
        store.put(Message("T", b"%d" % number))
    store.catch_up()
    while isinstance(units := store.try_get("T", 0, 0, 32, ALL), ColdRead):
        units()  # the units of the queue
    disk.on_read = refusing(0, 1 << 30)  # type: ignore[assignment]
    assert page_of(store.try_get("T", 0, 0, 32, ALL)).count == 10


def test_a_page_ends_before_a_record_that_the_disk_cannot_read(home: StoreHome, disk: ColdFiles) -> None:
    stored = fill(home)
    store = opened(home, disk)
    bad = stored[3]
    disk.on_read = refusing(bad.physical_offset + 4096, bad.physical_offset + 4097)  # type: ignore[assignment]
    page = store.get("T", 0, 0, 8)
    assert (page.status, page.count, page.next_begin_offset) == (GetStatus.FOUND, 3, 3)
    with pytest.raises(StoreFailed, match=r"cannot read .* Input/output error"):
        store.get("T", 0, 3, 8)
    assert store.get("T", 0, 4, 8).count == 8


def test_bytes_between_the_records_of_a_page_need_not_be_readable(home: StoreHome, disk: ColdFiles) -> None:
    stored = fill(home, 20, ("T", "other"))
    store = opened(home, disk)
    other = stored[1]
    disk.on_read = refusing(other.physical_offset, other.end_offset)  # type: ignore[assignment]
    assert store.get("T", 0, 0, 8).count == 8


def test_units_that_the_disk_cannot_read_are_an_error(home: StoreHome, disk: ColdFiles) -> None:
    fill(home)
    store = opened(home, disk)

    def on_read(path: Path, start: int, stop: int) -> None:
        if "consumequeue" in path.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.on_read = on_read
    with pytest.raises(StoreFailed, match="Input/output error"):
        store.get("T", 0, 0, 8)
    failed = store.read_cold(cold(store.try_get("T", 0, 0, 8, ALL)), "a consumer")
    assert isinstance(failed.exception(WAIT_SECONDS), StoreFailed)


# -- single records ------------------------------------------------------------------------------------------


def test_a_record_that_is_not_in_memory_is_looked_up_by_a_thread(home: StoreHome, disk: ColdFiles) -> None:
    stored = fill(home)
    store = opened(home, disk)
    read = store.try_look_up(stored[5].physical_offset)
    assert isinstance(read, ColdRead)
    record = store.read_cold(read, "a client").result(WAIT_SECONDS)
    assert record is not None
    assert record.queue_offset == 5
    again = store.try_look_up(stored[5].physical_offset)
    assert isinstance(again, Record)
    assert again == record


def test_a_record_that_the_disk_cannot_read_is_an_error(home: StoreHome, disk: ColdFiles) -> None:
    stored = fill(home)
    store = opened(home, disk)
    disk.on_read = refusing(stored[5].physical_offset, stored[5].end_offset)  # type: ignore[assignment]
    with pytest.raises(StoreFailed, match="Input/output error"):
        store.look_up(stored[5].physical_offset)
    with pytest.raises(StoreFailed, match="Input/output error"):
        store.query("T", "k5")


def test_queries_and_searches_load_what_they_need(home: StoreHome, disk: ColdFiles) -> None:
    stored = fill(home)
    store = opened(home, disk)
    read: set[str] = set()
    disk.on_read = lambda path, start, stop: read.add(path.relative_to(home.path).parts[0])
    assert [hit.queue_offset for hit in store.query("T", "k7")] == [7]
    assert {"index", "commitlog"} <= read
    read.clear()
    assert store.offset_by_time("T", 0, stored[0].store_timestamp, Boundary.LOWER) == 0
    assert {"consumequeue", "commitlog"} >= read > set()


# -- the threads ---------------------------------------------------------------------------------------------


def test_one_read_of_a_key_runs_at_a_time_and_keys_do_not_wait_for_each_other() -> None:
    reads, go, order = ColdReads(Path("store")), threading.Event(), list[str]()

    def slow() -> None:
        assert go.wait(WAIT_SECONDS)
        order.append("slow")

    first = reads.submit(slow, "a")
    more = [reads.submit(lambda: order.append("after"), "a") for _ in range(8)]
    reads.submit(lambda: order.append("other"), "b").result(WAIT_SECONDS)
    assert order == ["other"]
    go.set()
    for each in (first, *more):
        each.result(WAIT_SECONDS)
    assert order == ["other", "slow", *["after"] * 8]
    reads.close()


def test_an_error_ends_neither_the_thread_nor_the_reads_after_it() -> None:
    def fails() -> None:
        raise MemoryError

    reads = ColdReads(Path("store"))
    failed, fine = reads.submit(fails, "a"), reads.submit(lambda: 1, "a")
    assert isinstance(failed.exception(WAIT_SECONDS), MemoryError)
    assert fine.result(WAIT_SECONDS) == 1
    reads.close()


def test_a_close_waits_for_running_reads_and_cancels_the_others() -> None:
    reads, running, go = ColdReads(Path("store")), threading.Event(), threading.Event()

    def slow() -> int:
        running.set()
        assert go.wait(WAIT_SECONDS)
        return 1

    first = reads.submit(slow, "a")
    waiting: Future[int] = reads.submit(lambda: 2, "a")
    assert running.wait(WAIT_SECONDS)
    closing = threading.Thread(target=reads.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_SECONDS)
    assert not first.done()
    go.set()
    closing.join(WAIT_SECONDS)
    assert first.result(0) == 1
    with pytest.raises(StoreFailed, match="the store is closed"):
        reads.submit(lambda: 3, "a")


# -- dispatch ------------------------------------------------------------------------------------------------


def test_catching_up_at_once_does_not_wait_for_a_pause_of_dispatch(home: StoreHome) -> None:
    store = home.open()
    with store.dispatcher.paused():
        assert store.append(Message("T", b"one")).ok
        assert not store.try_catch_up()
        assert page_of(store.try_get("T", 0, 0, 32, ALL)).count == 0
        end, begin = try_read(store.max_offset, "T", 0), try_read(store.min_offset, "T", 0)
        assert isinstance(end, ColdRead)
        assert isinstance(begin, ColdRead)
    while not store.try_catch_up():
        pass
    assert page_of(store.try_get("T", 0, 0, 32, ALL)).count == 1
    assert (end(), begin()) == (1, 0)
    assert try_read(store.max_offset, "T", 0) == 1


# -- memory --------------------------------------------------------------------------------------------------


def groups(root: Path, listing: str, **files: str) -> Path:
    for name, text in {"proc/self/cgroup": listing, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


RAM = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("listing", "files", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        (
            "0::/pod/box\n",
            {"sys/fs/cgroup/pod/memory.max": "4096\n", "sys/fs/cgroup/pod/box/memory.max": "max\n"},
            4096,
        ),
        (
            "5:cpu,memory:/docker/a\n1:name=systemd:/\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n"},
            8192,
        ),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, RAM),
        ("9:cpu:/a\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1\n"}, RAM),
    ],
    ids=["v2", "v2 of a group around", "v1", "v2 without a limit", "v1 without memory"],
)
def test_the_memory_of_a_container_is_its_limit(
    tmp_path: Path, listing: str, files: dict[str, str], expected: int
) -> None:
    assert usable_memory(groups(tmp_path, listing, **files)) == expected


def test_without_control_groups_the_memory_is_the_machines(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == RAM
