"""A view of a store that another process is writing to is one moment of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.messages import make_log, make_record

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.store import Message, MessageStore, Settings
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.index import IndexFile
from penstock.store.recovery.index import freeze_index
from penstock.store.recovery.log import recheck_live_log

pytestmark = pytest.mark.usefixtures("kernels_name")

GEOMETRY = IndexGeometry(slots=4, items=50)
HASH = 6


# -- the index -----------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> IndexFile:
    """The index file as its owner has it."""
    return IndexFile(Files().create_map(tmp_path / "index", GEOMETRY.file_size), GEOMETRY)


def put(file: IndexFile, *offsets: int) -> None:
    """Puts records under one hash; the store time is the offset's number of seconds."""
    count = len(offsets)
    hashes = np.full(count, HASH, np.int32)
    assert file.put(hashes, np.array(offsets, np.int64), np.array(offsets, np.int64) * 1000) == count


def view_of(file: IndexFile) -> IndexFile:
    return IndexFile(OverlayFiles().open_map(file.path), GEOMETRY)


def found(file: IndexFile) -> list[int]:
    """Physical offsets under the hash, newest first."""
    offsets: list[int] = kernels.index_find(file.map.view, *GEOMETRY, HASH, 0, 2**62, 0, 100)[0].tolist()
    return offsets


def test_a_frozen_index_does_not_see_what_is_put_later(written: IndexFile) -> None:
    put(written, 1, 2, 3)
    view = view_of(written)
    freeze_index(view)
    put(written, 4, 5)
    assert found(view) == [3, 2, 1]
    assert view.count == 4
    assert found(written) == [5, 4, 3, 2, 1]


def test_a_frozen_index_can_be_completed_while_its_owner_goes_on(written: IndexFile) -> None:
    put(written, 1, 2, 3)
    view = view_of(written)
    freeze_index(view)
    put(written, 4, 5)
    put(view, 4, 5)
    assert found(view) == [5, 4, 3, 2, 1]


def test_items_that_the_header_does_not_count_yet_are_taken_out(written: IndexFile) -> None:
    put(written, 1, 2, 3)
    header = written.header
    put(written, 4, 5)
    written.set_header(header)
    view = view_of(written)
    freeze_index(view)
    assert found(view) == [3, 2, 1]
    assert view.header.end_physical_offset == 3


# -- the log -------------------------------------------------------------------------------------------------------


SIZE = 4096


def log_with(folder: Path, data: bytes | bytearray) -> MappedFileQueue:
    folder.mkdir(exist_ok=True)
    (folder / ("0" * 20)).write_bytes(bytes(data).ljust(SIZE, b"\0"))
    log = MappedFileQueue(OverlayFiles(), folder, SIZE)
    log.load()
    return log


def test_what_was_written_meanwhile_is_no_damage(tmp_path: Path) -> None:
    data = make_log([b"one", b"two", b"three"])
    first = len(make_record(0, b"one"))
    log = log_with(tmp_path, data)
    assert recheck_live_log(log, len(data), [DamagedRange(first, first, "UNWRITTEN")]) == (len(data), [])


def test_a_batch_that_is_not_published_yet_is_the_end_of_the_log(tmp_path: Path) -> None:
    data = make_log([b"one", b"two", b"three"])
    size = len(make_record(0, b"one"))
    data[size : size + 8] = bytes(8)
    log = log_with(tmp_path, data)
    assert recheck_live_log(log, len(data), [DamagedRange(size, size, "UNWRITTEN")]) == (size, [])


def test_a_hole_that_is_known_as_damage_is_no_batch_in_progress(tmp_path: Path) -> None:
    data = make_log([b"one", b"two", b"three"])
    size = len(make_record(0, b"one"))
    data[size : size + 8] = bytes(8)
    log, damage = log_with(tmp_path, data), [DamagedRange(size, size, "UNWRITTEN")]
    assert recheck_live_log(log, len(data), damage, damage) == (len(data), damage)
    elsewhere = [DamagedRange(0, size, "UNWRITTEN"), DamagedRange(2 * size, 5, "UNWRITTEN")]
    assert recheck_live_log(log, len(data), damage, elsewhere) == (size, [])


def test_damage_stays_damage(tmp_path: Path) -> None:
    data = make_log([b"one", b"two", b"three"])
    size = len(make_record(0, b"one"))
    data[size + 4] ^= 0xFF
    damage = [DamagedRange(size, size, "BAD_MAGIC")]
    assert recheck_live_log(log_with(tmp_path, data), len(data), damage) == (len(data), damage)


# -- the store -----------------------------------------------------------------------------------------------------


def test_a_view_does_not_change_when_its_owner_goes_on(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as owner:
        owner.put_many([Message("T", b"%d" % number, keys=("k",)) for number in range(10)])
        owner.catch_up()
        with MessageStore.open(tmp_path, Settings.dev(), read_only=True) as view:
            owner.put_many([Message("T", b"more", keys=("k",)) for _ in range(10)])
            owner.catch_up()
            assert view.max_offset("T", 0) == len(view.query("T", "k")) == 10
            assert len(view.get("T", 0, 0).messages) == 10
            assert view.report.notes == []


def test_a_view_says_nothing_of_bytes_that_are_on_their_way(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as owner:
        end = owner.put(Message("T", b"one")).end_offset
        with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as log:
            log.seek(end + 8)
            log.write(b"not published yet")
        with MessageStore.open(tmp_path, Settings.dev(), read_only=True) as view:
            assert (view.report.log_end, view.report.torn_bytes, view.report.notes) == (end, 0, [])
