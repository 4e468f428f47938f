"""The stream reader as Spark drives it, without Spark: offsets from a checkpoint, batches, restarts."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.pipeline import options_for, send
from support.stores import PER_FILE, AgedStore, StoreHome

from penstock.client.message import Message as ClientMessage
from penstock.client.sync import Admin
from penstock.pipeline.errors import UserError
from penstock.pipeline.options import Options
from penstock.pipeline.source import schema_of
from penstock.pipeline.stream_source import StreamReader
from penstock.store import Message
from penstock.store.readonly import follow_growing_queues as tail
from penstock.testing import broker

SIZES = {"mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 20 * 7}
Place = tuple[str, int, int]


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


class Query:
    """A streaming query with its checkpoint: offsets are logged before a batch runs, and compared as text."""

    def __init__(self, home: StoreHome | None, **given: object) -> None:
        given["columns"] = "topic,queue_id,queue_offset,body,physical_offset"
        texts = {name: str(value).lower() for name, value in given.items()}
        self._options = Options.read(texts) if home is None else options_for(home.path, **given)
        self.logged: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.restart()

    def restart(self) -> None:
        """In a new process: a new reader, and only the checkpoint is left."""
        self.reader = pickle.loads(pickle.dumps(StreamReader(self._options, schema_of(self._options))))
        if not self.logged:
            assert self.reader.initialOffset() == self.reader.initialOffset()
            self._start = json.dumps(self.reader.initialOffset())

    def read(self, start: str, end: str) -> list[dict[str, Any]]:
        parts = pickle.loads(pickle.dumps(self.reader.partitions(json.loads(start), json.loads(end))))
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def trigger(self) -> bool:
        """One micro-batch; False if there is nothing to do."""
        start = self.logged[-1] if self.logged else self._start
        end = json.dumps(self.reader.latestOffset(json.loads(start), ReadAllAvailable()))
        if end == start and self.logged:
            return False
        self.logged.append(end)
        rows = self.read(start, end)
        assert self.read(start, end) == rows, "a batch that is run again reads the same"
        self.rows += rows
        self.batches.append(len(rows))
        return True

    def drain(self) -> None:
        while self.trigger():
            pass

    @property
    def places(self) -> list[Place]:
        return [(row["topic"], row["queue_id"], row["queue_offset"]) for row in self.rows]


EARLIEST = {"startingOffsets": "earliest"}


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, None),
        ({"maxOffsetsPerTrigger": 7}, 7),
        ({"maxBytesPerTrigger": 600}, 6),
        ({"maxRecordsPerPartition": 2, "maxOffsetsPerTrigger": 30}, 30),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_traffic_with_restarts_arrives_once_and_in_order(
    home: StoreHome, given: dict[str, object], most: int | None, seed: int
) -> None:
    chance = random.Random(seed)
    store = home.open(**SIZES)
    assert store.put(Message("a", b"x")).ok
    store.catch_up()
    query = Query(home, subscribePattern="[ab]", **EARLIEST, **given)
    for _ in range(25):
        for _ in range(chance.randrange(12)):
            topic, queue_id = chance.choice("aabc"), chance.randrange(3)
            assert store.put(Message(topic, b"x" * chance.randrange(20), queue_id=queue_id)).ok
        store.catch_up()
        query.trigger()
        if chance.random() < 0.3:
            query.restart()
    query.drain()
    expected = [
        (queue.topic, queue.queue_id, number)
        for queue in store.queues
        if queue.topic != "c"
        for number in range(queue.max_offset)
    ]
    assert sorted(query.places) == sorted(expected)
    last: dict[tuple[str, int], int] = {}
    for topic, queue_id, number in query.places:
        assert number == last.get((topic, queue_id), -1) + 1
        last[topic, queue_id] = number
    assert query.batches[0] == 0, "the first batch only logs the start"
    if most is not None:
        assert max(query.batches) <= most
        assert len(query.batches) > len(expected) // most


def test_a_log_is_followed_by_its_bytes(home: StoreHome) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 1)
    store.catch_up()
    query = Query(home, order="log", maxBytesPerTrigger=1500, **EARLIEST)
    for round_ in range(6):
        home.put_numbered(store, 30, topic="T" if round_ % 2 else "U")
        store.catch_up()
        query.trigger()
        if round_ == 3:
            query.restart()
    query.drain()
    places = [row["physical_offset"] for row in query.rows]
    assert places == sorted(set(places))
    assert len(places) == 181


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(home: StoreHome) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 5)
    store.catch_up()
    query = Query(home, topic="T")
    query.drain()
    home.put_numbered(store, 2)
    store.catch_up()
    query.drain()
    assert query.places == [("T", 0, 5), ("T", 0, 6)]


def test_now_means_what_is_there_now(home: StoreHome) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 20)
    store.catch_up()
    query = Query(home, topic="T", maxOffsetsPerTrigger=6, **EARLIEST)
    query.reader.prepareForTriggerAvailableNow()
    home.put_numbered(store, 20)
    store.catch_up()
    query.drain()
    assert query.places == [("T", 0, number) for number in range(20)]
    assert query.batches == [0, 6, 6, 6, 2]


def test_a_batch_waits_for_enough_messages_but_not_for_ever(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 3)
    store.catch_up()
    query = Query(home, topic="T", minOffsetsPerTrigger=5, maxTriggerDelay="10m", **EARLIEST)
    assert query.trigger()
    assert not query.trigger()
    home.put_numbered(store, 2)
    store.catch_up()
    assert query.trigger()
    home.put_numbered(store, 1)
    store.catch_up()
    assert not query.trigger()
    monkeypatch.setattr(query.reader, "_last_batch", query.reader._last_batch - 601)
    assert query.trigger()
    assert query.batches == [0, 5, 1]


def test_messages_that_retention_takes_before_they_are_read_are_a_loss(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(6)
    queries = [
        Query(home, topic="T", maxOffsetsPerTrigger=PER_FILE, failOnDataLoss=fail, **EARLIEST) for fail in (True, False)
    ]
    for query in queries:
        assert query.trigger()
        assert query.trigger()
    aged.age(hours=100, files=3)
    aged.run_on_request()
    with pytest.raises(UserError, match=f"messages {PER_FILE} to {2 * PER_FILE - 1} are gone .*failOnDataLoss=false"):
        queries[0].trigger()
    queries[1].drain()
    kept = [*range(PER_FILE), *range(3 * PER_FILE, 6 * PER_FILE)]
    assert queries[1].places == [("T", 0, number) for number in kept]


def test_messages_that_retention_takes_before_the_first_batch_of_a_new_queue_is_run_again_are_a_loss(
    home: StoreHome,
) -> None:
    aged = AgedStore(home)
    home.put_numbered(aged.store, 1, topic="U")
    aged.store.catch_up()
    query = Query(home, subscribePattern="T|U", **EARLIEST)
    query.drain()
    assert query.places == [("U", 0, 0)]
    aged.fill(6)
    start = query.logged[-1]
    assert query.trigger()
    end = query.logged[-1]
    assert len(query.rows) == 6 * PER_FILE + 1
    aged.age(hours=100, files=3)
    aged.run_on_request()
    query.restart()
    with pytest.raises(UserError, match=r"topic T queue 0 .*: messages 0 to \d+ are gone .*failOnDataLoss=false"):
        query.read(start, end)


def test_messages_of_a_new_queue_that_retention_takes_before_the_stream_sees_it_are_a_loss(
    home: StoreHome, caplog: pytest.LogCaptureFixture
) -> None:
    aged = AgedStore(home)
    home.put_numbered(aged.store, 1, topic="U")
    aged.store.catch_up()
    query, forgiving = (Query(home, subscribePattern="T|U", failOnDataLoss=fail, **EARLIEST) for fail in (True, False))
    query.drain()
    forgiving.drain()
    aged.fill(6)
    aged.age(hours=100, files=3)
    aged.run_on_request()
    with pytest.raises(UserError, match=r"topic T queue 0 .*: messages 0 to \d+ are gone .*failOnDataLoss=false"):
        query.trigger()
    forgiving.drain()
    kept = range(aged.store.min_offset("T", 0), 6 * PER_FILE)
    assert 0 < len(kept) < 6 * PER_FILE
    assert forgiving.places == [("U", 0, 0), *(("T", 0, number) for number in kept)]
    assert f"is new, and its first {kept[0]} messages are gone" in caplog.text


def test_a_topic_that_begins_again_below_the_stream_is_a_loss(home: StoreHome) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 9)
    home.put_numbered(store, 1, topic="U")
    store.catch_up()
    query, forgiving = (Query(home, subscribe="T,U", failOnDataLoss=fail, **EARLIEST) for fail in (True, False))
    query.drain()
    forgiving.drain()
    store.delete_topic("T")
    home.put_numbered(store, 4)
    store.catch_up()
    with pytest.raises(UserError, match=r"topic T queue 0 .* was read up to 9, .* \(the topic was deleted and created"):
        query.trigger()
    forgiving.restart()
    forgiving.drain()
    assert forgiving.batches == [0, 10, 0, 4], "it goes on with what is there now"
    assert forgiving.places[10:] == [("T", 0, number) for number in range(4)]


def test_an_end_is_refused_as_soon_as_a_stream_begins(home: StoreHome) -> None:
    home.open(**SIZES).close()
    with pytest.raises(UserError, match="endingTimestamp is given, and a stream has no end"):
        Query(home, topic="T", endingTimestamp=5)


# -- what is no longer what was read -----------------------------------------------------------------------------------


def _create_topic_again(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        store.delete_topic("T")
        home.put_numbered(store, 25)


def _put_another_store(home: StoreHome) -> None:
    home.path.rename(home.path.with_name("elsewhere"))
    with home.open(**SIZES) as store:
        home.put_numbered(store, 25)


def _truncate_and_fill(home: StoreHome) -> None:
    """As after a crash that lost the end of the log: other messages take the place of those that were read."""
    with home.open(**SIZES) as store:
        record = store.get("T", 0, 6).messages[0]
    for path, position in (
        (home.log_files()[0], record.physical_offset),
        (home.queue_files("T")[0], 6 * 20),
        (home.queue_files("T")[1], 0),
    ):
        home.write(path, position, bytes(path.stat().st_size - position))
    shutil.rmtree(home.path / "penstock")
    home.mark_crashed()
    with home.open(**SIZES) as store:
        assert store.max_offset("T", 0) == 6
        home.put_numbered(store, 19)


REPLACED = [
    (_create_topic_again, "the topic was deleted and created again"),
    (_put_another_store, "this is another store than before"),
    (_truncate_and_fill, "the log was truncated and filled again"),
]


@pytest.mark.parametrize(("change", "why"), REPLACED)
@pytest.mark.parametrize("restart", [True, False])
def test_what_takes_the_place_of_messages_that_were_read_is_an_error_that_says_why(
    home: StoreHome, change: Callable[[StoreHome], None], why: str, restart: bool
) -> None:
    with home.open(**SIZES) as store:
        home.put_numbered(store, 10)
    query, forgiving = (Query(home, topic="T", failOnDataLoss=fail, **EARLIEST) for fail in (True, False))
    for each in (query, forgiving):
        each.drain()
    home.clock.now += 1000
    change(home)
    if restart:
        query.restart()
        forgiving.restart()
    with pytest.raises(
        UserError, match=rf"topic T queue 0 .* was read up to 10, .* is gone \({why}; 0 to 24 are there"
    ):
        query.trigger()
    forgiving.drain()
    assert forgiving.batches == [0, 10, 0, 25], "it begins again at the first message"


@pytest.mark.parametrize(("change", "why"), REPLACED[:2])
def test_a_batch_that_is_run_again_over_other_messages_is_an_error(
    home: StoreHome, change: Callable[[StoreHome], None], why: str
) -> None:
    """The batch of messages 0 to 9 is in the checkpoint, and was not finished. Nothing was read before it."""
    with home.open(**SIZES) as store:
        home.put_numbered(store, 10)
    query = Query(home, topic="T", **EARLIEST)
    query.drain()
    home.clock.now += 1000
    change(home)
    query.restart()
    with pytest.raises(UserError, match=why):
        query.read(*query.logged[-2:])


def test_another_log_under_the_same_path_is_an_error_by_bytes_too(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        home.put_numbered(store, 10)
    query = Query(home, order="log", **EARLIEST)
    query.drain()
    home.clock.now += 1000
    _put_another_store(home)
    query.restart()
    with pytest.raises(UserError, match=r"the log of store was read up to \d+, .*\(this is another store than before"):
        query.trigger()


def test_a_checkpoint_of_an_older_version_is_continued(home: StoreHome) -> None:
    store = home.open(**SIZES)
    home.put_numbered(store, 10)
    store.catch_up()
    query = Query(home, topic="T", **EARLIEST)
    query.logged = ['{"T": {"store": {"0": 4}}}']
    query.restart()
    query.drain()
    assert query.places == [("T", 0, number) for number in range(4, 10)]
    assert json.loads(query.logged[-1])["@read"]["T"]["store"].keys() == {"0"}


def test_retention_of_what_was_read_is_no_loss(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(4)
    query = Query(home, topic="T", **EARLIEST)
    query.drain()
    aged.age(hours=100, files=3)
    aged.run_on_request()
    aged.fill(1)
    query.restart()
    query.drain()
    assert query.places == [("T", 0, number) for number in range(len(query.places))]
    assert len(query.places) > 4 * PER_FILE


@pytest.mark.parametrize("restart", [True, False])
def test_a_topic_created_again_at_a_broker_is_an_error_that_says_so(restart: bool) -> None:
    orders = [ClientMessage("orders", b"%d" % number) for number in range(40)]
    with broker({"orders": 1}) as b, Admin(b.namesrv) as admin:
        send(b, orders)
        query, forgiving = (
            Query(None, namesrv=b.namesrv, topic="orders", failOnDataLoss=fail, **EARLIEST) for fail in (True, False)
        )
        for each in (query, forgiving):
            each.drain()
        assert len(query.rows) == 40
        admin.topics.delete("orders")
        admin.topics.create("orders", queues=1)
        send(b, orders * 2)
        if restart:
            query.restart()
            forgiving.restart()
        why = "the topic was deleted and created again"
        with pytest.raises(UserError, match=rf"topic orders queue 0 .* is gone \({why}; 0 to 79 are there now"):
            query.drain()
        forgiving.drain()
        assert forgiving.batches[-2:] == [0, 80]


def test_a_topic_deleted_at_a_broker_is_an_error_and_does_not_keep_a_forgiving_stream_from_going_on() -> None:
    with broker({"orders": 1, "old": 1}) as b, Admin(b.namesrv) as admin:
        send(b, [ClientMessage(topic, b"x") for topic in ("orders", "old") for _ in range(10)])
        query, forgiving = (
            Query(None, namesrv=b.namesrv, subscribePattern="orders|old", failOnDataLoss=fail, **EARLIEST)
            for fail in (True, False)
        )
        for each in (query, forgiving):
            each.drain()
            assert len(each.rows) == 20
        admin.topics.delete("old")
        send(b, [ClientMessage("orders", b"x")])
        query.restart()
        with pytest.raises(UserError, match=r"topic old queue 0 .*: messages 0 to 9 are gone"):
            query.drain()
        query.restart()
        with pytest.raises(
            UserError, match=r"topic old queue 0 .* was read up to 10, .* \(the topic was deleted; nothing"
        ):
            query.read(query.logged[0], query.logged[1])  # the last batch, if it was not finished
        forgiving.restart()
        assert {row["topic"] for row in forgiving.read(*forgiving.logged[:2])} == {"orders"}
        forgiving.drain()
        assert forgiving.batches[-1] == 1


def test_a_stream_ends_at_a_damaged_message_unless_it_is_told_otherwise(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        home.put_numbered(store, 10)
        record = store.get("T", 0, 6).messages[0]
    log = home.log_files()[0]
    home.flip(log, log.read_bytes().index(record.body, record.physical_offset))
    with pytest.raises(UserError, match="the record of queue offset 6 is damaged; mode=FAILFAST ends the read"):
        Query(home, topic="T", **EARLIEST).drain()
    permissive = Query(home, topic="T", mode="PERMISSIVE", **EARLIEST)
    permissive.drain()
    assert [row["body"] for row in permissive.rows].count(None) == 1
