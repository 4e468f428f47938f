"""Where recovery starts in log and queues, and what an interrupted recovery leaves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.format.queue_unit import UNIT_SIZE, pack_unit
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files.file_io import Files

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL_LOG = {"mapped_file_size_commit_log": 4096}
UNITS_PER_FILE = 8


def test_after_a_clean_exit_the_walk_begins_in_the_third_last_file(home: StoreHome) -> None:
    with home.open(**SMALL_LOG) as store:
        home.put_numbered(store, 200)
        before = home.state(store)
    starts = [int(path.name) for path in home.log_files()]
    assert len(starts) > 4
    store = home.open(**SMALL_LOG)
    assert store.report.clean_exit
    assert store.report.walked_from == starts[-3]
    assert home.state(store) == before


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["zeros", "garbage"])
def test_a_log_that_ends_before_the_third_last_file_ends_there(home: StoreHome, content: bytes) -> None:
    """Files without records after a clean exit: the log continues where the last record ends."""
    with home.open(**SMALL_LOG) as store:
        home.put_numbered(store, 100)
        before, end = home.state(store), store.log.max_offset
    count = len(home.log_files())
    assert end % 4096
    for number in range(count, count + 4):
        (home.path / "commitlog" / f"{number * 4096:020d}").write_bytes(content.ljust(4096, b"\0"))
    store = home.open(**SMALL_LOG)
    assert (store.report.log_end, store.report.damage) == (end, [])
    assert home.state(store) == before
    assert len(home.log_files()) == count
    assert len(home.kept()) == (4 if content else 0)


@pytest.mark.parametrize("check", [True, False])
def test_bodies_are_checked_in_recovery_unless_the_settings_say_otherwise(home: StoreHome, check: bool) -> None:
    with home.open() as store:
        home.put_numbered(store, 5)
        records = home.read_queue(store, "T")
    for number in (1, 4):
        home.flip(home.log_files()[0], records[number].physical_offset + 88)
    home.mark_crashed()
    store = home.open(check_crc_on_recover=check)
    damage = [found.physical_offset for found in store.report.damage]
    assert damage == ([records[1].physical_offset] if check else [])
    assert store.report.log_end == (
        records[4].physical_offset if check else records[4].physical_offset + records[4].size
    )
    assert store.max_offset("T", 0) == (4 if check else 5)
    page = store.get("T", 0, 0)
    assert [message.queue_offset for message in page.messages] == [0, 2, 3], "a read checks them in any case"


def queue_of_files(folder: Path, count: int) -> ConsumeQueue:
    """A queue of full files, a record of 100 bytes for each unit."""
    size = UNITS_PER_FILE * UNIT_SIZE
    folder.mkdir()
    for start in range(0, count * UNITS_PER_FILE, UNITS_PER_FILE):
        units = (pack_unit(100 * number, 100, 0) for number in range(start, start + UNITS_PER_FILE))
        (folder / f"{start * UNIT_SIZE:020d}").write_bytes(b"".join(units))
    return ConsumeQueue(Files(), folder, "T", 0, size)


@pytest.mark.parametrize(("file", "found"), [(0, 40), (1, 40), (2, 19), (3, 27), (4, 35)])
@pytest.mark.parametrize("unit", [(0, 0, 0), (-1, 100, 0), (700, -1, 0)], ids=["zeroed", "negative_offset", "size"])
def test_the_units_of_a_queue_are_looked_at_from_its_third_last_file_on(
    home: StoreHome, file: int, found: int, unit: tuple[int, int, int]
) -> None:
    home.path.mkdir()
    queue = queue_of_files(home.path / "q", 5)
    home.write(sorted((home.path / "q").iterdir())[file], 3 * UNIT_SIZE, pack_unit(*unit))
    queue.load()
    assert (queue.max_offset, queue.max_physical_offset) == (found, 100 * found)
    queue.close()


def test_a_unit_of_a_record_at_the_logs_first_byte_is_valid(home: StoreHome) -> None:
    home.path.mkdir()
    queue = queue_of_files(home.path / "q", 1)
    home.write(next((home.path / "q").iterdir()), UNIT_SIZE, bytes(7 * UNIT_SIZE))
    queue.load()
    assert (queue.max_offset, queue.max_physical_offset) == (1, 100)
    queue.close()


def test_a_start_that_is_cut_short_while_it_repairs_counts_as_a_crash(home: StoreHome, disk: FaultyFiles) -> None:
    with home.open() as store:
        home.put_numbered(store, 3)
        end = store.log.max_offset
    home.write(home.log_files()[0], end, b"torn!")
    disk.before_sync_folder = lambda path: refuse(errno.EIO) if path.parent.name == "quarantine" else None
    with pytest.raises(StoreFailed):
        home.open(files=disk)
    assert home.log_files()[0].read_bytes()[end : end + 5] == b"torn!", "nothing is cut before it is kept"
    store = home.open()
    assert not store.report.clean_exit
    assert [path.read_bytes() for path in home.kept()][-1:] == [b"torn!"]
    assert home.bodies(store, "T") == [b"0000", b"0001", b"0002"]
