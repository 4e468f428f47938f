"""Tasks over files with damage, over files that are gone, and their sentences."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.damage import LOG_SIZE as SOUND_LOG_SIZE
from support.damage import SETTINGS, SoundStore
from support.pipeline import CORRUPT, Rows, options_for, read, read_tasks, sent
from support.stores import RANDOM_LOG_SIZE, RANDOM_UNITS_PER_FILE, StoreHome, is_one_sentence

from penstock.errors import BadStore, CorruptData, DataLost
from penstock.pipeline.scan_plan import plan_batch
from penstock.store import Message, MessageStore

PLACE = ("topic", "queue_id", "queue_offset", "physical_offset", "body", CORRUPT)
COUNT = 200
SIZES = {"mapped_file_size_commit_log": RANDOM_LOG_SIZE, "mapped_file_size_consume_queue": 20 * RANDOM_UNITS_PER_FILE}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    """A closed store of several log files with 200 numbered messages in one queue."""
    home = StoreHome(tmp_path / "store")
    with home.open(**SIZES) as store:
        home.put_numbered(store, COUNT)
    yield home
    home.close_all()


def numbers(rows: Rows) -> list[int]:
    return [int(row["body"]) for row in rows]


@contextmanager
def refused(kind: type[Exception]) -> Iterator[list[str]]:
    """Takes down the sentence."""
    said: list[str] = []
    with pytest.raises(kind) as caught:
        yield said
    said.append(str(caught.value))
    assert is_one_sentence(said[0])


# -- damage --------------------------------------------------------------------------------------------------------


class Damaged:
    """A store of which one message has another body than its checksum says."""

    number = 70

    def __init__(self, home: StoreHome) -> None:
        self.path = home.path
        with home.open(read_only=True, **SIZES) as store:
            record = store.get("T", 0, self.number).messages[0]
        self.offset, self.size = record.physical_offset, record.size
        path = home.path / "commitlog" / f"{record.physical_offset // RANDOM_LOG_SIZE * RANDOM_LOG_SIZE:020d}"
        at = path.read_bytes().index(record.body, record.physical_offset % RANDOM_LOG_SIZE)
        home.flip(path, at)
        self.others = [number for number in range(COUNT) if number != self.number]

    def read(self, **given: Any) -> Rows:
        return read(self.path, PLACE, **given)


@pytest.fixture
def damaged(home: StoreHome) -> Damaged:
    return Damaged(home)


BY_QUEUE, BY_LOG = {"topic": "T"}, {"order": "log"}


@pytest.mark.parametrize("split", [{}, {"minPartitions": 7}, {"minPartitions": 500}], ids=str)
@pytest.mark.parametrize("by", [BY_QUEUE, BY_LOG], ids=str)
def test_a_damaged_message_is_a_row_in_its_place(damaged: Damaged, by: dict[str, str], split: dict[str, int]) -> None:
    rows = damaged.read(**by, **split)
    assert [row["body"] for row in rows] == [b"%04d" % n if n != damaged.number else None for n in range(COUNT)]
    corrupt = [row for row in rows if row[CORRUPT] is not None]
    assert len(corrupt) == 1
    if by == BY_QUEUE:
        place = {"topic": "T", "queue_id": 0, "queue_offset": 70, "physical_offset": None}
        what = "the record of queue offset 70 is damaged"
    else:
        place = {"topic": None, "queue_id": None, "queue_offset": None, "physical_offset": damaged.offset}
        what = f"{damaged.size} bytes at {damaged.offset} of the log hold no valid record"
    assert corrupt == [{**place, "body": None, CORRUPT: what}]


@pytest.mark.parametrize("by", [BY_QUEUE, BY_LOG], ids=str)
def test_a_damaged_message_may_be_left_out(damaged: Damaged, by: dict[str, str]) -> None:
    rows = damaged.read(mode="DROPMALFORMED", minPartitions=7, **by)
    assert numbers(rows) == damaged.others
    assert {row[CORRUPT] for row in rows} == {None}


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (BY_QUEUE, "store: topic T queue 0: the record of queue offset 70 is damaged; mode=FAILFAST ends the read"),
        (BY_LOG, "of the log hold no valid record; mode=FAILFAST ends the read"),
    ],
    ids=str,
)
def test_a_damaged_message_may_end_the_read(damaged: Damaged, by: dict[str, str], sentence: str) -> None:
    with refused(CorruptData) as said:
        damaged.read(mode="FAILFAST", **by)
    assert sentence in said[0]


def test_rows_that_are_chosen_by_what_they_hold_leave_damage_out(damaged: Damaged) -> None:
    assert damaged.read(tags="x", **BY_QUEUE) == []
    assert numbers(damaged.read(subscribePattern="T", order="log")) == damaged.others


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> SoundStore:
    return SoundStore.make(tmp_path_factory.mktemp("sound") / "store")


@hypothesis_settings(max_examples=10)
@given(
    holes=st.lists(
        st.tuples(st.integers(0, 3 * SOUND_LOG_SIZE), st.integers(1, 900), st.sampled_from((0, 0xFF))), max_size=4
    ),
    split=st.integers(2, 60),
)
@example(holes=[(0, 233, 0xFF), (2001, 21, 0xFF)], split=48)
@example(holes=[(SOUND_LOG_SIZE - 100, 100, 0), (SOUND_LOG_SIZE, 300, 0xFF)], split=40)
def test_whatever_is_damaged_a_log_in_pieces_is_the_log_in_one(
    sound: SoundStore, tmp_path_factory: pytest.TempPathFactory, holes: list[tuple[int, int, int]], split: int
) -> None:
    store = SoundStore(tmp_path_factory.mktemp("holed") / "store")
    shutil.copytree(sound.folder, store.folder)
    for offset, size, byte in holes:
        size = min(size, SOUND_LOG_SIZE - offset % SOUND_LOG_SIZE)
        if store.log_path(offset).exists():
            store.write_log(offset, bytes([byte]) * size)
    whole = read(store.folder, PLACE, order="log")
    assert read(store.folder, PLACE, order="log", minPartitions=split) == whole
    places = [row["physical_offset"] for row in whole]
    assert places == sorted(set(places))
    with MessageStore.open(store.folder, SETTINGS, read_only=True) as view:
        expected = log_places(view)
    assert [row["physical_offset"] for row in whole if row[CORRUPT] is None] == expected
    shutil.rmtree(store.folder)


def log_places(store: MessageStore) -> list[int]:
    """Where the records of a log begin. A damaged one may have times that Python cannot express."""
    found: list[int] = []
    offset = max(store.log.min_offset, 0)
    while offset < store.log.confirmed_offset:
        page = store.log_arrow(offset, columns=["physical_offset"])
        found += page.batch.column("physical_offset").to_pylist()
        offset = page.next_offset
    return found


def test_a_log_file_that_is_missing_in_the_middle_is_told_once(home: StoreHome) -> None:
    first, second, third, *_ = home.log_files()
    names = ("physical_offset", "queue_offset", CORRUPT)
    before = read(home.path, names, order="log")
    second.unlink()
    for split in ({}, {"minPartitions": 9}, {"minPartitions": 300}):
        rows = read(home.path, names, order="log", **split)
        corrupt = [row for row in rows if row[CORRUPT]]
        assert [(row["physical_offset"], row[CORRUPT]) for row in corrupt] == [
            (
                RANDOM_LOG_SIZE,
                f"the file with bytes {RANDOM_LOG_SIZE} to {2 * RANDOM_LOG_SIZE - 1} of the log is missing",
            )
        ]
        kept = [row for row in before if not RANDOM_LOG_SIZE <= row["physical_offset"] < 2 * RANDOM_LOG_SIZE]
        assert [row for row in rows if not row[CORRUPT]] == kept
        places = [row["physical_offset"] for row in rows]
        assert places == sorted(places)
    lost = [row["queue_offset"] for row in before if RANDOM_LOG_SIZE <= row["physical_offset"] < 2 * RANDOM_LOG_SIZE]
    rows = read(home.path, PLACE, topic="T")
    assert [row["queue_offset"] for row in rows if not row[CORRUPT]] == [n for n in range(COUNT) if n not in lost]
    with refused(CorruptData) as said:
        read(home.path, order="log", mode="FAILFAST")
    assert "is missing; mode=FAILFAST" in said[0]
    assert first.exists()
    assert third.exists()


def test_a_task_tells_in_one_line_how_many_messages_are_damaged(
    damaged: Damaged, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.read(**BY_QUEUE)
    said = [record.message for record in caplog.records if "damaged" in record.message]
    assert len(said) == 1
    assert said[0].startswith("rocketmq: 1 damaged messages or ranges of the log in this task (mode=PERMISSIVE)")
    assert said[0].endswith("store: topic T queue 0: the record of queue offset 70 is damaged")


# -- what a host does not see --------------------------------------------------------------------------------------


def _hide_log(home: StoreHome) -> str:
    (home.path / "commitlog").rename(home.path / "elsewhere")
    return "does not see the log's files"


def _empty_log(home: StoreHome) -> str:
    for path in home.log_files():
        path.unlink()
    return "does not see the log's files"


def _hide_store(home: StoreHome) -> str:
    home.path.rename(home.path.with_name("elsewhere"))
    return "does not see the log's files"


def _hide_one_file(home: StoreHome) -> str:
    hidden = home.log_files()[1]
    hidden.unlink()
    return f"does not see the log's file {hidden.name}"


def _hide_last_file(home: StoreHome) -> str:
    hidden = home.log_files()[-1]
    hidden.unlink()
    return f"does not see the log's file {hidden.name}"


def _put_another_store(home: StoreHome) -> str:
    home.path.rename(home.path.with_name("elsewhere"))
    home.clock.now += 1000
    with home.open(**SIZES) as other:
        home.put_numbered(other, COUNT)
    return "sees another store"


@pytest.mark.parametrize(
    "change", [_hide_log, _empty_log, _hide_store, _hide_one_file, _hide_last_file, _put_another_store]
)
@pytest.mark.parametrize("by", [BY_QUEUE, BY_LOG, {**BY_QUEUE, "keys": "k7"}], ids=str)
@pytest.mark.parametrize("fail", [True, False])
def test_a_host_that_does_not_see_what_the_driver_saw_is_an_error_with_its_name(
    home: StoreHome, change: Callable[[StoreHome], str], by: dict[str, str], fail: bool
) -> None:
    options = options_for(home.path, failOnDataLoss=fail, **by)
    tasks = plan_batch(options)
    what = change(home)
    with pytest.raises(BadStore) as caught:
        read_tasks(options, tasks)
    assert f"the host {socket.gethostname()} {what}" in str(caught.value)
    assert str(home.path / "commitlog") in str(caught.value)
    assert "retention" not in str(caught.value)


@pytest.mark.parametrize("fail", [True, False])
def test_a_host_that_does_not_see_a_queue_is_an_error_with_its_name(home: StoreHome, fail: bool) -> None:
    options = options_for(home.path, failOnDataLoss=fail, topic="T")
    tasks = plan_batch(options)
    shutil.rmtree(home.path / "consumequeue")
    with pytest.raises(BadStore, match=f"the host {socket.gethostname()} does not see the queue's files"):
        read_tasks(options, tasks)


def test_a_topic_created_again_between_plan_and_read_is_a_loss_that_says_so(home: StoreHome) -> None:
    options = options_for(home.path, topic="T")
    tasks = plan_batch(options)
    with home.open(**SIZES) as store:
        store.delete_topic("T")
        home.put_numbered(store, COUNT + 5)
    with refused(DataLost) as said:
        read_tasks(options, tasks)
    assert "are gone, the topic was deleted and created again since the read was planned" in said[0]


# -- what is gone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [{}, {"minPartitions": 30}], ids=str)
def test_messages_deleted_between_plan_and_read_are_a_loss(home: StoreHome, split: dict[str, int]) -> None:
    options = options_for(home.path, topic="T", **split)
    tasks = plan_batch(options)
    with home.open(read_only=True, **SIZES) as view:
        kept = [r.queue_offset for r in home.read_queue(view, "T") if r.physical_offset >= 2 * RANDOM_LOG_SIZE]
    for path in home.log_files()[:2]:
        path.unlink()
    with refused(DataLost) as said:
        read_tasks(options, tasks)
    assert said[0].startswith("messages 0 to ")
    assert "of topic T queue 0 (broker store) are gone, most likely deleted by retention" in said[0]
    assert said[0].endswith("set failOnDataLoss=false to continue without them")
    options = options_for(home.path, topic="T", failOnDataLoss=False, startingOffsets='{"T": {"0": 0}}', **split)
    assert numbers(read_tasks(options, plan_batch(options))) == kept
    with refused(DataLost) as said:
        read(home.path, topic="T", startingOffsets='{"T": {"0": 0}}')
    assert f"topic T queue 0 (broker store): messages 0 to {kept[0] - 1} are gone" in said[0]


def test_going_on_goes_on_with_what_is_left(home: StoreHome) -> None:
    for by in (BY_QUEUE, BY_LOG, {**BY_LOG, "minPartitions": 50}):
        options = options_for(home.path, failOnDataLoss=False, **by)
        tasks = plan_batch(options)
        first = home.log_files()[0]
        first.unlink()
        rows = read_tasks(options, tasks, PLACE)
        assert not any(row[CORRUPT] for row in rows)
        assert all(row["physical_offset"] >= int(first.name) + RANDOM_LOG_SIZE for row in rows)
        assert numbers(rows) == list(range(COUNT))[-len(rows) :]
        assert len(rows) > 50


@pytest.mark.parametrize("split", [{}, {"minPartitions": 30}], ids=str)
def test_bytes_of_the_log_deleted_between_plan_and_read_are_a_loss(home: StoreHome, split: dict[str, int]) -> None:
    options = options_for(home.path, order="log", **split)
    tasks = plan_batch(options)
    home.log_files()[0].unlink()
    with refused(DataLost) as said:
        read_tasks(options, tasks)
    assert said[0].startswith("bytes 0 to ")
    assert "of the log of store are gone, most likely deleted by retention" in said[0]


@pytest.mark.parametrize("by", [BY_QUEUE, BY_LOG], ids=str)
def test_files_deleted_while_a_task_reads_are_a_loss_and_no_damage(home: StoreHome, by: dict[str, str]) -> None:
    """What a task has mapped stays readable; the files behind it are gone with it."""
    options = options_for(home.path, **by)
    (task,) = sent(plan_batch(options))
    pages = task.pages(["body", "physical_offset"])
    assert next(pages).batch.num_rows
    for path in home.log_files()[:3]:
        path.unlink()
    with refused(DataLost) as said:
        assert all(not page.flaws for page in pages)
    assert "failOnDataLoss=false" in said[0]


def test_queue_files_deleted_between_plan_and_read_are_a_loss(home: StoreHome) -> None:
    options = options_for(home.path, topic="T")
    tasks = plan_batch(options)
    home.queue_files("T")[0].unlink()
    with refused(DataLost) as said:
        read_tasks(options, tasks)
    assert said[0].startswith(f"messages 0 to {RANDOM_UNITS_PER_FILE - 1} of topic T queue 0 (broker store) are gone")


def test_an_end_behind_the_last_message_is_a_loss(home: StoreHome) -> None:
    beyond = {"topic": "T", "startingOffsets": '{"T": {"0": 190}}', "endingOffsets": '{"T": {"0": 250}}'}
    with refused(DataLost) as said:
        read(home.path, **beyond)
    assert "messages 200 to 249 are gone (truncated, or this is a different store; 0 to 199 are" in said[0]
    assert numbers(read(home.path, failOnDataLoss=False, **beyond)) == list(range(190, 200))


def test_large_messages_come_in_small_pages(tmp_path: Path) -> None:
    home = StoreHome(tmp_path / "store")
    with home.open(max_message_size=4 << 20, mapped_file_size_commit_log=32 << 20) as store:
        for number in range(8):
            assert store.put(Message("T", bytes([number]) * (3 << 20))).ok
    for by in (BY_QUEUE, BY_LOG):
        options = options_for(home.path, **by)
        pages = [page for task in sent(plan_batch(options)) for page in task.pages(["body"])]
        assert [page.batch.num_rows for page in pages] == [2] * 4
        assert [body[:1] for page in pages for body in page.batch.column("body").to_pylist()] == [
            bytes([number]) for number in range(8)
        ]
