"""The derived-files flusher: when queues are synced, and what the checkpoint then promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support.disks import WatchedFiles
from support.stores import Clock

from penstock.format.checkpoint import Checkpoint
from penstock.store import Message, MessageStore, Settings, derived_flush
from penstock.store.derived_flush import DerivedFlusher

PAGE = 4096
HOUR_MS = 3_600_000
UNITS_OF_TWO_PAGES = -(-2 * PAGE // 20)


class Bench(NamedTuple):
    """A store whose own flusher sleeps, and a flusher that the test runs."""

    store: MessageStore
    flusher: DerivedFlusher
    disk: WatchedFiles
    clock: Clock
    seconds: SimpleNamespace

    def put(self, count: int) -> None:
        assert self.store.put_many([Message("orders", b"", keys="k")] * count).ok
        self.store.catch_up()

    def synced(self) -> tuple[int, int]:
        """How often the queue and the index were."""
        return self.disk.syncs["0"], self.disk.syncs["index"]

    def checkpoint(self) -> Checkpoint:
        return Checkpoint.unpack(self.store.layout.checkpoint.read_bytes())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    disk, clock, seconds = WatchedFiles(), Clock(), SimpleNamespace(now=1000.0)
    settings = Settings.dev(flush_interval_consume_queue=HOUR_MS, flush_interval_commit_log=HOUR_MS)
    with MessageStore.open(tmp_path / "store", settings, files=disk, clock=clock) as store:
        monkeypatch.setattr(derived_flush, "time", SimpleNamespace(monotonic=lambda: seconds.now))
        engine = replace(store.engine, settings=Settings())
        flusher = DerivedFlusher(engine, store._checkpoint, store._notes, store.statistics, print)
        yield Bench(store, flusher, disk, clock, seconds)


def test_a_queue_is_synced_once_it_has_grown_by_two_pages(bench: Bench) -> None:
    bench.put(UNITS_OF_TWO_PAGES - 1)
    bench.flusher.work()
    assert bench.synced() == (0, 0)
    bench.put(1)
    bench.flusher.work()
    assert bench.synced() == (1, 0)
    bench.put(1)
    bench.flusher.work()
    assert bench.synced() == (1, 0)


def test_every_minute_queues_and_index_are_synced_and_then_the_checkpoint_moves(bench: Bench) -> None:
    bench.put(1)
    began = bench.clock.now
    bench.seconds.now += 59.9
    bench.flusher.work()
    assert bench.synced() == (0, 0)
    assert bench.checkpoint().logics == 0, "it promises nothing that is not on disk"
    bench.seconds.now += 0.1
    bench.flusher.work()
    assert bench.synced() == (1, 1)
    assert (bench.checkpoint().logics, bench.checkpoint().index) == (began, began)
    bench.clock.now += 7
    bench.put(1)
    bench.seconds.now += 59.9
    bench.flusher.work()
    assert bench.checkpoint().logics == began, "the minute starts again"
    bench.seconds.now += 0.1
    bench.flusher.work()
    assert bench.checkpoint().logics == began + 7


def test_what_arrives_during_a_sync_is_not_promised_yet(bench: Bench) -> None:
    bench.put(1)
    began = bench.clock.now

    def put_one_more(path: Path) -> None:
        if path.parent.name == "0":
            bench.disk.on_sync = lambda path: None
            bench.clock.now += 500
            bench.put(1)

    bench.disk.on_sync = put_one_more
    bench.flusher.finish()
    assert bench.clock.now == began + 500
    assert bench.checkpoint().logics == began
