"""Spark reads stores that Apache RocketMQ wrote: closed, and while it is writing."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers.stores.test_store_interchange import SETTINGS, SIZES, corpus, fill_with_java
from pyspark.sql import SparkSession
from support.arrow import read_log
from support.peers import Peer, message_json
from support.spark import QUEUE_ORDER, read, rows, stored
from support.stores import StoreHome

from penstock.broker.topics import NOT_FOR_SENDING
from penstock.format.sys_flag import COMPRESSED
from penstock.pipeline.jobs.export import Export, export
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import MessageStore

pytestmark = pytest.mark.java


def test_a_store_that_java_wrote_is_read_to_the_field(spark: SparkSession, java: Peer, tmp_path: Path) -> None:
    home = StoreHome(tmp_path / "store")
    home.path.mkdir()
    fill_with_java(java, home.path)
    with MessageStore.open(home.path, SETTINGS, read_only=True) as store:
        topics = store.topics()
        expected = stored(home, store, *topics)
        log = [{**row, "broker": "store"} for row in read_log(store)]
    assert len(expected) > 500
    packed = {"decompress": "false"}  # what a queue returns is what was stored
    assert rows(read(spark, home, subscribePattern=".*", **packed), *QUEUE_ORDER) == expected
    assert rows(read(spark, home, order="log", minPartitions=7, **packed), "physical_offset") == log


def test_a_store_that_java_is_writing_to_is_read_without_gaps(spark: SparkSession, java: Peer, tmp_path: Path) -> None:
    home = StoreHome(tmp_path / "store")
    java.open(home.path, SIZES)
    counts = []
    for number, fields in enumerate(corpus()):
        assert java.ask("put", message=message_json(**fields))["status"] == "PUT_OK"
        if number in (99, 299):
            offsets: dict[tuple[str, int], list[int]] = {}
            for row in read(spark, home, subscribePattern=".*", columns="topic,queue_id,queue_offset").collect():
                offsets.setdefault((row.topic, row.queue_id), []).append(row.queue_offset)
            assert all(sorted(found) == list(range(len(found))) for found in offsets.values())
            counts.append(sum(map(len, offsets.values())))
    assert 0 < counts[0] < counts[1]
    java.ask("close")


def test_an_export_of_a_store_that_java_wrote_has_every_message(
    spark: SparkSession, java: Peer, tmp_path: Path
) -> None:
    home = StoreHome(tmp_path / "store")
    home.path.mkdir()
    fill_with_java(java, home.path)
    with MessageStore.open(home.path, SETTINGS, read_only=True) as store:
        expected = {
            (row["topic"], row["queue_id"], row["queue_offset"]): row
            for row in stored(home, store, *(topic for topic in store.topics() if topic not in NOT_FOR_SENDING))
        }
    spec = Export(to=str(tmp_path / "lake"), once=True)
    done = export(spark, spec, JobInput(stores=(str(home.path),)))
    frames = [spark.read.parquet(spec.to)]
    if done.undecoded + done.unread:
        frames.append(spark.read.parquet(f"{spec.to}/_bad"))
    found = [row for frame in frames for row in frame.toArrow().to_pylist()]
    assert len(found) == len(expected) == done.rows + done.unread > 500
    for row in found:
        record = expected[row["topic"], row["queue_id"], row["queue_offset"]]
        same = ("msg_id", "born_timestamp", "store_timestamp", "tags", "keys", "properties", "body_crc")
        assert {name: row[name] for name in same} == {name: record[name] for name in same}
        if not row["sys_flag"] & COMPRESSED:
            assert row["body"] == record["body"]
