"""A sequence of bytes over several files: loading it, finding in it, flushing it and cutting it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import WatchedFiles

from penstock.errors import BadStore, StoreFailed
from penstock.store import Message, MessageStore, Settings
from penstock.store.files.file_io import FileMap
from penstock.store.files.mapped_file import TransientPool
from penstock.store.files.mapped_file_queue import MappedFileQueue, file_name

SIZE = 8192


@pytest.fixture
def disk() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def queue(tmp_path: Path, disk: WatchedFiles) -> Iterator[MappedFileQueue]:
    queue = MappedFileQueue(disk, tmp_path / "log", SIZE)
    yield queue
    queue.close()


def fill(queue: MappedFileQueue, count: int, byte: int = 0xAB) -> None:
    """Appends bytes, over as many files as it takes."""
    while count:
        file = queue.writable(queue.wrote_offset)
        part = min(count, file.size - file.wrote)
        file.target[file.wrote : file.wrote + part] = bytes([byte]) * part
        file.wrote += part
        count -= part


def write_files(folder: Path, *sizes_by_offset: tuple[int, int], byte: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for offset, size in sizes_by_offset:
        (folder / file_name(offset)).write_bytes(bytes([byte]) * size)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


# -- growing and finding -------------------------------------------------------------------------------------


def test_files_are_named_by_their_offset_in_twenty_digits() -> None:
    assert file_name(1073741824) == "00000000001073741824"
    assert file_name(6000000) == "00000000000006000000"


def test_an_empty_queue_has_no_minimum_and_ends_at_zero(queue: MappedFileQueue) -> None:
    assert (queue.min_offset, queue.max_offset, queue.wrote_offset) == (-1, 0, 0)
    assert queue.find(0) is None
    assert queue.read(0, 1) is None


def test_the_first_file_begins_at_the_multiple_before_the_start(queue: MappedFileQueue) -> None:
    file = queue.writable(3 * SIZE + 100)
    assert (file.from_offset, file.created_first) == (3 * SIZE, True)
    assert queue.min_offset == 3 * SIZE


def test_a_full_file_is_followed_by_the_next_one(queue: MappedFileQueue) -> None:
    fill(queue, SIZE)
    assert queue.max_offset == SIZE
    second = queue.writable(0)
    assert (second.from_offset, second.created_first) == (SIZE, False)
    assert sorted(path.name for path in queue.folder.iterdir()) == [file_name(0), file_name(SIZE)]
    assert all(path.stat().st_size == SIZE for path in queue.folder.iterdir())


def test_a_file_that_cannot_be_made_leaves_the_queue_as_it_was(queue: MappedFileQueue, disk: WatchedFiles) -> None:
    fill(queue, SIZE)
    (queue.folder / file_name(SIZE)).mkdir()
    with pytest.raises(StoreFailed, match="cannot allocate"):
        queue.writable(0)
    assert len(queue.files) == 1
    (queue.folder / file_name(SIZE)).rmdir()
    assert queue.writable(0).from_offset == SIZE


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (-1, None),
        (0, None),  # RocketMQ would answer with the first file here
        (SIZE - 1, None),
        (SIZE, SIZE),
        (2 * SIZE - 1, SIZE),
        (2 * SIZE, 2 * SIZE),
        (3 * SIZE - 1, 2 * SIZE),
        (3 * SIZE, None),
        (2**62, None),
    ],
)
def test_a_file_is_found_only_if_it_really_covers_the_offset(
    queue: MappedFileQueue, offset: int, found: int | None
) -> None:
    fill(queue, 3 * SIZE)
    assert queue.drop_first()
    file = queue.find(offset)
    assert (None if file is None else file.from_offset) == found


def test_a_read_stays_within_one_file_and_what_was_written(queue: MappedFileQueue) -> None:
    fill(queue, SIZE + 10)
    assert queue.read(SIZE - 4, 4) == b"\xab" * 4
    assert queue.read(SIZE - 4, 5) is None
    assert queue.read(SIZE, 10) == b"\xab" * 10
    assert queue.read(SIZE, 11) is None


# -- flushing and committing ---------------------------------------------------------------------------------


def test_one_flush_works_on_one_file_and_the_next_goes_on_behind_it(queue: MappedFileQueue, disk: WatchedFiles) -> None:
    fill(queue, 2 * SIZE + 5)
    assert queue.flush() is True
    assert queue.flushed_where == SIZE
    assert queue.flush() is True
    assert queue.flush() is True
    assert queue.flushed_where == 2 * SIZE + 5
    assert queue.flush() is False
    assert disk.syncs["log"] == 3


def test_flush_all_goes_over_every_file(queue: MappedFileQueue) -> None:
    fill(queue, 3 * SIZE)
    queue.flush_all()
    assert queue.flushed_where == 3 * SIZE
    fill(queue, 1)
    queue.flush_all()
    assert queue.flushed_where == 3 * SIZE + 1


def test_a_flush_waits_for_enough_pages_but_not_in_a_full_file(queue: MappedFileQueue) -> None:
    fill(queue, 4096)
    assert queue.flush(2) is False
    fill(queue, 4096)
    assert queue.flush(2) is True
    assert queue.flushed_where == SIZE


def test_the_time_of_the_newest_record_on_disk_is_taken_only_by_a_thorough_flush(queue: MappedFileQueue) -> None:
    fill(queue, SIZE)
    queue.files[0].store_timestamp = 1234
    queue.flush(1)
    assert queue.store_timestamp == 0
    queue.flush(0)
    assert queue.store_timestamp == 1234


def test_readers_do_not_look_behind_a_file_whose_buffer_is_not_committed(
    tmp_path: Path, queue: MappedFileQueue
) -> None:
    pool = TransientPool(2, SIZE)

    def buffered(path: Path, offset: int) -> object:
        made = MappedFileQueue(WatchedFiles(), path.parent, SIZE).writable(offset)
        made.buffer = pool.borrow()
        return made

    file = queue.writable(0, buffered)
    file.target[:] = b"\xab" * SIZE
    file.wrote = SIZE
    second = queue.writable(0, buffered)
    second.target[:10] = b"\xcd" * 10
    second.wrote = 10
    assert queue.max_offset == 0, "nothing is committed yet"
    assert queue.wrote_offset == SIZE + 10
    assert queue.commit()
    assert queue.max_offset == SIZE
    assert queue.commit()
    assert queue.max_offset == SIZE + 10
    queue.close()
    pool.close()


# -- cutting -------------------------------------------------------------------------------------------------


def test_a_cut_zeroes_what_it_cuts_and_removes_later_files(queue: MappedFileQueue) -> None:
    fill(queue, 3 * SIZE)
    assert queue.truncate(SIZE + 100) == 2 * SIZE - 100
    assert sorted(path.name for path in queue.folder.iterdir()) == [file_name(0), file_name(SIZE)]
    assert (queue.folder / file_name(SIZE)).read_bytes() == b"\xab" * 100 + bytes(SIZE - 100)
    last = queue.files[-1]
    assert (last.wrote, last.committed, last.flushed) == (100, 100, 100)
    assert (queue.max_offset, queue.flushed_where, queue.committed_where) == (SIZE + 100,) * 3


def test_a_cut_leaves_earlier_files_alone(queue: MappedFileQueue) -> None:
    fill(queue, 2 * SIZE)
    queue.truncate(SIZE + 1)
    assert (queue.folder / file_name(0)).read_bytes() == b"\xab" * SIZE
    assert queue.files[0].wrote == SIZE


def test_a_cut_at_the_border_of_two_files_removes_the_second(queue: MappedFileQueue) -> None:
    fill(queue, 2 * SIZE)
    queue.truncate(SIZE)
    assert [file.from_offset for file in queue.files] == [0]
    assert queue.max_offset == SIZE


def test_what_was_cut_does_not_come_back_when_the_queue_grows_again(queue: MappedFileQueue) -> None:
    fill(queue, 2 * SIZE)
    queue.truncate(10)
    fill(queue, 5, byte=0xCD)
    queue.close()
    assert (queue.folder / file_name(0)).read_bytes() == b"\xab" * 10 + b"\xcd" * 5 + bytes(SIZE - 15)


# -- deleting ------------------------------------------------------------------------------------------------


def test_the_first_file_is_not_deleted_while_it_has_a_reader(queue: MappedFileQueue) -> None:
    fill(queue, 2 * SIZE)
    first = queue.files[0]
    assert first.acquire()
    assert queue.drop_first() is False
    assert first.path.exists()
    assert bytes(first.map.view[:4]) == b"\xab" * 4
    assert queue.min_offset == SIZE, "new readers begin behind it"
    assert queue.read(0, 4) is None
    first.release()
    assert queue.drop_first() is True
    assert not first.path.exists()
    assert queue.read(SIZE, 4) == b"\xab" * 4


def test_destroying_a_queue_removes_its_files_and_its_folder(queue: MappedFileQueue) -> None:
    fill(queue, 2 * SIZE)
    queue.destroy()
    assert not queue.folder.exists()
    assert (queue.files, queue.max_offset) == ((), 0)


# -- loading -------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_an_empty_queue(queue: MappedFileQueue) -> None:
    queue.load()
    assert queue.files == ()
    assert not queue.folder.exists()


def test_files_are_loaded_as_full_in_the_order_of_their_names(queue: MappedFileQueue) -> None:
    write_files(queue.folder, (3 * SIZE, SIZE), (2 * SIZE, SIZE), (4 * SIZE, SIZE))
    queue.load()
    assert [file.from_offset for file in queue.files] == [2 * SIZE, 3 * SIZE, 4 * SIZE]
    assert all((file.wrote, file.committed, file.flushed) == (SIZE,) * 3 for file in queue.files)
    assert (queue.min_offset, queue.max_offset) == (2 * SIZE, 5 * SIZE)


WRONG = {
    "a file of the wrong size": (
        [(0, SIZE), (SIZE, SIZE + 1)],
        file_name(SIZE),
        [f"expected {SIZE} bytes", f"found {SIZE + 1} bytes"],
    ),
    "a short file in the middle": (
        [(0, 10), (SIZE, SIZE)],
        file_name(0),
        [f"expected {SIZE} bytes", "found 10 bytes"],
    ),
    "a short last file with something in it": (
        [(0, SIZE), (SIZE, 10)],
        file_name(SIZE),
        [f"expected {SIZE} bytes", "found 10 bytes"],
    ),
    "an empty file in the middle": (
        [(0, SIZE), (SIZE, 0), (2 * SIZE, SIZE)],
        file_name(SIZE),
        [f"expected {SIZE} bytes", "found 0 bytes"],
    ),
    "a gap": (
        [(0, SIZE), (2 * SIZE, SIZE)],
        file_name(2 * SIZE),
        ["missing", f"expected {file_name(SIZE)}", f"found {file_name(2 * SIZE)}"],
    ),
    "a name that is no multiple of the size": (
        [(100, SIZE)],
        file_name(100),
        [f"expected a multiple of {SIZE}", "found 100"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_file_is_named_with_what_was_expected_and_found(queue: MappedFileQueue, case: str) -> None:
    files, named, words = WRONG[case]
    write_files(queue.folder, *files)
    before = contents(queue.folder)
    with pytest.raises(BadStore) as caught:
        queue.load()
    sentence = str(caught.value)
    assert sentence.startswith(f"{queue.folder / named}: ")
    for word in words:
        assert word in sentence
    assert "\n" not in sentence
    assert contents(queue.folder) == before
    assert queue.files == ()


@pytest.mark.parametrize("name", ["notes.txt", "0", "00000000000000000000.bak", "0000000000000000000x", "٠" * 20])
def test_a_foreign_file_is_named_and_left_alone(queue: MappedFileQueue, name: str) -> None:
    write_files(queue.folder, (0, SIZE))
    (queue.folder / name).write_bytes(b"mine")
    before = contents(queue.folder)
    with pytest.raises(BadStore, match="foreign") as caught:
        queue.load()
    assert str(caught.value).startswith(f"{queue.folder / name}: ")
    assert "expected files with names of 20 digits" in str(caught.value)
    assert contents(queue.folder) == before


def test_a_folder_with_the_name_of_a_data_file_is_refused_in_one_sentence(queue: MappedFileQueue) -> None:
    write_files(queue.folder, (0, SIZE))
    (queue.folder / file_name(SIZE)).mkdir()
    (queue.folder / file_name(SIZE) / "inside").write_bytes(b"mine")
    before = contents(queue.folder)
    with pytest.raises(BadStore) as caught:
        queue.load()
    assert str(caught.value).startswith(f"{queue.folder / file_name(SIZE)}: ")
    assert contents(queue.folder) == before


@pytest.mark.parametrize("size", [0, 10, SIZE - 1])
def test_an_unfinished_last_file_without_content_does_not_stop_the_start(queue: MappedFileQueue, size: int) -> None:
    write_files(queue.folder, (0, SIZE))
    (queue.folder / file_name(SIZE)).write_bytes(bytes(size))
    queue.load()
    assert [file.from_offset for file in queue.files] == [0]
    assert queue.writable(0).from_offset == SIZE, "its place can be taken again"
    assert (queue.folder / file_name(SIZE)).read_bytes() == bytes(SIZE)


def test_a_load_that_fails_holds_no_file_open(queue: MappedFileQueue, disk: WatchedFiles) -> None:
    opened: list[FileMap] = []

    class Remembering(WatchedFiles):
        def open_map(self, path: Path) -> FileMap:
            if len(opened) == 2:
                raise OSError(errno.EIO, "the disk is ill")
            opened.append(super().open_map(path))
            return opened[-1]

    write_files(queue.folder, (0, SIZE), (SIZE, SIZE), (2 * SIZE, SIZE))
    with pytest.raises(OSError, match="ill"):
        MappedFileQueue(Remembering(), queue.folder, SIZE).load()
    assert len(opened) == 2
    assert all(each.memory.closed for each in opened)


# -- the same through the front door -------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/orders/0", "index"])
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean exit", "after a crash"])
def test_a_store_with_a_foreign_file_is_not_opened_and_not_changed(tmp_path: Path, folder: str, clean: bool) -> None:
    root = tmp_path / "store"
    with MessageStore.open(root, Settings.dev()) as store:
        store.put(Message("orders", b"one", keys="k"))
    if not clean:
        (root / "abort").touch()
    foreign = root / folder / "notes.txt"
    foreign.write_bytes(b"mine")
    before = contents(root)
    with pytest.raises(BadStore, match="foreign") as caught:
        MessageStore.open(root, Settings.dev())
    assert str(caught.value).startswith(f"{foreign}: ")
    assert contents(root) == before
    foreign.unlink()
    with MessageStore.open(root, Settings.dev()) as store:
        assert store.report.clean_exit is clean
        assert [message.body for message in store.get("orders", 0, 0).messages] == [b"one"]
