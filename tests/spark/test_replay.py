"""Replays bring messages back once: from exports, topics, dead letters, files and frames, into stores and clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.spark import fill_days
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.format.record import Record
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.replay import Mapping, Target, from_input, replay
from penstock.pipeline.jobs.replay import batch as replay_batch
from penstock.store import Message
from penstock.testing import broker


def records(home: StoreHome, topic: str) -> list[Record]:
    """All messages of a topic, in the order of their bodies."""
    with home.open(read_only=True) as store:
        queues = [queue for queue in store.queues if queue.topic == topic]
        found = [record for queue in queues for record in home.read_queue(store, topic, queue.queue_id)]
    return sorted(found, key=lambda record: record.body)


def small(home: StoreHome) -> None:
    """Makes a store, so that its files need not have RocketMQ's sizes."""
    with home.open() as store:
        assert store.put(Message("before", b"")).ok


def killed(*given: Any) -> None:
    raise RuntimeError("killed")


def test_two_runs_with_traffic_between_and_a_kill_miss_and_double_nothing(
    spark: SparkSession, home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StoreHome(tmp_path / "other")
    small(other)
    source, target = from_input(JobInput(stores=(str(home.path),)), "orders"), Target(store=str(other.path))
    mapping = Mapping(where="body not like '%: 4,%'", maps=("tags=upper(tags)",))
    put = [body for topic, _, body in fill_days(home, 0, 10) if topic == "orders"]
    with monkeypatch.context() as patched:
        patched.setattr(replay_batch.BatchLog, "write", killed)  # stored, and killed before that is noted
        with pytest.raises(PenstockError, match="Spark says: killed"):
            replay(spark, source, target, mapping)
    put += [body for topic, _, body in fill_days(home, 10, 4) if topic == "orders"]
    done = replay(spark, source, target, mapping)
    assert (done.read, done.filtered, done.sent, done.aside) == (7, 1, 6, 0)
    found = records(other, "orders")
    assert [record.body for record in found] == sorted(body for body in put if b": 4," not in body)
    assert {record.tags for record in found} == {"RED"}
    assert [record.properties["color"] for record in found[:2]] == ["c0", "c10"]
    assert all(record.keys and record.properties["UNIQ_KEY"] for record in found)


def test_a_topic_goes_to_a_cluster_and_dead_letters_to_where_they_came_from(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with home.open() as store:
        for number in range(12):
            came = {"RETRY_TOPIC": ("orders", "bills")[number % 2], "ORIGIN_MESSAGE_ID": f"id{number}", "DELAY": "0"}
            if number == 7:
                del came["RETRY_TOPIC"]
            assert store.put(Message("%DLQ%g", b"%02d" % number, properties=came, keys=(f"k{number}",))).ok
        store.catch_up()
        place = store.queues.find("%DLQ%g", 0).unit(2)[0]  # type: ignore[union-attr]
    home.flip(home.log_files()[0], place + 90)
    served = StoreHome(tmp_path / "served")
    with broker({"orders": 2, "bills": 1}, store_path=served.path) as running:
        arguments = ["pipeline", "replay", "--store", str(home.path), "--dead-letters", "g", "--json"]
        arguments += ["--to-namesrv", running.namesrv, "--progress", str(tmp_path / "progress")]
        assert main([*arguments, "--dry-run"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["by_topic"] == {"bills": 5, "orders": 5}
        assert len(report["first"]) == 5
        assert not (tmp_path / "progress").exists(), "a dry run leaves nothing behind"
        for expected in ((12, 10, 1, 1), (0, 0, 0, 0)):
            assert main([*arguments, "--rate", "1000"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert (report["read"], report["sent"], report["unread"], report["aside"]) == expected
    found = {topic: records(served, topic) for topic in ("orders", "bills")}
    assert {topic: [record.body for record in each] for topic, each in found.items()} == {
        "orders": [b"00", b"04", b"06", b"08", b"10"],
        "bills": [b"01", b"03", b"05", b"09", b"11"],
    }
    first = found["orders"][0]
    assert first.properties["ORIGIN_MESSAGE_ID"] == "id0"
    assert not {"RETRY_TOPIC", "DELAY"} & first.properties.keys()
    assert len(first.properties["UNIQ_KEY"]) == 32
    aside = spark.read.parquet(f"{report['progress']}/aside/*").collect()
    assert [(bytes(row.body), row.reason) for row in aside] == [(b"07", "its topic is unknown")]


def test_files_of_others_and_frames_come_in_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, home = tmp_path / "files", StoreHome(tmp_path / "store")
    files.mkdir()
    small(home)
    arguments = ["pipeline", "import", "--from", str(files), "--format", "json", "--to-store", str(home.path)]
    arguments += ["--to-topic", "T", "--map", "body=to_json(struct(id))", "--filter", "id % 2 = 0"]
    for number in range(2):
        (files / f"{number}.json").write_text(f'{{"id": {number * 2}}}\n{{"id": 7}}\n', encoding="utf-8")
        assert main(arguments) == 0
        assert "2 read, 1 filtered out, 1 sent, 0 skipped, 0 quarantined" in capsys.readouterr().out
    frame = spark.createDataFrame([("a",), ("b",)], "value string")
    target, mapping = Target(store=str(home.path)), Mapping(to_topic="F")
    assert [replay(spark, frame, target, mapping, name="mine").sent for _ in range(2)] == [2, 0]
    nothing = Mapping(to_topic="F", where="1 = 0")  # of which Spark knows before it counts
    assert replay(spark, frame, target, nothing, name="nothing").sent == 0
    assert [record.body for record in records(home, "T")] == [b'{"id":0}', b'{"id":2}']
    assert [record.body for record in records(home, "F")] == [b"a", b"b"]
    for more, expected in (
        (["--map", "x=1"], "'x' is not a message column"),
        (["--name", "mine"], "belongs to a replay from a frame"),
        (["--filter", "nothing > 1"], "with name `nothing` cannot be resolved"),
    ):
        assert main([*arguments, *more]) == 2
        shown = capsys.readouterr().err
        assert expected in shown
        assert len(shown.strip().splitlines()) == 1, shown


def test_a_time_range_of_a_topic_goes_to_another_topic_of_its_own_store(spark: SparkSession, home: StoreHome) -> None:
    fill_days(home, 0, 8)
    begin = home.clock.now
    fill_days(home, 8, 8)
    source = from_input(JobInput(stores=(str(home.path),)), "orders", since_ms=begin + 1)
    mapping = Mapping(to_topic="again", since_ms=begin + 1, keys=("k8", "k10", "k0"))
    done = replay(spark, source, Target(store=str(home.path)), mapping)
    assert (done.read, done.sent) == (4, 2)
    assert [json.loads(record.body)["id"] for record in records(home, "again")] == [10, 8]
