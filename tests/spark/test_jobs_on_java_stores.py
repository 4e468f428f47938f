"""Jobs over stores that Apache RocketMQ wrote give what follows from its own answers; and it serves what they write."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from peers.stores.test_store_interchange import (
    SETTINGS,
    SIZES,
    assert_same_answers,
    batches,
    corpus,
    derived,
    fill_with_java,
    read_all_from_java,
)
from pyspark.sql import SparkSession
from support.arrow import read_log
from support.peers import Peer
from support.spark import finish_lake, lake_command, start_lake, table_rows

from penstock.cli.main import main
from penstock.format.constants import DELAY, KEYS, TAGS, UNIQ_KEY
from penstock.pipeline.jobs.diff import Sides, diff, diff_bytes
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.rebuild import rebuild
from penstock.pipeline.jobs.replay import Mapping, Target, from_input, replay
from penstock.pipeline.jobs.search import SearchQuery, search
from penstock.pipeline.jobs.usage import usage
from penstock.pipeline.lake import init_project
from penstock.store import Dispatch, Message, MessageStore

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PAIRS = tuple(f"{name}={value}" for name, value in SIZES.items())
EXTERNAL = SETTINGS.with_changes(dispatch=Dispatch.EXTERNAL)


class Written(NamedTuple):
    """A store that Java wrote; and what Java serves of it, queue by queue."""

    path: Path
    messages: list[dict[str, Any]]

    @property
    def where(self) -> JobInput:
        return JobInput(stores=(str(self.path),), settings=PAIRS)

    def of(self, topic: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["topic"] == topic]

    def log(self) -> list[dict[str, Any]]:
        """Every record, one by one, also what no queue shows."""
        with MessageStore.open(self.path, SETTINGS, read_only=True) as store:
            return read_log(store)

    def conf(self) -> Path:
        """Its settings as a file, beside it."""
        path = self.path.with_name("broker.conf")
        path.write_text("\n".join(PAIRS), encoding="utf-8")
        return path


@pytest.fixture(scope="module")
def written(java_class_path: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("java") / "store"
    with Peer(java_class_path) as java:
        fill_with_java(java, path)
        java.open(path, SIZES)
        queues = [(each["topic"], each["queue_id"]) for each in java.ask("queues") if each["max"]]
        messages = [message for queue in queues for message in read_all_from_java(java, *queue)]
        java.ask("close")
    assert len(messages) > 500
    return Written(path, messages)


def body_of(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["body"])


def test_usage_counts_what_java_was_given(spark: SparkSession, written: Written) -> None:
    given = [*corpus(), *(fields for batch in batches() for fields in batch)]

    def place(fields: dict[str, Any]) -> tuple[str, int]:
        level = fields["properties"].get(DELAY)
        return (
            ("SCHEDULE_TOPIC_XXXX", min(int(level), 18) - 1) if level else (fields["topic"], fields.get("queue_id", 0))
        )

    found = usage(spark, written.where)
    counts = {(key.by, key.topic, key.queue_id, key.tag, key.host): count for key, count in found.tally.counts}
    by_queue = {key[1:3]: count.messages for key, count in counts.items() if key[0] == "queue"}
    assert by_queue == Counter(map(place, given))
    by_tag = {(key[1], key[3]): count.messages for key, count in counts.items() if key[0] == "tag"}
    assert by_tag == Counter((place(fields)[0], fields["properties"].get(TAGS, "")) for fields in given)
    by_host = {key[4]: count.messages for key, count in counts.items() if key[0] == "producer" and key[1] == "orders"}
    far = "[1050::5:600:300c:326b]"
    assert by_host == Counter(
        far if "born_host" in fields else "127.0.0.1" for fields in given if place(fields)[0] == "orders"
    )
    log = written.log()
    sizes: Counter[str] = Counter()
    for row in log:
        sizes[row["topic"]] += row["store_size"]
    assert {key.topic: count.size for key, count in found.tally.counts if key.by == "topic"} == sizes
    assert (found.messages, found.tally.flaws) == (len(log), 0)


def test_search_finds_what_java_serves(spark: SparkSession, written: Written) -> None:
    def found(**wanted: Any) -> list[int]:
        frame = search(spark, SearchQuery(**wanted), written.where).frame
        assert frame.where("_corrupt is not null").count() == 0
        return sorted(row.physical_offset for row in frame.collect())

    def served(matches: Callable[[dict[str, Any]], bool]) -> list[int]:
        return sorted(each["physical_offset"] for each in written.messages if matches(each))

    def has_key(message: dict[str, Any], *keys: str) -> bool:
        known = message["properties"]
        return bool({*known.get(KEYS, "").split(), known.get(UNIQ_KEY)} & {*keys})

    batched = {"topic": "batched"}
    unique = next(each["properties"][UNIQ_KEY] for each in written.of("payments") if UNIQ_KEY in each["properties"])
    assert found(**batched, keys=("b7_3", "b8_0")) == served(lambda each: has_key(each, "b7_3", "b8_0"))
    assert found(topic="payments", keys=(unique,)) == served(lambda each: has_key(each, unique))
    assert found(**batched, text="13.5") == served(lambda each: b"13.5" in body_of(each) and each["topic"] == "batched")
    assert found(topic="orders", tag="标签") == served(
        lambda each: each["topic"] == "orders" and each["properties"].get(TAGS) == "标签"
    )
    some = written.of("orders")[7]
    assert found(msg_id=some["msg_id"]) == [some["physical_offset"]]
    since = written.messages[len(written.messages) // 2]["store_timestamp"]
    assert found(topic="orders", since_ms=since) == served(
        lambda each: each["topic"] == "orders" and each["store_timestamp"] >= since
    )


def test_rebuild_on_spark_gives_the_files_that_java_built(
    spark: SparkSession, written: Written, java: Peer, tmp_path: Path
) -> None:
    copy = shutil.copytree(written.path, tmp_path / "store")
    due = derived(written.path)
    for name in due["queues"]:
        (copy / name).write_bytes(bytes((copy / name).stat().st_size))
    shutil.rmtree(copy / "index")
    (report,) = rebuild(spark, JobInput(stores=(str(copy),), settings=PAIRS), range_size=20_000)
    assert derived(copy) == due
    assert (report.records, report.damaged, report.in_log_order) == (len(written.log()), 0, [])
    assert_java_serves_it(java, copy)


def assert_java_serves_it(java: Peer, store: Path) -> None:
    """The same messages, statuses and hits as Penstock, and with no other files than before."""
    before = derived(store)
    copy = shutil.copytree(store, store.with_name("served"))
    java.open(store, SIZES)
    with MessageStore.open(copy, SETTINGS) as opened:
        assert_same_answers(opened, java)
    java.ask("close")
    assert derived(store) == before


def test_a_dispatch_job_builds_what_java_built_from_its_log(
    spark: SparkSession, written: Written, java: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the log is Java's, in a store that leaves dispatch to the job; then more messages come."""
    path = tmp_path / "store"
    MessageStore.open(path, EXTERNAL).close()
    shutil.copytree(written.path / "commitlog", path / "commitlog", dirs_exist_ok=True)
    MessageStore.open(path, EXTERNAL).close()
    assert not list((path / "consumequeue").rglob("0*"))
    run = ["pipeline", "dispatch", "--store", str(path), "--once", "--json"]
    assert main(run) == 0
    assert json.loads(capsys.readouterr().out)["behind"] == 0
    assert derived(path) == derived(written.path)
    before = Counter(message["queue_id"] for message in written.of("orders"))
    with MessageStore.open(path, EXTERNAL) as store:
        for number in range(100):
            message = Message("orders", b"more %d" % number, keys=(f"m{number}",), tags="Aa", queue_id=number % 3)
            assert store.put(message).queue_offset == before[number % 3] + number // 3
    assert main(run) == 0
    shutil.copytree(path / "commitlog", tmp_path / "theirs" / "commitlog")
    java.open(tmp_path / "theirs", SIZES)
    java.ask("close")
    assert derived(path) == derived(tmp_path / "theirs")
    assert_java_serves_it(java, path)


def test_a_dispatch_job_goes_on_beside_the_files_that_java_built(
    spark: SparkSession, written: Written, java: Peer, tmp_path: Path
) -> None:
    path = shutil.copytree(written.path, tmp_path / "store")
    with MessageStore.open(path, EXTERNAL) as store:
        for number in range(60):
            assert store.put(Message("payments", b"more %d" % number, keys=(f"m{number}",))).ok
    assert main(["pipeline", "dispatch", "--store", str(path), "--once", "--json"]) == 0
    shutil.copytree(path / "commitlog", tmp_path / "theirs" / "commitlog")
    java.open(tmp_path / "theirs", SIZES)
    java.ask("close")
    assert derived(path) == derived(tmp_path / "theirs")
    assert_java_serves_it(java, path)


def content(message: dict[str, Any]) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """What a replay keeps of a message; the unique key is made where there was none."""
    kept = {name: value for name, value in message["properties"].items() if name not in (UNIQ_KEY, "WAIT")}
    return body_of(message), tuple(sorted(kept.items()))


def served_by(java: Peer, store: Path, topic: str) -> list[dict[str, Any]]:
    java.open(store, SIZES)
    ids = [each["queue_id"] for each in java.ask("queues") if each["topic"] == topic and each["max"]]
    found = [message for queue_id in ids for message in read_all_from_java(java, topic, queue_id)]
    java.ask("close")
    return found


def test_replays_and_imports_of_what_java_wrote_reach_a_store_that_java_wrote(
    spark: SparkSession, written: Written, java: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(written.path, tmp_path / "store")
    target = Target(store=str(path), config=str(written.conf()))
    mapping = Mapping(to_topic="again", where="size(filter(map_keys(properties), name -> name = 'colour')) = 0")
    runs = [replay(spark, from_input(written.where, "payments"), target, mapping) for _ in range(2)]
    sent = [each for each in written.of("payments") if "colour" not in each["properties"]]
    assert [(run.read, run.sent, run.aside, run.unread) for run in runs] == [
        (len(written.of("payments")), len(sent), 0, 0),
        (0, 0, 0, 0),
    ]
    lake = str(tmp_path / "lake")
    settings = [word for pair in PAIRS for word in ("--set", pair)]
    export = ["pipeline", "export", "--store", str(written.path), "--to", lake, "--topic", "batched", *settings]
    assert main(export) == 0
    into = ["--to-store", str(path), "--to-config", str(written.conf()), "--json"]
    for to_topic, arguments in (
        ("exported", ["pipeline", "replay", "--from", f"export:{lake}"]),
        ("imported", ["pipeline", "import", "--from", f"{lake}/topic=batched"]),
    ):
        for expected in (160, 0):
            capsys.readouterr()
            assert main([*arguments, *into, "--to-topic", to_topic]) == 0
            assert json.loads(capsys.readouterr().out)["sent"] == expected
        assert Counter(map(content, served_by(java, path, to_topic))) == Counter(map(content, written.of("batched")))
    again = served_by(java, path, "again")
    assert Counter(map(content, again)) == Counter(map(content, sent))
    kept = {each["properties"][UNIQ_KEY] for each in sent if UNIQ_KEY in each["properties"]}
    assert kept < {each["properties"][UNIQ_KEY] for each in again}
    assert len({each["properties"][UNIQ_KEY] for each in again}) == len(again)
    assert_java_serves_it(java, path)


def test_diff_tells_what_came_to_a_store_of_javas(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    path = shutil.copytree(written.path, tmp_path / "store")
    other = JobInput(stores=(str(path),), settings=PAIRS)
    assert diff(spark, Sides(a=written.where, b=other)).same
    assert diff_bytes(spark, Sides(a=written.where, b=other, by="bytes")).same
    with MessageStore.open(path, SETTINGS) as store:
        assert store.put_many([Message("orders", b"new")] * 3).ok
    found = diff(spark, Sides(a=written.where, b=other))
    assert not found.same
    assert sum(queue.same for queue in found.queues) == len(written.messages)


def test_a_lake_of_a_store_that_java_wrote_has_every_message_once(written: Written, tmp_path: Path) -> None:
    """Two runs, with Penstock's messages in between."""
    path = shutil.copytree(written.path, tmp_path / "store")
    lake = tmp_path / "lake"
    init_project(lake, JobInput(stores=(str(path),), config=str(written.conf())))
    new = [b"new %d" % number for number in range(30)]
    for run in range(2):
        status, out, said = finish_lake(start_lake(lake, *lake_command(lake, "--json")))
        assert status == 0, out + said[-4000:]
        raw = [each for each in written.messages if each["topic"] != "SCHEDULE_TOPIC_XXXX"]
        report = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
        assert report["tables"]["messages"] == len(raw) + 30 * run
        expected = Counter(map(body_of, written.of("orders"))) + Counter(new * run)
        assert Counter(row["body"] for row in table_rows(lake, "topic_orders")) == expected
        if not run:
            with MessageStore.open(path, SETTINGS) as store:
                assert all(store.put(Message("orders", body)).ok for body in new)
    places = Counter((row["topic"], row["queue_id"], row["queue_offset"]) for row in table_rows(lake, "messages"))
    assert max(places.values()) == 1
    by_topic: Counter[str] = Counter()
    for row in table_rows(lake, "usage"):
        by_topic[row["topic"]] += row["bytes"]
    assert by_topic["batched"] == sum(each["size"] for each in written.of("batched"))
