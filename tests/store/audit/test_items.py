"""The items of an index file against the keys that the log gives it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.store.audit.files import ItemTable
from penstock.store.files.file_io import Files
from penstock.store.queue_units_and_keys import Keys

SMALL = IndexGeometry(slots=7, items=20)
COUNT = 10


def some_keys(count: int) -> Keys:
    numbers = np.arange(count, dtype=np.int64)
    return Keys((numbers * 7919).astype(np.int32), numbers * 100, 5_000 + numbers * 700)


def table_of(path: Path, keys: Keys, changed: int | None = None) -> ItemTable:
    """The table of a file with these keys, whose byte at `changed` is another one."""
    file = bytearray(SMALL.file_size)
    assert kernels.index_put(file, *SMALL, *keys) == len(keys.hashes)
    if changed is not None:
        file[changed] ^= 1
    path.write_bytes(file)
    return ItemTable(Files().open_map(path), SMALL, len(keys.hashes) + 1, in_order=True)


def test_items_match_the_keys_they_were_made_of(tmp_path: Path) -> None:
    keys = some_keys(COUNT)
    table = table_of(tmp_path / "index", keys)
    assert table.match(1, *keys)
    assert table.match(5, *(column[4:9] for column in keys))
    assert not table.match(2, *keys), "these are too few items"
    assert not table.match(2, *(column[:3] for column in keys))


@pytest.mark.parametrize("byte", [0, 3, 4, 11, 12, 15])
def test_an_item_with_another_hash_offset_or_time_does_not_match(tmp_path: Path, byte: int) -> None:
    keys = some_keys(COUNT)
    table = table_of(tmp_path / "index", keys, SMALL.item_position(4) + byte)
    assert not table.match(1, *keys)
    assert table.match(1, *(column[:3] for column in keys))


def test_the_time_of_the_first_item_does_not_count(tmp_path: Path) -> None:
    """It counts from the end of the previous file."""
    keys = some_keys(3)
    assert table_of(tmp_path / "index", keys, SMALL.item_position(1) + 15).match(1, *keys)


@pytest.mark.parametrize("time", [-(2**63), 0, 2**63 - 1])
def test_impossible_store_times_have_the_seconds_that_an_item_can_hold(tmp_path: Path, time: int) -> None:
    table = table_of(tmp_path / "index", some_keys(3))
    assert table.seconds(np.array([time], np.int64)).tolist() == [0 if time < 5_000 else 2**31 - 1]
