"""Streams as Spark 4.0 and 4.1 drive them, on the Spark that is installed: without a start, and one batch at a time."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline import options_for
from support.stores import StoreHome

from penstock.errors import MissingPackage
from penstock.pipeline import spark_versions
from penstock.pipeline.errors import UserError
from penstock.pipeline.source import schema_of
from penstock.pipeline.spark_versions import StartTracker, requires
from penstock.pipeline.stream_source import StreamReader
from penstock.store import Message, MessageStore
from penstock.store.readonly import follow_growing_queues as tail


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look lists the folders; and what is said leaves no trace in the environment."""
    monkeypatch.setattr(tail, "_LIST_EVERY_S", 0.0)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    home = StoreHome(tmp_path / "store")
    yield home
    home.close_all()


class OldQuery:
    """A query of Spark 4.0 with its checkpoint: offsets are logged before a batch, and commits after it."""

    def __init__(self, home: StoreHome, **given: object) -> None:
        self._options = options_for(home.path, subscribe="T", columns="body", **given)
        self.logged: list[str] = []
        self.committed = 0
        self.bodies: list[bytes] = []
        self.start()

    def start(self) -> None:
        """A new process; Spark plans an empty range at the last offset that was logged, before anything else."""
        reader = StreamReader(self._options, schema_of(self._options), has_read_limits=False)
        self._reader = pickle.loads(pickle.dumps(StartTracker(reader)))
        if self.logged:
            last = json.loads(self.logged[-1])
            self._reader.partitions(last, last)

    def batch(self, *, killed: bool = False) -> bool:
        """One micro-batch, or the one that was logged and not committed; False if there is nothing new."""
        if len(self.logged) == self.committed:
            end = json.dumps(self._reader.latestOffset())
            if self.logged and end == self.logged[-1]:
                return False
            self.logged.append(end)
        first = self.logged[self.committed - 1] if self.committed else json.dumps(self._reader.initialOffset())
        parts = self._reader.partitions(json.loads(first), json.loads(self.logged[-1]))
        read = [row["body"] for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        if not killed:
            self.bodies += read
            self.committed += 1
        return True


def put(store: MessageStore, first: int, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    for number, body in enumerate(bodies):
        assert store.put(Message("T", body, queue_id=number % 3)).ok
    store.catch_up()
    return bodies


def test_a_start_that_does_not_move_reads_in_the_first_batch(home: StoreHome) -> None:
    with home.open() as store:
        wanted = put(store, 0, 10)
        query = OldQuery(home, startingOffsets="earliest")
        assert query.batch()
        assert sorted(query.bodies) == wanted, "availableNow ends after it"
        assert not query.batch()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_killed_first_batch_is_read_again_and_nothing_is_skipped(home: StoreHome, start: str) -> None:
    with home.open() as store:
        before = put(store, 0, 10)
        query = OldQuery(home, startingOffsets=start)
        if start == "latest":
            assert query.batch(), "an empty one, which logs where the query starts"
        wanted = put(store, 10, 10)
        assert query.batch(killed=True)
        wanted += put(store, 20, 10)
        query.start()
        while query.batch():
            pass
        assert sorted(query.bodies) == sorted(wanted if start == "latest" else before + wanted)


def test_limits_hold_without_sparks_help_also_after_a_restart(home: StoreHome) -> None:
    with home.open() as store:
        wanted = put(store, 0, 20)
        query = OldQuery(home, startingOffsets="earliest", maxOffsetsPerTrigger=6)
        assert query.batch()
        assert len(query.bodies) == 6
        query.start()
        assert query.batch()
        assert len(query.bodies) == 12
        while query.batch():
            pass
        assert sorted(query.bodies) == sorted(wanted)


def test_a_limit_is_said_to_end_available_now(home: StoreHome, caplog: pytest.LogCaptureFixture) -> None:
    with home.open() as store, caplog.at_level(logging.WARNING):
        put(store, 0, 1)
        OldQuery(home, startingOffsets="earliest").batch()
        assert not caplog.text, "without a limit everything is one micro-batch, also more than 1 GiB"
        OldQuery(home, startingOffsets="earliest", maxOffsetsPerTrigger=6).batch()
        assert "runs one micro-batch for availableNow" in caplog.text


@pytest.mark.parametrize("start", ["group:shop", '{"T": {"0": 0, "1": -1, "2": 0}}'])
def test_a_start_that_may_move_names_the_version_that_has_it(
    home: StoreHome, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "VERSION", (4, 1))
    monkeypatch.setattr(spark_versions.pyspark, "__version__", "4.1.4")
    with home.open() as store:
        put(store, 0, 3)
        with pytest.raises(UserError, match=r"a stream with startingOffsets=.* needs Spark 4\.2 or newer, and this is"):
            OldQuery(home, startingOffsets=start).batch()


def test_what_a_version_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    requires((4, 0), "a read")
    monkeypatch.setattr(spark_versions, "VERSION", (4, 0))
    with pytest.raises(MissingPackage, match=r"a lake needs Spark 4\.2 .*: pip install 'pyspark>=4\.2', or use SQL$"):
        requires((4, 2), "a lake", instead="use SQL")
