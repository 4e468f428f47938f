"""Java's broker as a place to read from: what the Spark source sees there, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.peers import JavaServed, make_orders, until_stored
from support.pipeline import access_to, column_of, places, read_pages, whole

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer
from penstock.errors import DataLost
from penstock.pipeline.cluster_read_tasks import ClusterTask
from penstock.pipeline.cluster_source import ClusterSource
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.lag import lag
from penstock.pipeline.offset_ranges import OffsetRange, Queue
from penstock.pipeline.options import Options
from penstock.pipeline.source_rows import inflate_bodies

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

SETTINGS = {"brokerClusterName": "DefaultCluster", "mappedFileSizeCommitLog": 10 << 20}
COUNT = 2000
LARGE = b"large " * 1000
"""Which the producer compresses."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, java_broker_jars: list[Path]) -> Iterator[JavaServed]:
    """A broker of Java's with COUNT messages in the topic `orders`."""
    folder = tmp_path_factory.mktemp("java")
    with JavaServed(folder / "home", folder / "store", java_broker_jars, dict(SETTINGS)) as served:
        with Admin(served.namesrv) as admin, Producer("PID", served.namesrv) as producer:
            make_orders(admin, producer)
            for first in range(0, COUNT - 100, 50):
                messages = [Message("orders", b"%d" % number, tags="paid") for number in range(first, first + 50)]
                producer.send_batch(messages)
            for number in range(100):
                producer.send(Message("orders", LARGE, tags="large", keys=f"k{number}"))
            until_stored(admin, COUNT)
        yield served


@pytest.fixture
def source(theirs: JavaServed) -> Iterator[ClusterSource]:
    opened = ClusterSource(Options.read({"namesrv": theirs.namesrv}))
    yield opened
    opened.close()


def test_all_messages_of_javas_broker_are_read_once_and_in_order(source: ClusterSource) -> None:
    assert "orders" in source.topics()
    assert not {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} & set(source.topics())
    spans = whole(source, "orders")
    halves = [
        OffsetRange(span.queue, *border)
        for span in spans
        for border in pairwise((span.start, (span.start + span.stop) // 2, span.stop))
    ]
    pages = [page for task in source.tasks([halves[:5], halves[5:]]) for page in read_pages(task)]
    assert places(pages) == [(span.queue, offset) for span in spans for offset in range(span.start, span.stop)]
    assert not [flaw for page in pages for flaw in page.flaws]
    unpacked = [
        body
        for page in pages
        for piece in inflate_bodies(page.batch, page.batch.column("sys_flag"))
        for body in piece.batch.column("body").to_pylist()
    ]
    assert sorted(unpacked) == sorted([b"%d" % number for number in range(COUNT - 100)] + [LARGE] * 100)
    assert sorted(key for keys in column_of(pages, "keys") for key in keys) == sorted(
        f"k{number}" for number in range(100)
    )  # type: ignore[attr-defined]


def test_javas_broker_compares_tags(theirs: JavaServed, source: ClusterSource) -> None:
    pages = read_pages(
        ClusterTask(access_to(theirs.namesrv), tuple(whole(source, "orders")), "large"), ["body", "tags"]
    )
    assert column_of(pages, "tags") == ["large"] * 100


def test_javas_broker_knows_about_times_and_the_exact_one_is_found(source: ClusterSource) -> None:
    for span in whole(source, "orders"):
        (task,) = source.tasks([[span]])
        moments = [round(moment.timestamp() * 1000) for moment in column_of(read_pages(task), "store_timestamp")]  # type: ignore[attr-defined]
        some = sorted(set(moments))
        for moment in {*some[:: max(1, len(some) // 10)], some[0] - 1, some[-1] + 1}:
            first = next((number for number, each in enumerate(moments) if each >= moment), len(moments))
            assert source.offset_at(span.queue, moment) == first


def test_a_groups_progress_is_kept_at_javas_broker(source: ClusterSource) -> None:
    queues = source.queues(["orders"])
    assert source.group_offset("lake", queues[0]) is None
    for number in range(30):  # Java's broker loses one of two first commits that come at once
        group = f"lake-{number}"
        source.commit_group(group, {queue: 7 + queue.queue_id for queue in queues})
        assert [source.group_offset(group, queue) for queue in queues] == [7, 8, 9, 10]


def test_a_size_and_a_loss_at_javas_broker(theirs: JavaServed, source: ClusterSource) -> None:
    queue = Queue("orders", "broker-a", 0)
    low, high = source.bounds(queue)
    assert 128 * 10 <= source.size(queue, low, low + 10) <= 8192 * 10
    with pytest.raises(DataLost, match=f"messages {high} to {high + 9} of topic orders queue 0 "):
        read_pages(ClusterTask(access_to(theirs.namesrv), (OffsetRange(queue, low, high + 10),)))


def test_lag_is_the_same_of_javas_broker_and_of_the_files_that_it_leaves(
    tmp_path: Path, java_broker_jars: list[Path]
) -> None:
    store, consumed = tmp_path / "store", {0: 3, 1: 0, 2: 10, 3: 7}
    with JavaServed(tmp_path / "home", store, java_broker_jars, dict(SETTINGS)) as served:
        with Admin(served.namesrv) as admin, Producer("PID", served.namesrv) as producer:
            make_orders(admin, producer)
            for queue in sorted(producer.queues("orders"), key=lambda each: each.queue_id):
                for number in range(10 * (queue.queue_id < 3) + 9 * (queue.queue_id == 3)):
                    producer.send(Message("orders", b"%d" % number), queue=queue)
            until_stored(admin, 39)
        source = ClusterSource(Options.read({"namesrv": served.namesrv}))
        source.commit_group("billing", {queue: consumed[queue.queue_id] for queue in source.queues(["orders"])})
        source.close()
        told = lag(JobInput(namesrv=served.namesrv), "billing")
    left = lag(JobInput(stores=(str(store),)), "billing")
    for found in (told, left):
        assert {each.queue_id: (each.behind, each.consumer_offset, each.gone) for each in found} == {
            0: (7, 3, 0), 1: (10, 0, 0), 2: (0, 10, 0), 3: (2, 7, 0),
        }  # fmt: skip
    same = ("queue_id", "max_offset", "oldest_unread_ms", "last_consumed_ms", "newest_ms", "behind_ms")
    behind = {each.queue_id: each for each in left}
    for each in told:
        if each.behind:
            other = behind[each.queue_id]
            assert {name: getattr(each, name) for name in same} == {name: getattr(other, name) for name in same}
