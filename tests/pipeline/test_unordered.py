"""Reads with order=any: the same messages from the log or the queues, whichever is cheaper; and what is not read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pipeline import Rows, options_for, read, read_tasks, sent
from support.stores import RANDOM_T0, StoreHome

from penstock.errors import BadSettings, CorruptData
from penstock.format.sys_flag import TRANSACTION_PREPARED
from penstock.pipeline import scan_plan as plans
from penstock.pipeline.offset_ranges import ReadTask
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import plan_batch
from penstock.pipeline.source import schema_of
from penstock.pipeline.source_rows import RowShape
from penstock.pipeline.store_read_tasks import LogTask, QueueTask
from penstock.store import Message

COUNT = 400
SIZES = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 20 * 1000}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    """A closed store, one message a second: nine of ten are orders, the others payments, one was only prepared."""
    home = StoreHome(tmp_path / "store")
    with home.open(**SIZES) as store:
        for number in range(COUNT):
            home.clock.now = RANDOM_T0 + number * 1000
            topic = "orders" if number % 10 else "payments"
            tags = ("red", "green")[number % 2]
            assert store.put(Message(topic, b"%04d" % number, tags=tags, keys="k", queue_id=number % 4)).ok
        assert store.put(Message("orders", b"9999", tags="red", sys_flag=TRANSACTION_PREPARED)).ok
    yield home
    home.close_all()


def planned(home: StoreHome, **given: Any) -> list[ReadTask]:
    options = options_for(home.path, **{"order": "any", **given})
    return plan_batch(options, RowShape.of(options, schema_of(options).names))


def by_place(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"topic": "orders"},
        {"subscribe": "orders,payments"},
        {"subscribePattern": "o.*"},
        {"topic": "orders", "tags": "red"},
        {"topic": "orders", "startingTimestamp": RANDOM_T0 + 50_000, "endingTimestamp": RANDOM_T0 + 351_000},
        {"topic": "orders", "startingOffsets": "earliest", "endingOffsets": "latest", "minPartitions": 5},
    ],
    ids=str,
)
def test_topics_that_fill_the_log_are_read_from_it_and_the_messages_are_the_same(
    home: StoreHome, given: dict[str, Any], in_use: bool
) -> None:
    if in_use:
        home.open(**SIZES)
    tasks = planned(home, **given)
    assert all(isinstance(task, LogTask) for task in tasks)
    options = options_for(home.path, order="any", **given)
    expected = by_place(read(home.path, **given))
    assert by_place(read_tasks(options, tasks)) == expected
    assert len(expected) > 100


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "payments"},
        {"assign": '{"orders": [0, 1, 2, 3]}'},
        {"topic": "orders", "maxRecordsPerPartition": 50},
        {"topic": "orders", "startingOffsets": '{"orders": {"0": 1, "1": 0, "2": 1, "3": 0}}'},
        {"topic": "orders", "order": "queue"},
    ],
    ids=str,
)
def test_few_messages_and_parts_of_queues_are_read_from_the_queues(home: StoreHome, given: dict[str, Any]) -> None:
    tasks = planned(home, **given)
    assert all(isinstance(task, QueueTask) for task in tasks)
    options = options_for(home.path, **{"order": "any", **given})
    assert by_place(read_tasks(options, tasks)) == by_place(read(home.path, **{**given, "order": "queue"}))


def test_a_topic_that_was_created_again_is_read_from_its_queues(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        store.delete_topic("orders")
        for number in range(300):
            assert store.put(Message("orders", b"%04d" % number)).ok
    tasks = planned(home, topic="orders")
    assert all(isinstance(task, QueueTask) for task in tasks)
    assert len(read_tasks(options_for(home.path, topic="orders", order="any"), tasks)) == 300


def test_topics_must_be_named(home: StoreHome) -> None:
    with pytest.raises(BadSettings, match="no topics are given"):
        planned(home)


# -- damage and checksums ------------------------------------------------------------------------------------------


def damage_a_body(home: StoreHome) -> None:
    path = home.log_files()[0]
    home.flip(path, path.read_bytes().index(b"0123"))


def test_damage_has_no_row_and_is_told(home: StoreHome, caplog: pytest.LogCaptureFixture) -> None:
    damage_a_body(home)
    found = {bytes(row["body"]) for row in read(home.path, topic="orders", order="any")}
    assert len(found) == COUNT * 9 // 10 - 1
    assert "1 damaged messages or ranges of the log in this task" in caplog.text
    with pytest.raises(CorruptData, match="mode=FAILFAST ends the read"):
        read(home.path, topic="orders", order="any", mode="FAILFAST")


@pytest.mark.parametrize("order", ["queue", "any", "log"])
def test_the_checksum_of_a_body_is_checked_if_the_body_or_damage_is_asked_for(home: StoreHome, order: str) -> None:
    damage_a_body(home)

    def verified(columns: str, mode: str = "PERMISSIVE") -> bool:
        tasks = sent(planned(home, topic="orders", order=order, columns=columns, mode=mode))
        return {task.files.verify_crc for task in tasks} == {True}  # type: ignore[attr-defined]

    assert verified("body,tags")
    assert verified("queue_offset,_corrupt")
    assert verified("queue_offset", mode="FAILFAST")
    assert verified("queue_offset", mode="DROPMALFORMED")
    assert not verified("queue_offset,tags")
    options = options_for(home.path, topic="orders", order=order, columns="tags")
    rows = read_tasks(options, planned(home, topic="orders", order=order, columns="tags"))
    assert {row["tags"] for row in rows} == {"red", "green"}, "its tags are sound"


# -- large reads ---------------------------------------------------------------------------------------------------


def test_a_large_read_of_all_columns_names_the_options_once(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plans, "_LARGE_READ", 10_000)
    monkeypatch.setattr(plans, "_has_suggested", False)
    with caplog.at_level(logging.WARNING):
        for given in ({"columns": "body,tags"}, {"includeBody": False}, {"tags": "red"}):
            planned(home, topic="orders", **given)
        assert not caplog.messages
        planned(home, topic="orders", order="queue")
        planned(home, topic="orders", schema="kafka")
    (said,) = caplog.messages
    assert "the option columns" in said
    assert "penstock.spark.table" in said


def test_a_read_without_bodies_has_fewer_tasks(home: StoreHome) -> None:
    assert Options().max_bytes_per_partition is None
    few = plans.task_size_for(1 << 30, has_bodies=False)
    assert (1 << 30) // few == 4
    assert plans.task_size_for(1 << 40, has_bodies=False) == 512 << 20
    assert plans.task_size_for(1 << 40, 1 << 20, has_bodies=False) == 1 << 20, "a limit that is given counts"
