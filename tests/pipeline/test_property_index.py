"""The files of a property index: small ones become large ones, and no property is lost or doubled on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="these tests need the extra `spark`")

import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.pipeline.jobs import property_index
from penstock.pipeline.jobs.property_index import MERGED_AT_ONCE, SCHEMA, index_files, merge_small_files


def write(folder: Path, start: int, stop: int) -> None:
    """A file with one property for each ten bytes of the log."""
    rows = [{"topic": "T", "physical_offset": at, "name": "colour", "value": "red"} for at in range(start, stop, 10)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    parquet.write_table(table, folder / f"{start:020d}-{stop:020d}.parquet")


def offsets(folder: Path) -> list[int]:
    return [at for path in index_files(folder) for at in parquet.read_table(path)["physical_offset"].to_pylist()]


def test_a_thousand_batches_are_a_few_files(tmp_path: Path) -> None:
    for number in range(1000):
        merge_small_files(tmp_path, number * 100)
        write(tmp_path, number * 100, number * 100 + 100)
        assert len(list(tmp_path.iterdir())) < 3 * MERGED_AT_ONCE
    assert offsets(tmp_path) == list(range(0, 100_000, 10))


def test_files_of_the_current_batch_stay(tmp_path: Path) -> None:
    for number in range(2 * MERGED_AT_ONCE):
        write(tmp_path, number * 100, number * 100 + 100)
    merge_small_files(tmp_path, MERGED_AT_ONCE * 100 - 100)
    assert len(index_files(tmp_path)) == 2 * MERGED_AT_ONCE
    merge_small_files(tmp_path, MERGED_AT_ONCE * 100)
    assert len(index_files(tmp_path)) == MERGED_AT_ONCE + 1


def test_what_a_killed_merge_leaves_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MERGED_AT_ONCE):
        write(tmp_path, number * 100, number * 100 + 100)
    monkeypatch.setattr(Path, "unlink", lambda path: None)  # killed before it has removed what it merged
    merge_small_files(tmp_path, 1 << 40)
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == MERGED_AT_ONCE + 1
    assert offsets(tmp_path) == list(range(0, MERGED_AT_ONCE * 100, 10))
    merge_small_files(tmp_path, 1 << 40)
    assert len(list(tmp_path.iterdir())) == 1
    assert offsets(tmp_path) == list(range(0, MERGED_AT_ONCE * 100, 10))


def test_a_gap_is_not_merged_over(tmp_path: Path) -> None:
    for number in range(2 * MERGED_AT_ONCE):
        if number != 5:
            write(tmp_path, number * 100, number * 100 + 100)
    merge_small_files(tmp_path, 1 << 40)
    assert len(index_files(tmp_path)) == 2 * MERGED_AT_ONCE - 1 - (MERGED_AT_ONCE - 1)
    assert property_index.index_files(tmp_path)[5].name.startswith(f"{600:020d}-")
