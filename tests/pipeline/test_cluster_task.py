"""What a worker reads from a real broker: every message of its ranges, once, to the field."""

from __future__ import annotations

import pickle
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from support.pipeline import ALL_COLUMNS, access_to, cluster_source, column_of, places, read_pages, send, table, whole

from penstock.client.config import Credentials
from penstock.client.message import Message
from penstock.errors import DataLost, Unreachable
from penstock.pipeline.cluster_read_tasks import ClusterAccess, ClusterTask
from penstock.pipeline.offset_ranges import OffsetRange, Queue
from penstock.store import MessageStore, Settings
from penstock.testing import LocalBroker, broker

Q = Queue("orders", "broker-a", 0)


def varied(count: int, seed: int) -> list[Message]:
    chance = random.Random(seed)
    return [
        Message(
            "orders",
            chance.randbytes(chance.choice([0, 1, 100, 3000])),
            tags=chance.choice(["paid", "void", ""]),
            keys=[f"k{number}", "käse"][: chance.randrange(3)],
            properties={"colour": "grün"} if chance.random() < 0.3 else {},
        )
        for number in range(count)
    ]


def test_a_read_equals_what_the_store_holds_to_the_field(b: LocalBroker) -> None:
    send(b, varied(3000, seed=1))
    source = cluster_source(b)
    try:
        (task,) = source.tasks([whole(source, "orders")])
        found = table(read_pages(task))
    finally:
        source.close()
    b.stop()
    with MessageStore.open(b.store_path, Settings.dev()) as store:
        batches = []
        for queue_id in range(4):
            at = 0
            while (page := store.get_arrow("orders", queue_id, at)).batch.num_rows:
                batches.append(page.batch)
                at = page.next_begin_offset
    assert found.num_rows == 3000
    assert found.equals(type(found).from_batches(batches))


def test_any_cut_of_the_queues_reads_each_message_once_and_in_order(b: LocalBroker) -> None:
    chance = random.Random(seed := 5)
    print("seed", seed)
    send(b, varied(2500, seed))
    source = cluster_source(b)
    try:
        spans = whole(source, "orders")
        pieces = []
        for span in spans:
            borders = sorted({span.start, span.stop, *(chance.randrange(span.stop + 1) for _ in range(4))})
            pieces += [OffsetRange(span.queue, start, stop) for start, stop in pairwise(borders)]
        tasks = source.tasks([pieces[start : start + 3] for start in range(0, len(pieces), 3)])
        found = [each for task in tasks for each in places(read_pages(task, ["topic", "queue_id", "queue_offset"]))]
    finally:
        source.close()
    assert found == [(span.queue, offset) for span in spans for offset in range(span.start, span.stop)]


def test_columns_come_as_they_are_asked_for(b: LocalBroker) -> None:
    send(b, varied(10, seed=2))
    assert read_pages(ClusterTask(access_to(b.namesrv), ())) == []
    source = cluster_source(b)
    try:
        (task,) = source.tasks([whole(source, "orders")])
        assert [page.batch.schema.names for page in task.pages(["queue_offset", "body"])] == [["queue_offset", "body"]]
    finally:
        source.close()


def test_pages_are_bounded_and_a_read_may_be_broken_off(b: LocalBroker) -> None:
    send(b, [Message("orders", b"x" * 8000) for _ in range(3000)])
    source = cluster_source(b)
    try:
        (task,) = source.tasks([whole(source, "orders")])
        sizes = [page.batch.nbytes for page in task.pages(["body"])]
        assert len(sizes) == 3
        assert max(sizes) < 10 << 20
        pages = task.pages(["body"])
        next(pages)
        pages.close()  # type: ignore[attr-defined]  # as Spark does when a limit is reached
    finally:
        source.close()


def test_tags_are_left_to_the_broker(b: LocalBroker) -> None:
    send(b, varied(2000, seed=3))
    source = cluster_source(b, tags="paid || unused")
    everything = cluster_source(b)
    try:
        found = read_pages(source.tasks([whole(source, "orders")])[0])
        wanted = read_pages(everything.tasks([whole(everything, "orders")])[0])
    finally:
        source.close()
        everything.close()
    assert set(column_of(found, "tags")) == {"paid"}
    assert not [flaw for page in found for flaw in page.flaws]
    tags = zip(places(wanted), column_of(wanted, "tags"), strict=True)
    assert places(found) == [where for where, tag in tags if tag == "paid"]


def test_a_task_travels_and_shows_no_secret() -> None:
    access = ClusterAccess("127.0.0.1:9876", "lake", Credentials("reader", "very-secret"))
    task = ClusterTask(access, (OffsetRange(Q, 3, 9),), "paid", False)
    assert pickle.loads(pickle.dumps(task)) == task
    assert "very-secret" not in repr(task)
    assert "reader" in repr(task)


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_a_damaged_message_is_a_flaw_and_the_others_are_read(b: LocalBroker) -> None:
    send(b, [Message("orders", b"<%03d>" % number) for number in range(200)])
    log = next((b.store_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        for body in (b"<017>", b"<018>", b"<150>"):
            file.seek(log.read_bytes().index(body))
            file.write(b"damage"[:5])
    source = cluster_source(b)
    try:
        spans = whole(source, "orders")
        pages = read_pages(source.tasks([spans])[0])
    finally:
        source.close()
    flaws = [(Queue(f.topic or "", "broker-a", f.queue_id or 0), f.queue_offset) for page in pages for f in page.flaws]
    assert len(flaws) == 3
    assert len(set(column_of(pages, "body"))) == 197
    assert sorted(places(pages) + flaws) == sorted(
        (span.queue, offset) for span in spans for offset in range(span.start, span.stop)
    )
    assert pages[0].flaws[0].what == f"the record of queue offset {pages[0].flaws[0].queue_offset} is missing"


def test_what_retention_has_deleted_is_an_error_unless_allowed(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 16}
    with broker({"orders": 1}, store_path=tmp_path / "store", settings=settings) as b:
        send(b, [Message("orders", b"x" * 400) for _ in range(500)])
        b.stop()
        first, *_ = sorted((tmp_path / "store" / "commitlog").iterdir())
        first.unlink()
        b.start()
        source = cluster_source(b)
        try:
            low, high = source.bounds(Q)
        finally:
            source.close()
        assert 0 < low < high == 500
        access = access_to(b.namesrv)
        with pytest.raises(DataLost, match=f"messages 0 to {low - 1} of topic orders queue 0 .*failOnDataLoss=false"):
            read_pages(ClusterTask(access, (OffsetRange(Q, 0, high),)))
        with pytest.raises(DataLost, match="messages 500 to 599 "):
            read_pages(ClusterTask(access, (OffsetRange(Q, low, 600),)))
        allowed = ClusterTask(access, (OffsetRange(Q, 0, 600),), fail_on_data_loss=False)
        assert column_of(read_pages(allowed), "queue_offset") == list(range(low, high))


def test_a_broker_that_restarts_in_the_middle_costs_nothing_but_time(b: LocalBroker) -> None:
    send(b, [Message("orders", b"x" * 8000) for _ in range(3000)])
    source = cluster_source(b)
    try:
        spans = whole(source, "orders")
    finally:
        source.close()
    pages = ClusterTask(access_to(b.namesrv), tuple(spans)).pages(ALL_COLUMNS)
    found = [next(pages)]
    b.stop()
    back = threading.Timer(0.5, b.start)
    back.start()
    try:
        found += pages
    finally:
        back.join()
    assert places(found) == [(span.queue, offset) for span in spans for offset in range(span.start, span.stop)]


def test_a_broker_that_stays_away_is_one_sentence(b: LocalBroker) -> None:
    send(b, [Message("orders", b"x" * 8000) for _ in range(3000)])
    source = cluster_source(b)
    try:
        spans = whole(source, "orders")
    finally:
        source.close()
    pages = ClusterTask(access_to(b.namesrv, patience_s=0.3), tuple(spans)).pages(ALL_COLUMNS)
    next(pages)
    b.stop()
    with pytest.raises(Unreachable, match=r"reading topic orders queue \d of broker broker-a from \d+;"):
        list(pages)
