"""One mapped file: its three positions, when it is due for commit and flush, and who may look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.disks import WatchedFiles

from penstock.store.files.mapped_file import PAGE, MappedFile, TransientPool

SIZE = 16 * PAGE
RECORD = b"0123456789abcdef"

Make = Callable[..., MappedFile]


@pytest.fixture
def disk() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def make(tmp_path: Path, disk: WatchedFiles) -> Iterator[Make]:
    made: list[MappedFile] = []

    def new(from_offset: int = 0, **more: int) -> MappedFile:
        path = tmp_path / f"{from_offset:020d}"
        made.append(MappedFile(disk.create_map(path, SIZE), from_offset, **more))
        return made[-1]

    yield new
    for file in made:
        file.shut_down()


@pytest.fixture
def pool() -> Iterator[TransientPool]:
    pool = TransientPool(1, SIZE)
    yield pool
    pool.close()


def write(file: MappedFile, data: bytes) -> None:
    file.target[file.wrote : file.wrote + len(data)] = data
    file.wrote += len(data)


# -- positions -----------------------------------------------------------------------------------------------


def test_a_new_file_begins_with_all_positions_at_its_start(make: Make) -> None:
    file = make(SIZE)
    assert (file.wrote, file.committed, file.flushed) == (0, 0, 0)
    assert (file.readable, file.end_offset, file.full) == (0, SIZE, False)


def test_what_is_written_can_be_read_before_it_is_flushed(make: Make) -> None:
    file = make()
    write(file, RECORD)
    assert file.read(0, len(RECORD)) == RECORD
    assert (file.readable, file.flushed) == (len(RECORD), 0)


@pytest.mark.parametrize(("position", "size"), [(0, 17), (16, 1), (-1, 4), (SIZE, 1)])
def test_nothing_is_read_beyond_what_was_written(make: Make, position: int, size: int) -> None:
    file = make()
    write(file, RECORD)
    assert file.read(position, size) is None


def test_a_flush_moves_the_flushed_position_to_what_was_written_when_it_began(make: Make, disk: WatchedFiles) -> None:
    file = make()
    write(file, RECORD)
    disk.on_sync = lambda path: write(file, RECORD)  # a thread appends while the disk is busy
    assert file.flush() == len(RECORD)
    disk.on_sync = lambda path: None
    assert file.flush() == 2 * len(RECORD)


def test_a_flush_with_nothing_new_does_not_trouble_the_disk(make: Make, disk: WatchedFiles) -> None:
    file = make()
    write(file, RECORD)
    file.flush()
    before = disk.syncs.total()
    file.flush()
    assert disk.syncs.total() == before


def test_a_failed_sync_leaves_the_flushed_position_where_it_was(make: Make, disk: WatchedFiles) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error")

    file = make()
    write(file, RECORD)
    disk.on_sync = refuse
    with pytest.raises(OSError, match="Input/output error"):
        file.flush()
    assert file.flushed == 0


# -- when a flush or a commit is due -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flushed", "wrote", "least_pages", "due"),
    [
        (0, 0, 0, False),
        (0, 1, 0, True),
        (100, 100, 0, False),
        (0, 4 * PAGE - 1, 4, False),
        (0, 4 * PAGE, 4, True),
        (PAGE - 1, 4 * PAGE, 4, True),  # whole pages are counted from the page the flushed position is in
        (PAGE, 5 * PAGE - 1, 4, False),
        (SIZE - 1, SIZE, 4, True),  # a full file is always due
        (SIZE, SIZE, 4, False),  # unless there is nothing left to do
    ],
)
def test_a_flush_is_due_by_whole_pages(make: Make, flushed: int, wrote: int, least_pages: int, due: bool) -> None:
    file = make(wrote=wrote)
    file.flushed = flushed
    assert file.can_flush(least_pages) is due


@pytest.mark.parametrize(
    ("committed", "wrote", "least_pages", "due"),
    [
        (0, 1, 0, True),
        (7, 7, 0, False),
        (0, 4 * PAGE - 1, 4, False),
        (0, 4 * PAGE, 4, True),
        (SIZE - 8, SIZE, 4, True),
    ],
)
def test_a_commit_is_due_by_whole_pages(
    make: Make, pool: TransientPool, committed: int, wrote: int, least_pages: int, due: bool
) -> None:
    file = make(wrote=wrote)
    file.buffer = pool.borrow()
    file.committed = committed
    assert file.can_commit(least_pages) is due


# -- with a buffer of the transient pool ---------------------------------------------------------------------


def test_buffered_bytes_are_readable_only_once_they_are_committed(make: Make, pool: TransientPool) -> None:
    file = make()
    file.buffer = pool.borrow()
    write(file, RECORD)
    assert (file.readable, file.read(0, len(RECORD))) == (0, None)
    assert bytes(file.map.view[: len(RECORD)]) == bytes(len(RECORD)), "the file must not know them yet"
    assert file.commit() == len(RECORD)
    assert file.read(0, len(RECORD)) == RECORD


def test_uncommitted_bytes_are_not_flushed(make: Make, pool: TransientPool, disk: WatchedFiles) -> None:
    file = make()
    file.buffer = pool.borrow()
    write(file, RECORD)
    assert file.flush() == 0
    assert disk.syncs.total() == 0
    file.commit()
    assert file.flush() == len(RECORD)


def test_a_second_commit_adds_to_the_first(make: Make, pool: TransientPool) -> None:
    file = make()
    file.buffer = pool.borrow()
    for _ in range(3):
        write(file, RECORD)
        file.commit()
    assert file.read(0, 3 * len(RECORD)) == 3 * RECORD


def test_a_file_gives_its_buffer_back_when_all_of_it_is_committed(make: Make, pool: TransientPool) -> None:
    file = make()
    file.buffer = pool.borrow()
    write(file, RECORD * (SIZE // len(RECORD)))
    assert pool.available == 0
    assert file.commit() == SIZE
    assert pool.available == 1
    assert (file.readable, file.read(SIZE - len(RECORD), len(RECORD))) == (SIZE, RECORD)


def test_a_file_that_goes_gives_its_buffer_back(make: Make, pool: TransientPool) -> None:
    file = make()
    file.buffer = pool.borrow()
    assert file.shut_down()
    assert pool.available == 1


# -- zeroing -------------------------------------------------------------------------------------------------


def test_zeroing_starts_at_the_position_and_says_how_much_was_there(make: Make) -> None:
    file = make()
    write(file, b"\xff" * 100)
    assert file.zero(40) == 60
    assert bytes(file.map.view[:100]) == b"\xff" * 40 + bytes(60)
    assert file.zero(40) == 0


def test_used_is_behind_the_last_byte_that_is_not_zero(make: Make) -> None:
    file = make()
    assert file.map.nonzero_end(10) == 10
    file.map.view[5000] = 1
    assert file.map.nonzero_end(10) == 5001
    assert file.map.nonzero_end(5001) == 5001
    file.map.view[SIZE - 1] = 1
    assert file.map.nonzero_end(10) == SIZE


# -- readers -------------------------------------------------------------------------------------------------


def test_a_held_file_stays_mapped_until_its_reader_lets_go(make: Make) -> None:
    file = make()
    write(file, RECORD)
    assert file.acquire()
    assert not file.shut_down(), "a reader is still there"
    assert bytes(file.map.view[: len(RECORD)]) == RECORD
    file.release()
    assert file.shut_down()
    with pytest.raises(ValueError, match="released"):
        _ = file.map.view[0]


def test_a_file_that_was_shut_down_takes_no_new_readers(make: Make) -> None:
    file = make()
    write(file, RECORD)
    assert file.acquire()
    file.shut_down()
    assert not file.available
    assert not file.acquire()
    assert file.read(0, len(RECORD)) is None
    file.release()


def test_shutting_down_twice_takes_only_one_reference(make: Make) -> None:
    file = make()
    assert file.acquire()
    assert file.acquire()
    assert not file.shut_down()
    assert not file.shut_down()
    file.release()
    assert not file.shut_down()
    file.release()
    assert file.shut_down()


def test_a_read_leaves_no_reference_behind(make: Make) -> None:
    file = make()
    write(file, RECORD)
    for _ in range(3):
        file.read(0, len(RECORD))
        file.read(0, len(RECORD) + 1)
    assert file.shut_down()
