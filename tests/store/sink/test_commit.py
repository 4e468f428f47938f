"""Committing batches: whole, once, with topics that a broker finds."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from support.arrow import (
    QUERY,
    QUEUES,
    SETTINGS,
    assert_sound,
    bodies,
    commit_rows,
    make_store,
    query_batch,
    stored,
    whole,
)
from support.stores import build_all, is_one_sentence

from penstock.errors import BadMessage, BadStore, CorruptData, PenstockError, StoreFailed, StoreInUse
from penstock.format.config_tables import TopicConfig
from penstock.store import Dispatch, Message, MessageStore
from penstock.store.config_files import ConfigFiles
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.sink import pending_start
from penstock.store.sink.commit import ABANDONED_MS, CommitResult, SinkBatch, is_owned_by_others, stage
from penstock.store.sink.journal import Identity, WriterKind, remove_old_marks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def layout_of(path: Path) -> Layout:
    return Layout.of(path, SETTINGS)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*") if each.is_file())


def test_a_batch_is_stored_whole_and_in_order(path: Path) -> None:
    outcome = commit_rows(path, query_batch(0), 50)
    assert not outcome.already_stored
    assert outcome.end > outcome.start > 0
    assert bodies(path) == whole(0, 50)
    assert pending_start(Files(), layout_of(path)) is None
    assert_sound(path)


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_is_shown_a_batch_when_it_is_whole(tmp_path: Path, fails: bool) -> None:
    """The job runs all the time. What it built of a batch could not be rolled back."""
    path, external = tmp_path / "store", SETTINGS.with_changes(dispatch=Dispatch.EXTERNAL)
    make_store(path)
    with MessageStore.open(path, external) as store:
        start = store.log.max_offset
    shown, failed = set(), list[int]()

    def look(number: int) -> None:
        time.sleep(0.02)
        builder.build(builder.published)
        shown.add(builder.published)
        if fails and number == 3 and not failed:
            failed.append(number)
            raise OSError(errno.ENOSPC, "no space left")

    with Builder.open(path) as builder:
        if fails:
            with pytest.raises(StoreFailed):
                commit_rows(path, query_batch(0), 50, between=look, settings=external)
            assert shown == {start}
        end = commit_rows(path, query_batch(0), 50, between=look, settings=external).end
        assert shown == {start}
        assert commit_rows(path, query_batch(0), 50, settings=external).already_stored
        build_all(builder)
        assert builder.position == builder.published == end
    assert bodies(path) == whole(0, 50)


def test_all_rows_of_a_batch_are_born_at_one_time(path: Path) -> None:
    commit_rows(path, query_batch(0), 50)
    with MessageStore.open(path, SETTINGS, read_only=True) as store:
        born = {record.born_timestamp for record in stored(store) if record.body.startswith(b"batch")}
    assert len(born) == 1


def test_a_batch_that_comes_again_is_not_stored_again(path: Path) -> None:
    first = commit_rows(path, query_batch(0), 20)
    second = commit_rows(path, query_batch(1), 20)
    for number, before in ((1, second), (0, second), (1, second)):
        again = commit_rows(path, query_batch(number), 20)
        assert again.already_stored
        assert (again.start, again.end) == (before.start, before.end)
    assert first.end == second.start
    assert bodies(path) == whole(0, 20) + whole(1, 20)


def test_the_same_batch_of_another_query_is_another_batch(path: Path) -> None:
    commit_rows(path, query_batch(0), 10)
    other = Identity(WriterKind.QUERY, QUERY[:-1] + "2", 3)
    assert not commit_rows(path, other, 10).already_stored
    assert bodies(path) == whole(0, 10) + whole(3, 10)


def test_a_named_write_is_stored_once_whatever_its_rows(path: Path) -> None:
    name = Identity(WriterKind.WRITE, "the nightly results / 2026-04-01")
    assert not commit_rows(path, name, 10).already_stored
    assert commit_rows(path, name, 30).already_stored
    assert bodies(path) == whole(0, 10)


def test_an_empty_write_with_a_name_counts_and_an_empty_batch_leaves_nothing(path: Path) -> None:
    assert not commit_rows(path, Identity(WriterKind.WRITE, "nothing"), 0).already_stored
    assert commit_rows(path, Identity(WriterKind.WRITE, "nothing"), 10).already_stored
    commit_rows(path, query_batch(4), 0)
    assert not layout_of(path).sink_journal.exists()
    assert [name.split("-")[0] for name in names(layout_of(path).sink_marks)] == ["write"]
    assert not commit_rows(path, query_batch(4), 10).already_stored


def test_the_first_batch_makes_the_store(tmp_path: Path) -> None:
    commit_rows(tmp_path / "new" / "store", query_batch(0), 30)
    with MessageStore.open(tmp_path / "new" / "store", SETTINGS) as store:
        assert store.report.clean_exit
        assert store.max_offset("orders", 1) > 0


def test_new_topics_are_in_the_table_and_known_ones_stay_as_they_are(path: Path) -> None:
    config = ConfigFiles(Files(), layout_of(path).config).topics
    table = config.read().table
    table.topics["orders"] = TopicConfig(name="orders", read_queue_nums=16, write_queue_nums=8, order=True)
    config.write(table)
    commit_rows(path, query_batch(0), 30)
    found = ConfigFiles(Files(), layout_of(path).config).topics.read().table
    assert found.topics["orders"] == table.topics["orders"]
    assert (found.topics["results"].write_queue_nums, found.topics["results"].perm) == (QUEUES, 6)
    assert found.version.counter == 1


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({"write_queue_nums": 2}, "topic 'orders' has 2 queues; queue 3 does not exist"),
        ({"perm": 4}, "topic 'orders' is not writable; change its perm in config/topics.json"),
    ],
)
def test_a_topic_that_cannot_take_the_rows_refuses_the_batch(path: Path, known: dict[str, int], sentence: str) -> None:
    config = ConfigFiles(Files(), layout_of(path).config).topics
    table = config.read().table
    table.topics["orders"] = TopicConfig(name="orders", **known)
    config.write(table)
    with pytest.raises(BadMessage, match=sentence):
        commit_rows(path, query_batch(0), 30)
    assert bodies(path) == []


def test_what_was_staged_is_gone_after_a_commit(path: Path) -> None:
    files, layout = Files(), layout_of(path)
    stage(files, layout, f"{query_batch(0).key}-0", "1-0", b"a try that failed")
    stage(files, layout, f"{query_batch(0).key}-1", "1-0", b"a try that failed")
    stage(files, layout, "write-of-another-0", "1-0", b"on its way")
    stage(files, layout, "write-forgotten-0", "1-0", b"of a killed driver")
    old = files.modified_ms(layout.sink_staged) - ABANDONED_MS - 1000
    os.utime(layout.sink_staged / "write-forgotten-0", ns=(old * 10**6, old * 10**6))
    commit_rows(path, query_batch(1), 10)
    assert sorted(each.name for each in layout.sink_staged.iterdir()) == ["write-of-another-0"]


@pytest.mark.parametrize("harm", ["gone", "changed", "shorter"])
def test_staged_rows_that_are_not_what_was_staged_store_nothing(path: Path, harm: str) -> None:
    folder = layout_of(path).sink_staged / f"{query_batch(0).key}-0"

    def do_harm(number: int) -> None:
        for part in folder.iterdir() if number == 3 else ():
            if harm == "gone":
                part.unlink()
            else:
                part.write_bytes(b"30 30" if harm == "changed" else b"")

    with pytest.raises(CorruptData) as error:
        commit_rows(path, query_batch(0), 50, between=do_harm)
    assert is_one_sentence(str(error.value))
    assert pending_start(Files(), layout_of(path)) is None, "it is rolled back at once"
    assert not (path / "abort").exists(), "and the store is closed cleanly"
    assert bodies(path) == []
    assert_sound(path)


def test_fewer_rows_than_were_promised_store_nothing(path: Path) -> None:
    batch = SinkBatch(query_batch(0), rows=51, queues={"orders": 0}, new_topic_queues=1)
    with pytest.raises(CorruptData, match="staged rows are missing; expected 51, found 50"):
        commit_rows(path, query_batch(0), 50, batch=batch)
    assert bodies(path) == []


def test_rows_that_the_store_refuses_store_nothing(path: Path) -> None:
    small = SETTINGS.with_changes(max_message_size=100)
    with pytest.raises(PenstockError, match="maxMessageSize") as error:
        commit_rows(path, query_batch(0), 50, settings=small)
    assert is_one_sentence(str(error.value))
    assert bodies(path) == []


def test_a_store_in_use_is_refused_and_left_alone(path: Path) -> None:
    with MessageStore.open(path, SETTINGS) as store:
        assert is_owned_by_others(Files(), layout_of(path))
        with pytest.raises(StoreInUse):
            commit_rows(path, query_batch(0), 10)
        assert store.put(Message("orders", b"before: still there")).ok
    assert not is_owned_by_others(Files(), layout_of(path))


def test_a_commit_is_not_taken_for_a_broker(path: Path) -> None:
    seen: list[bool] = []
    commit_rows(
        path, query_batch(0), 10, between=lambda number: seen.append(is_owned_by_others(Files(), layout_of(path)))
    )
    assert seen == [False, False]


def write_by_name(path: Path, number: int) -> CommitResult:
    return commit_rows(path, Identity(WriterKind.WRITE, f"w{number}", number), 20)


def test_several_writers_take_turns(path: Path) -> None:
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        outcomes = list(pool.map(write_by_name, [path] * 4, range(4)))
    assert not any(outcome.already_stored for outcome in outcomes)
    found = bodies(path)
    assert sorted(found) == sorted(body for number in range(4) for body in whole(number, 20))
    order = list(dict.fromkeys(int(body.split()[1]) for body in found))
    assert found == [body for number in order for body in whole(number, 20)], "no batch is within another"


def test_the_oldest_marks_go_when_there_are_many(path: Path) -> None:
    layout = layout_of(path)
    for number in range(4):
        commit_rows(path, Identity(WriterKind.WRITE, f"w{number}"), 0)
        marks = [layout.sink_marks / f"{Identity(WriterKind.WRITE, f'w{each}').key}.json" for each in range(number + 1)]
        os.utime(marks[-1], ns=(number * 10**9, number * 10**9))
    commit_rows(path, query_batch(0), 10)
    remove_old_marks(Files(), layout, most=2)
    assert [mark.exists() for mark in marks] == [False, False, True, True]
    assert commit_rows(path, query_batch(0), 10).already_stored


def test_a_mark_that_cannot_be_read_stops_its_query_with_a_sentence(path: Path) -> None:
    commit_rows(path, query_batch(0), 10)
    (mark,) = layout_of(path).sink_marks.iterdir()
    mark.write_bytes(mark.read_bytes().replace(b'"rows": 10', b'"rows": 11'))
    with pytest.raises(BadStore, match=r"it is unknown whether batch 1 of query .* is stored already; remove the mark"):
        commit_rows(path, query_batch(1), 10)
    mark.unlink()
    assert not commit_rows(path, query_batch(1), 10).already_stored


def test_a_journal_that_cannot_be_read_is_kept_and_the_store_opens(path: Path) -> None:
    commit_rows(path, query_batch(0), 10)
    layout_of(path).sink_journal.write_bytes(b"{}")
    with MessageStore.open(path, SETTINGS) as store:
        assert "journal.json could not be read" in store.report.notes[0]
    assert [each.name for each in (path / "penstock" / "quarantine").rglob("*.json")] == ["journal.json"]
    assert commit_rows(path, query_batch(0), 10).already_stored
