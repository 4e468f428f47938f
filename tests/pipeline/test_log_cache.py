"""Log files that stay mapped between tasks: what changes on disk in between is noticed all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import BadStore
from penstock.pipeline import store_read_tasks
from penstock.pipeline.store_read_tasks import CachedLog

SIZE = 4096


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Before and after each test."""
    for files in store_read_tasks._cache.values():
        files.close()
    store_read_tasks._cache.clear()
    yield
    for files in store_read_tasks._cache.values():
        files.close()
    store_read_tasks._cache.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With two files of a log, full of ones and twos."""
    for number in (0, 1):
        write(tmp_path, number, number + 1)
    return tmp_path


def write(folder: Path, number: int, content: int, size: int = SIZE) -> None:
    """A new file, also where there was one: what had the old one open keeps that."""
    path = folder / f"{number * SIZE:020d}"
    path.unlink(missing_ok=True)
    path.write_bytes(bytes([content]) * size)


def opened(folder: Path) -> CachedLog:
    return CachedLog(folder, SIZE, 0, 2 * SIZE)


def first_byte(log: CachedLog, number: int) -> int | None:
    file = log.queue.find(number * SIZE)
    return None if file is None else file.map.view[0]


def read(folder: Path) -> list[int | None]:
    """What a task finds in both files."""
    log = opened(folder)
    try:
        return [first_byte(log, number) for number in (0, 1)]
    finally:
        log.close()


def test_the_next_task_has_the_files_that_the_last_one_mapped(folder: Path) -> None:
    log = opened(folder)
    file = log.queue.find(0)
    log.close()
    after = opened(folder)
    assert after.queue.find(0) is file
    after.close()


def test_a_file_that_was_deleted_in_between_is_gone(folder: Path) -> None:
    assert read(folder) == [1, 2]
    (folder / f"{0:020d}").unlink()
    assert read(folder) == [None, 2]


def test_a_file_that_was_replaced_in_between_is_read_anew(folder: Path) -> None:
    assert read(folder) == [1, 2]
    write(folder, 1, 9)
    assert read(folder) == [1, 9]


def test_a_file_that_was_cut_in_between_is_refused_as_ever(folder: Path) -> None:
    assert read(folder) == [1, 2]
    os.truncate(folder / f"{0:020d}", 100)
    with pytest.raises(BadStore, match="another size"):
        read(folder)


def test_what_is_written_into_a_kept_file_is_seen(folder: Path) -> None:
    assert read(folder) == [1, 2]
    with (folder / f"{0:020d}").open("r+b") as file:
        file.write(b"\x07")
    assert read(folder) == [7, 2]


def test_two_tasks_at_the_same_time_have_a_view_each(folder: Path) -> None:
    one, other = opened(folder), opened(folder)
    assert one.queue is not other.queue
    assert first_byte(one, 0) == first_byte(other, 0) == 1
    one.close()
    assert first_byte(other, 1) == 2
    other.close()
    assert read(folder) == [1, 2]


def test_the_files_of_few_logs_are_kept(folder: Path) -> None:
    others = [folder / f"store-{number}" for number in range(3)]
    for other in others:
        other.mkdir()
        write(other, 0, 5)
    for place in (folder, *others):
        read(place)
    assert [place for place, _ in store_read_tasks._cache] == others[1:]
