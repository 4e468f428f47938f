"""A reader of a store to which a batch is being appended sees all of it or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arrow import SETTINGS, bodies, commit_rows, make_store, query_batch, stored, whole

from penstock.store import MessageStore
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.sink import pending_start, whole_batches
from penstock.store.sink.journal import (
    MAX_SPANS,
    BatchMark,
    BatchSpan,
    Intent,
    Journal,
    read_journal,
    write_journal,
    write_mark,
)
from penstock.store.sink.recovery import drop_batches_beyond, resolve_pending_batch

FILE_SIZE = SETTINGS.mapped_file_size_commit_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def layout(path: Path) -> Layout:
    return Layout.of(path, SETTINGS)


def test_a_view_during_the_append_ends_where_the_batch_begins(path: Path, layout: Layout) -> None:
    commit_rows(path, query_batch(0), 15)
    seen: list[int] = []

    def look(put: int) -> None:
        with MessageStore.open(path, SETTINGS, read_only=True) as view:
            start = pending_start(Files(), layout)
            assert view.log.max_offset == start
            assert view.report.notes == []
            found = [record for record in stored(view) if record.body.startswith(b"batch")]
            assert sorted(record.body for record in found) == sorted(whole(0, 15))
        seen.append(put)

    commit_rows(path, query_batch(1), 40, between=look)
    assert seen == [0, 1, 2, 3, 4]
    assert bodies(path, read_only=True) == whole(0, 15) + whole(1, 40)


def test_positions_within_a_batch_are_taken_back_to_its_start(path: Path, layout: Layout) -> None:
    files = Files()
    assert whole_batches(files, layout, 777) == 777
    assert pending_start(files, layout) is None
    pending = Intent(query_batch(3), 300, 5, 10)
    write_journal(files, layout, Journal(pending, (BatchSpan(100, 200), BatchSpan(200, 250))))
    ends = {50: 50, 100: 100, 101: 100, 199: 100, 200: 200, 249: 200, 250: 250, 299: 299, 300: 300, 301: 300, 9999: 300}
    assert {end: whole_batches(files, layout, end) for end in ends} == ends
    assert pending_start(files, layout) == 300
    write_mark(files, layout, BatchMark(query_batch(3), 300, 400, 10))
    assert pending_start(files, layout) is None
    marked = {**ends, 301: 300, 399: 300, 400: 400, 9999: 9999}
    assert {end: whole_batches(files, layout, end) for end in marked} == marked
    assert resolve_pending_batch(files, layout, FILE_SIZE) == ""
    journal = read_journal(files, layout)
    assert journal == Journal(None, (BatchSpan(100, 200), BatchSpan(200, 250), BatchSpan(300, 400)))
    assert {end: whole_batches(files, layout, end) for end in marked} == marked


def test_the_journal_keeps_the_places_of_the_last_batches_only() -> None:
    journal = Journal()
    for number in range(MAX_SPANS + 5):
        journal = Journal(Intent(query_batch(number), number * 10, 0, 1), journal.spans).committed(number * 10 + 10)
    assert len(journal.spans) == MAX_SPANS
    assert journal.spans[0].start == 50


def test_places_behind_the_end_of_a_log_that_was_lost_are_forgotten(path: Path, layout: Layout) -> None:
    write_journal(Files(), layout, Journal(None, (BatchSpan(100, 200), BatchSpan(10**6, 10**6 + 1))))
    MessageStore.open(path, SETTINGS).close()
    assert read_journal(Files(), layout) == Journal(None, (BatchSpan(100, 200),))
    drop_batches_beyond(Files(), layout, 150)
    assert read_journal(Files(), layout) == Journal()


def test_a_store_without_batches_gets_no_journal(path: Path, layout: Layout) -> None:
    MessageStore.open(path, SETTINGS).close()
    assert not layout.sink.exists()
