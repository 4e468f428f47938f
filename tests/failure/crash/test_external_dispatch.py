"""A broker that only appends, under load, while the job that builds its queues is killed and started again.

In `make test` the job is a process that runs the same batches without Spark; `make torture` has the whole of it:
`penstock serve`, and `penstock pipeline dispatch` as an application of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import TESTS
from support.effort import chosen_seed
from support.stores import build_all, derived_files

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer, PullConsumer
from penstock.store import MessageStore, Settings
from penstock.store.external_dispatch.files_shared_with_job import read_mark
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.file_io import Files
from penstock.testing import broker

QUEUES = 4
JOB = """
import sys, time
sys.path.insert(0, sys.argv[2])
from support.stores import build_all
from penstock.store.external_dispatch.queue_and_index_builder import Builder
builder = Builder.open(sys.argv[1])
while True:
    build_all(builder, step=20_000)
    time.sleep(0.001)
"""


class Job:
    """A job that is killed, with all that it started, and started again."""

    def __init__(self, store: Path, command: list[str]) -> None:
        self._command = command
        self._done = store / "penstock" / "dispatch.done"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, start_new_session=True)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the job has ended by itself"
        self.end()

    def end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def position(self) -> int:
        mark = read_mark(Files(), self._done)
        return 0 if mark is None else mark.position

    def wait_for_progress(self, seconds: float) -> None:
        """Until it has built something, or there was nothing to build for so long."""
        before, deadline = self.position, time.monotonic() + seconds
        while self.position == before and time.monotonic() < deadline:
            time.sleep(0.002)


class Load:
    """Sends numbered messages to a topic's queues, and remembers what was acknowledged, in order, by queue."""

    def __init__(self, namesrv: str, seed: int) -> None:
        self._namesrv = namesrv
        self._chance = random.Random(seed)
        self.stopped = threading.Event()
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Producer("load", self._namesrv) as producer:
            queues = producer.queues("T")
            number = 0
            while not self.stopped.is_set():
                queue = self._chance.choice(queues)
                message = Message("T", b"%d" % number, keys=(f"k{number}",), tags="red" if number % 2 else "")
                assert producer.send(message, queue=queue).ok
                self.sent[queue.queue_id].append(message.body)
                number += 1


class Reader:
    """Polls all queues with long polls, and remembers what came, in order, by queue."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.stopped = threading.Event()
        self.got: dict[int, list[bytes]] = defaultdict(list)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with PullConsumer("reader", self._namesrv) as consumer:
            consumer.assign(consumer.queues("T"))
            while not self.stopped.is_set():
                for message in consumer.poll(0.5):
                    self.got[message.queue_id].append(message.body)


def run(
    store: Path, namesrv: str, command: list[str], kills: int, least: int, patience: float
) -> dict[int, list[bytes]]:
    """Load, a reader, and a job that is killed so often; what was sent and read."""
    seed = chosen_seed()
    chance = random.Random(seed)
    load, reader, job = Load(namesrv, seed), Reader(namesrv), Job(store, command)
    job.start()
    load.thread.start()
    reader.thread.start()
    try:
        for _ in range(kills):
            job.wait_for_progress(patience)
            time.sleep(chance.random() * 0.3)
            job.kill()
            job.start()
        deadline = time.monotonic() + 60
        while sum(map(len, load.sent.values())) < least and time.monotonic() < deadline:
            time.sleep(0.01)
        load.stopped.set()
        load.thread.join()
        deadline = time.monotonic() + patience * 4
        while reader.got != load.sent and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        for each in (load, reader):
            each.stopped.set()
            each.thread.join()
        job.end()
    assert sum(map(len, load.sent.values())) >= least
    assert dict(reader.got) == dict(load.sent), "every message once, and in order"
    return load.sent


def assert_files_are_those_of_inline_dispatch(store: Path) -> None:
    with Builder.open(store) as builder:
        build_all(builder)
    twin = store.with_name("twin")
    shutil.copytree(store / "commitlog", twin / "commitlog")
    MessageStore.open(twin, Settings.dev()).close()
    assert derived_files(store) == derived_files(twin)


@pytest.mark.parametrize(("flush", "least"), [("ASYNC_FLUSH", 1500), ("SYNC_FLUSH", 400)])
def test_the_job_is_killed_again_and_again(tmp_path: Path, flush: str, least: int) -> None:
    settings = {"dispatch": "external", "flushDiskType": flush}
    command = [sys.executable, "-c", JOB, str(tmp_path / "store"), str(TESTS)]
    with broker({"T": QUEUES}, store_path=tmp_path / "store", settings=settings) as served:
        run(
            tmp_path / "store",
            served.namesrv,
            command,
            kills=3,
            least=1500 if flush == "ASYNC_FLUSH" else 400,
            patience=15,
        )
    assert_files_are_those_of_inline_dispatch(tmp_path / "store")


@contextlib.contextmanager
def serving(store: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--json", "--log-level", "error"]
    command += ["--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0", "--console", "off"]
    command += ["--store", str(store), "--set", "dispatch=external"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.torture
@pytest.mark.timeout(3600)  # each start of Spark takes its time
def test_the_job_on_spark_is_killed_again_and_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "dispatch", "--store", str(store)]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--json"]
    kills = int(os.environ.get("PENSTOCK_ROUNDS", "6"))
    with serving(store) as where:
        with Admin(where["namesrv"]) as admin:
            admin.topics.create("T", read_queues=QUEUES, write_queues=QUEUES)
        run(store, where["namesrv"], command, kills=kills, least=3000, patience=180)
    assert_files_are_those_of_inline_dispatch(store)
