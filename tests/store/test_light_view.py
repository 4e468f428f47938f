"""Views of single files, without owning or recovering a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.format.queue_unit import PRE_BLANK, pack_unit, unpack_unit
from penstock.store.consume_queue import unit_pages
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.readonly import view as view_module
from penstock.store.readonly.view import FilesView, LogView, MapCache, QueueView, ShippedUnits

FILE_SIZE = 4096
UNITS = 5


def make_files(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        (folder / f"{number * FILE_SIZE:020d}").write_bytes(bytes([number + 1]) * FILE_SIZE)


def test_a_file_is_found_by_any_offset_within_it(tmp_path: Path) -> None:
    make_files(tmp_path, 0, 2)
    (tmp_path / "notes.txt").touch()
    view = FilesView(tmp_path, FILE_SIZE)
    assert view.offsets() == [0, 2 * FILE_SIZE]
    for offset in (2 * FILE_SIZE, 3 * FILE_SIZE - 1):
        found = view.find(offset)
        assert found is not None
        assert found.from_offset == 2 * FILE_SIZE
        assert found.readable == FILE_SIZE
    assert view.find(FILE_SIZE) is None
    assert view.find(3 * FILE_SIZE) is None
    view.close()


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    view = FilesView(tmp_path / "nothing", FILE_SIZE)
    assert view.offsets() == []
    assert view.find(0) is None


def test_a_file_that_comes_later_is_found_then(tmp_path: Path) -> None:
    view = FilesView(tmp_path, FILE_SIZE)
    assert view.find(0) is None
    make_files(tmp_path, 0)
    assert view.find(0) is not None
    view.close()


@pytest.mark.parametrize("size", [0, FILE_SIZE - 1, FILE_SIZE + 1])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / f"{0:020d}").write_bytes(b"x" * size)
    with pytest.raises(BadStore):
        FilesView(tmp_path, FILE_SIZE).find(0)


@pytest.mark.parametrize("size", [1, FILE_SIZE - 1, FILE_SIZE, FILE_SIZE + 1])
def test_an_audit_finds_a_file_of_any_size(tmp_path: Path, size: int) -> None:
    (tmp_path / f"{FILE_SIZE:020d}").write_bytes(b"x" * size)
    (tmp_path / f"{2 * FILE_SIZE:020d}").touch()
    view = FilesView(tmp_path, FILE_SIZE)
    found = view.find_any_size(2 * FILE_SIZE - 1)
    assert found is not None
    assert (found.from_offset, found.size) == (FILE_SIZE, size)
    assert view.find_any_size(0) is None
    assert view.find_any_size(2 * FILE_SIZE) is None, "an empty file"
    view.close()


def test_views_that_share_a_cache_share_its_limit(tmp_path: Path) -> None:
    make_files(tmp_path / "a", 0)
    make_files(tmp_path / "b", 0)
    with MapCache(OverlayFiles(), 1) as maps:
        a, b = (FilesView(tmp_path / name, FILE_SIZE, maps) for name in "ab")
        first = a.find(0)
        second = b.find(0)
        assert first is not None
        assert second is not None
        assert (first.available, second.available) == (False, True)
    assert not second.available


def test_a_file_that_is_deleted_stays_readable_while_it_is_mapped(tmp_path: Path) -> None:
    make_files(tmp_path, 0)
    view = FilesView(tmp_path, FILE_SIZE)
    assert view.find(0) is not None
    (tmp_path / f"{0:020d}").unlink()
    found = view.find(0)
    assert found is not None
    assert found.map.view[0] == 1
    assert view.offsets() == []
    view.close()
    assert view.find(0) is None


def test_only_the_files_that_were_used_last_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "_MAX_MAPPED", 2)
    make_files(tmp_path, 0, 1, 2)
    view = FilesView(tmp_path, FILE_SIZE)
    first, second = view.find(0), view.find(FILE_SIZE)
    assert view.find(0) is first
    view.find(2 * FILE_SIZE)
    assert second is not None
    assert first is not None
    assert not second.available, "the one that was not used for longest went"
    assert first.available
    assert view.find(FILE_SIZE) is not second
    view.close()


def test_what_is_stored_into_a_view_does_not_reach_the_disk(tmp_path: Path) -> None:
    make_files(tmp_path, 0)
    view = FilesView(tmp_path, FILE_SIZE)
    found = view.find(0)
    assert found is not None
    found.map.view[0] = 99
    assert (tmp_path / f"{0:020d}").read_bytes()[0] == 1
    view.close()


def test_the_next_file_of_a_log_begins_at_a_multiple_of_the_size(tmp_path: Path) -> None:
    log = LogView(tmp_path, FILE_SIZE, 0, 0)
    assert [log.roll_next(offset) for offset in (0, 1, FILE_SIZE - 1, FILE_SIZE)] == [FILE_SIZE] * 3 + [2 * FILE_SIZE]
    log.close()


# -- queues --------------------------------------------------------------------------------------------------------


def test_units_come_from_one_file_at_a_time_and_end_where_the_view_does(home: StoreHome) -> None:
    with home.open(mapped_file_size_consume_queue=20 * UNITS) as store:
        home.put_numbered(store, 12)
        queue = store.queues.find("T", 0)
        assert queue is not None
        expected = [queue.unit(number) for number in range(12)]
    folder = home.path / "consumequeue" / "T" / "0"
    view = QueueView(FilesView(folder, 20 * UNITS), "T", 0, 0, 11)

    def page(offset: int, most: int = 100) -> list[tuple[int, int, int]] | None:
        units = view.page(offset, most)
        return None if units is None else units.tolist()

    assert view.units_in_file == UNITS
    assert page(0) == expected[:5]
    assert page(3) == expected[3:5]
    assert page(6, 2) == expected[6:8]
    assert page(10) == expected[10:11], "what lies behind the end is not looked at"
    assert page(11) is None
    assert page(100) is None
    home.queue_files("T")[1].unlink()
    view.close()
    assert page(5) is None
    view.close()


def test_pages_of_units_are_full_also_where_a_queue_has_no_file(home: StoreHome) -> None:
    with home.open(mapped_file_size_consume_queue=20 * UNITS) as store:
        home.put_numbered(store, 12)
        queue = store.queues.find("T", 0)
        assert queue is not None
        expected = [queue.unit(number) for number in range(12)]
    home.queue_files("T")[1].unlink()
    view = QueueView(FilesView(home.path / "consumequeue" / "T" / "0", 20 * UNITS), "T", 0, 0, 11)
    pages = {first: units.tolist() for first, units in unit_pages(view, 1, 13)}
    blank = unpack_unit(PRE_BLANK)
    assert pages == {1: expected[1:5], 5: [blank] * 5, 10: [expected[10], blank, blank]}
    assert [first for first, _ in unit_pages(view, 1, 13, 3)] == [1, 4, 5, 8, 10]
    view.close()


def test_units_that_are_sent_along_are_read_like_those_of_a_file() -> None:
    units = [(100 * number, 100, number) for number in range(6)]
    view = ShippedUnits("T", 3, 40, b"".join(pack_unit(*unit) for unit in units))
    assert (view.topic, view.queue_id, view.min_offset, view.max_offset) == ("T", 3, 40, 46)
    for first, most in ((40, 100), (42, 2), (45, 1)):
        page = view.page(first, most)
        assert page is not None
        assert page.tolist() == units[first - 40 :][:most]
