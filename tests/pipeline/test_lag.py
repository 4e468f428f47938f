"""The job `lag`: how far groups are behind, of a store's files and of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.client.message import Message as Sent
from penstock.client.sync import Producer, PullConsumer
from penstock.format.config_tables import ConsumerOffsets
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.lag import QueueLag, lag, mark_stuck
from penstock.store import Message
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files
from penstock.testing import broker


def consumed(home: StoreHome, offsets: dict[tuple[str, str], dict[int, int]]) -> None:
    ConfigFiles(Files(), home.path / "config").consumer_offsets.write(ConsumerOffsets(offsets=offsets))


def test_a_store_says_how_far_each_group_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        for number in range(20):
            home.clock.now += 60_000
            assert store.put(Message("orders", b"x", queue_id=number % 2)).ok
    start = home.clock.now - 19 * 60_000
    consumed(home, {("orders", "fast"): {0: 10, 1: 10}, ("orders", "slow"): {0: 9, 1: 2}, ("gone", "fast"): {0: 7}})
    by_queue = {(each.group, each.topic, each.queue_id): each for each in lag(JobInput(stores=(str(home.path),)))}
    assert len(by_queue) == 5
    fast, slow = by_queue["fast", "orders", 1], by_queue["slow", "orders", 1]
    assert (fast.behind, fast.behind_ms, fast.stuck, fast.last_consumed_ms) == (0, 0, False, start + 19 * 60_000)
    assert (slow.behind, slow.gone) == (8, 0)
    assert slow.oldest_unread_ms == start + 5 * 60_000
    assert slow.behind_ms == (19 - 5) * 60_000
    assert slow.stuck, "the group has consumed far newer messages of queue 0"
    assert not by_queue["slow", "orders", 0].stuck
    assert by_queue["fast", "gone", 0].behind == 0
    assert [each.group for each in lag(JobInput(stores=(str(home.path),)), "slow")] == ["slow", "slow"]
    assert main(["store", "lag", str(home.path)]) == 0
    assert "stuck" in capsys.readouterr().out
    assert main(["store", "lag", str(home.path), "--json", "--group", "fast"]) == 0
    assert {row["topic"] for row in json.loads(capsys.readouterr().out)["queues"]} == {"orders", "gone"}


def test_a_queue_that_a_group_never_consumed_from_counts_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        for number in range(20):
            home.clock.now += 60_000
            assert store.put(Message("orders", b"x", queue_id=number % 2)).ok
    consumed(home, {("orders", "half"): {1: 10}})
    rows = {each.queue_id: each for each in lag(JobInput(stores=(str(home.path),)))}
    assert (rows[0].behind, rows[0].last_consumed_ms, rows[0].stuck) == (10, 0, True)
    assert rows[1].behind == 0
    assert main(["store", "lag", str(home.path), "--group", "haf", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"queues": []}
    assert "no offsets of group haf" in shown.err


def test_messages_that_were_deleted_unread_are_told_apart() -> None:
    one = QueueLag(
        broker="b", group="g", topic="t", queue_id=0, min_offset=10, max_offset=30, consumer_offset=4,
        last_consumed_ms=0, oldest_unread_ms=5, newest_ms=25,
    )  # fmt: skip
    assert (one.behind, one.gone, one.behind_ms) == (20, 6, 20)
    assert mark_stuck([one]) == [one]


def test_a_cluster_says_the_same() -> None:
    with broker({"orders": 2}) as b:
        with Producer("P", b.namesrv) as producer:
            for number in range(10):
                producer.send(Sent("orders", b"%d" % number))
        b.settle()
        with PullConsumer("readers", b.namesrv) as reader:
            first, second = reader.queues("orders")
            ends = {queue: reader.offsets.max_offset(queue) for queue in (first, second)}
            assert sum(ends.values()) == 10
            reader.offsets.commit("readers", first, ends[first])
            reader.offsets.commit("readers", second, 1)
        rows = {each.queue_id: each for each in lag(JobInput(namesrv=b.namesrv), "readers")}
    assert {queue_id: each.behind for queue_id, each in rows.items()} == {
        first.queue_id: 0,
        second.queue_id: ends[second] - 1,
    }
    assert rows[second.queue_id].oldest_unread_ms > 0
    assert rows[second.queue_id].newest_ms >= rows[second.queue_id].oldest_unread_ms
