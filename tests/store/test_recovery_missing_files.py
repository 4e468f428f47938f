"""Files of the log that are not there: in the middle they are replaced by zeros, at either end the log is shorter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.format.record import Record
from penstock.store import GetStatus, Message
from penstock.store.damage_and_quarantine import DamagedRange, read_damage
from penstock.store.files.file_io import Files

pytestmark = pytest.mark.usefixtures("kernels_name")

SIZE = 4096
SMALL = {
    "mapped_file_size_commit_log": SIZE,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}
CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])


@pytest.fixture
def records(home: StoreHome) -> list[Record]:
    """A store of a dozen log files, closed."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 450)
        found = home.read_queue(store, "T")
        assert len(store.log.queue.files) == 12
    return found


def without(records: list[Record], *files: int) -> list[Record]:
    return [record for record in records if record.physical_offset // SIZE not in files]


def missing(*files: int) -> list[DamagedRange]:
    return [DamagedRange(number * SIZE, SIZE, "MISSING") for number in files]


@CLEAN_OR_NOT
@pytest.mark.parametrize("gone", [(1,), (10,), (2, 3), (4, 6), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_a_log_file_that_vanished_from_the_middle_does_not_stop_consumption(
    home: StoreHome, records: list[Record], gone: tuple[int, ...], crashed: bool
) -> None:
    """rocketmq#2141: consumption was stuck until all files before the hole were deleted."""
    paths = [home.log_files()[number] for number in gone]
    for path in paths:
        path.unlink()
    if crashed:
        home.mark_crashed()
    for _ in range(3):
        with home.open(**SMALL) as store:
            assert home.read_queue(store, "T") == without(records, *gone)
            assert store.report.damage == missing(*gone)
            assert all(len(store.query("T", key)) == 1 for key in ("k0", "k449"))
            assert store.query("T", without(records)[gone[0] * 39 + 20].properties["KEYS"]) == []
            assert store.max_offset("T", 0) == 450
            assert any("RocketMQ would truncate the log here" in note for note in store.report.notes)
    for path in paths:
        assert path.stat().st_size == SIZE
    assert read_damage(Files(), home.path / "penstock" / "damaged.json") == missing(*gone)
    assert home.open(**SMALL).put(Message("T", b"next")).queue_offset == 450


@pytest.mark.rest
def test_the_file_that_takes_the_place_of_a_missing_one_takes_no_room(home: StoreHome, records: list[Record]) -> None:
    """On a disk only: in memory a file has room for each page that was read through a map."""
    path = home.log_files()[4]
    path.unlink()
    home.open(**SMALL).close()
    assert (path.stat().st_size, path.stat().st_blocks) == (SIZE, 0)


def test_the_first_start_names_the_file_that_is_missing(home: StoreHome, records: list[Record]) -> None:
    path = home.log_files()[4]
    path.unlink()
    with home.open(**SMALL) as store:
        assert f"{path}: the file is missing and was replaced by zeros" in store.report.notes
    assert not any("replaced by zeros" in note for note in home.open(**SMALL).report.notes)


def test_a_file_that_is_put_back_is_served_again(home: StoreHome, records: list[Record], tmp_path: Path) -> None:
    path = home.log_files()[4]
    path.rename(tmp_path / "copy")
    home.open(**SMALL).close()
    shutil.copyfile(tmp_path / "copy", path)
    store = home.open(**SMALL)
    assert (store.report.damage, store.report.repaired) == ([], missing(4))
    assert home.read_queue(store, "T") == records


@CLEAN_OR_NOT
def test_queues_and_index_are_built_around_a_file_that_is_missing(
    home: StoreHome, records: list[Record], crashed: bool
) -> None:
    home.log_files()[4].unlink()
    for folder in ("consumequeue", "index"):
        shutil.rmtree(home.path / folder)
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert home.read_queue(store, "T") == without(records, 4)
    assert store.max_offset("T", 0) == 450
    last = without(records, 4)[-1]
    assert [record.queue_offset for record in store.query("T", "k449")] == [last.queue_offset]


def test_more_missing_files_in_a_row_than_eight_are_refused_and_nothing_is_changed(
    home: StoreHome, records: list[Record]
) -> None:
    for path in home.log_files()[1:10]:
        path.unlink()
    before = home.listing()
    with pytest.raises(BadStore) as refused:
        home.open(**SMALL)
    sentence = str(refused.value)
    assert f"{home.path / 'commitlog' / f'{10 * SIZE:020d}'}: 9 files are missing before this one" in sentence
    assert "restore them from a copy, or move the older files elsewhere" in sentence
    assert home.listing() == before
    home.log_files()[0].rename(home.path / "elsewhere")
    assert home.read_queue(home.open(**SMALL), "T") == [r for r in records if r.physical_offset >= 10 * SIZE]


def test_a_view_shows_a_missing_file_as_damage_and_makes_none(home: StoreHome, records: list[Record]) -> None:
    home.log_files()[4].unlink()
    before = home.listing()
    with home.open(read_only=True, **SMALL) as view:
        assert view.report.damage == missing(4)
        assert home.read_queue(view, "T") == without(records, 4)
    assert home.listing() == before


@CLEAN_OR_NOT
def test_files_missing_at_the_beginning_were_deleted_for_their_age(
    home: StoreHome, records: list[Record], crashed: bool
) -> None:
    for path in home.log_files()[:3]:
        path.unlink()
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert store.report.damage == []
    assert home.read_queue(store, "T") == without(records, 0, 1, 2)
    assert store.min_offset("T", 0) == without(records, 0, 1, 2)[0].queue_offset


@CLEAN_OR_NOT
def test_a_log_that_lost_its_last_file_says_how_much_is_not_there_any_more(
    home: StoreHome, records: list[Record], crashed: bool
) -> None:
    home.log_files()[-1].unlink()
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    left = without(records, 11)
    assert home.read_queue(store, "T") == left
    assert store.report.units_cut == len(records) - len(left)
    end = records[-1].physical_offset + records[-1].size
    assert any(f"{end - 11 * SIZE} bytes are missing" in note for note in store.report.notes)
    assert store.put(Message("T", b"next")).queue_offset == len(left)
    assert store.query("T", "k449") == []


@CLEAN_OR_NOT
def test_a_hole_in_front_of_files_that_hold_nothing_is_the_end_of_the_log(
    home: StoreHome, records: list[Record], crashed: bool
) -> None:
    """Files made ahead, of which one is gone: nothing is missing."""
    names = [path.name for path in home.log_files()]
    (home.path / "commitlog" / f"{14 * SIZE:020d}").write_bytes(bytes(SIZE))
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert (store.report.damage, store.report.notes) == ([], [])
    assert [path.name for path in home.log_files()] == names
    assert home.read_queue(store, "T") == records


def test_without_any_log_queues_and_index_are_kept_aside(home: StoreHome, records: list[Record]) -> None:
    shutil.rmtree(home.path / "commitlog")
    store = home.open(**SMALL)
    assert store.topics() == []
    folders = {path.relative_to(home.path / "penstock" / "quarantine").parts[1] for path in home.kept()}
    assert folders == {"consumequeue", "index"}
    assert store.get("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.put(Message("T", b"new")).physical_offset == 0
