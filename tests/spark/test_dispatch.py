"""Dispatch as a stream on Spark: what it builds, and a property index beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.documents import Reader, to_run
from support.stores import StoreHome, derived_files, eventually, is_one_sentence, put_mixed

from penstock.cli.main import main
from penstock.client.message import Message as ClientMessage
from penstock.client.message import ReceivedMessage
from penstock.client.sync import Producer, PullConsumer
from penstock.errors import StoreFailed, StoreInUse
from penstock.pipeline.jobs import dispatch as dispatch_module
from penstock.pipeline.jobs.dispatch import DispatchJob, dispatch
from penstock.pipeline.jobs.property_index import property_index, read_index
from penstock.protocol.bodies.queues import MessageQueue
from penstock.store import Dispatch, Message, MessageStore

SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 50, "max_index_num": 300}
EXTERNAL: dict[str, Any] = {**SMALL, "dispatch": Dispatch.EXTERNAL}


def caught_up(job: DispatchJob, store: MessageStore) -> bool:
    """Waits until everything is dispatched; a busy machine takes its time over the first batch."""
    deadline = time.monotonic() + 150
    while store.dispatcher.behind > 0 and time.monotonic() < deadline and not job.wait(0.05):
        pass
    return store.dispatcher.behind == 0


def test_the_stream_builds_what_inline_dispatch_builds_beside_a_store_that_is_written(
    spark: SparkSession, home: StoreHome, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        for start in range(0, 900, 300):
            put_mixed(twin, store, 300, start)
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 300)
        with dispatch(spark, home.path, head_start=False) as job:
            assert caught_up(job, store)
            assert [query.name for query in spark.streams.active] == [f"penstock dispatch {home.path}"]
            with pytest.raises(StoreInUse, match="stop it first"):
                dispatch(spark, home.path)
            put_mixed(home, store, 300, 300)
            assert caught_up(job, store)
        put_mixed(home, store, 300, 600)
    assert job.report().behind == 0
    assert job.report().batches >= 2
    assert job.report().driver_bytes == 0
    assert main(["pipeline", "dispatch", "--store", str(home.path), "--once", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["position"] == report["published"] > report["start"] == job.report().position
    assert spark.streams.active == []
    assert derived_files(home.path) == derived_files(twin.path)
    assert main(["pipeline", "dispatch", "--store", str(twin.path)]) == 2
    assert "start it with dispatch=external first" in capsys.readouterr().err


def runners(spark: SparkSession) -> list[int]:
    """The processes of Spark that ask Python for offsets of streams."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if b"pyspark.sql.streaming.python_streaming_source_runner" in command and java in ancestors(folder):
                found.append(int(folder.name))
    return found


def ancestors(process: Path) -> list[int]:
    found: list[int] = []
    while process.name != "0":
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        found.append(parent)
        process = Path("/proc", str(parent))
    return found


def kill_runner(spark: SparkSession) -> None:
    eventually(lambda: bool(runners(spark)), "the query has asked for its first offsets")
    for process in runners(spark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_a_query_that_loses_its_runner_starts_again_and_the_driver_builds_meanwhile(
    spark: SparkSession, home: StoreHome, caplog: pytest.LogCaptureFixture
) -> None:
    count = 0
    with home.open(**EXTERNAL) as store, dispatch(spark, home.path) as job:
        for killed in (1, 2):
            deadline, batches = time.monotonic() + 150, job.report().batches
            while job.report().batches == batches:  # what comes before the query begins is the driver's
                assert time.monotonic() < deadline, "no batch of Spark's arrives"
                put_mixed(home, store, 5, count)
                count += 5
                time.sleep(0.1)
            kill_runner(spark)
            put_mixed(home, store, 100, count)
            count += 100
            eventually(lambda killed=killed: job.report().restarts >= killed, "the query is started again")  # type: ignore[misc]
            assert caught_up(job, store)
    assert job.report().driver_bytes > 0
    assert "Spark ended the query" in caplog.text
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        put_mixed(twin, store, count)
    assert derived_files(home.path) == derived_files(twin.path)


def test_a_query_that_ends_again_and_again_ends_the_job_with_a_sentence(
    spark: SparkSession, home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home.open(**EXTERNAL) as store, dispatch(spark, home.path, head_start=False) as job:
        put_mixed(home, store, 10)
        assert caught_up(job, store), "the query has a runner"
        monkeypatch.setattr(dispatch_module, "MAX_RESTARTS", 0)
        kill_runner(spark)
        with pytest.raises(StoreFailed, match=r"Spark is gone .* start the job again; it resumes") as error:
            job.wait(120)
        assert is_one_sentence(str(error.value))


def test_a_property_index_has_every_property_once(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    target = tmp_path / "properties"
    with home.open(**EXTERNAL) as store:
        for round_ in range(2):
            for number in range(200 * round_, 200 * round_ + 200):
                store.put(Message("T", b"x", queue_id=number % 2, properties={"colour": f"c{number % 7}"}))
            store.flush()
            eventually(lambda: store.dispatcher._published[0] == store.log.max_offset, "the end is published")  # type: ignore[attr-defined]
            property_index(spark, home.path, target, once=True).awaitTermination()
            if not round_:  # half a batch of a job that was killed
                first = min(target.glob("*.parquet"))
                end = store.log.max_offset
                (target / f"{end:020d}-{end + 100:020d}.parquet").write_bytes(first.read_bytes())
    frame = read_index(spark, target)
    assert frame.where("name = 'colour'").count() == 400
    red = frame.where("name = 'colour' AND value = 'c3'").select("queue_id", "queue_offset").collect()
    assert sorted(map(tuple, red)) == sorted((n % 2, n // 2) for n in range(400) if n % 7 == 3)


def test_the_how_to_page_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = to_run("docs/how-to/external-dispatch.md", "py", "sh")
    assert [block.kind for block in blocks] == ["py", "sh", "py", "py"]
    for block in blocks:
        if block.kind == "py":
            text = block.text.replace('"data/', f'"{tmp_path}/data/')
            exec(compile(text, block.place, "exec"), names)  # the documents are ours
        else:
            assert main(shlex.split(block.text)[1:]) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broker_and_job_of_the_page_work_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = to_run("docs/how-to/external-dispatch.md", "bash")
    serve, dispatch = block.text.splitlines()
    with Reader(tmp_path) as reader:
        reader.type(serve)
        namesrv = reader.here("127.0.0.1:9876")
        order = [sys.executable, "-m", "penstock.cli.main", *shlex.split(dispatch)[1:], "--master", "local[2]"]
        with subprocess.Popen([*order, "--conf", "spark.driver.memory=768m"]) as job:
            try:
                with Producer("shop", namesrv) as producer, PullConsumer("check", namesrv) as consumer:
                    sent = producer.send(ClientMessage("orders", b"two shirts"))
                    page = eventually_found(consumer, sent.queue)
                assert [message.body for message in page] == [b"two shirts"]
            finally:
                job.terminate()
                assert job.wait(60) == 0


def eventually_found(consumer: PullConsumer, queue: MessageQueue) -> list[ReceivedMessage]:
    """What the queue shows, once the job has built it: Spark has to start first, and a busy machine takes its time."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        if found := consumer.pull(queue, 0, wait_s=1).messages:
            return list(found)
    raise AssertionError("the message was not dispatched")
