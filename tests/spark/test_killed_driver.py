"""A whole Spark application, killed again and again while it streams from one store into another: each row once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.effort import chosen_seed
from support.stores import StoreHome

from penstock.store import MessageStore, Settings
from penstock.store.audit import audit

pytestmark = pytest.mark.torture

KILLS = int(os.environ.get("PENSTOCK_ROUNDS", "12"))
ROWS = 3000

SCRIPT = """
import sys
from penstock.pipeline.session import start_session
source, target, checkpoint = sys.argv[1:]
spark = start_session("killed", "local[2]")
rows = (spark.readStream.format("rocketmq")
    .options(subscribe="T", startingOffsets="earliest", maxOffsetsPerTrigger="50").load(source).select("body", "keys"))
query = (rows.writeStream.format("rocketmq").options(topic="copy", path=target, checkpointLocation=checkpoint)
    .trigger(availableNow=True).start())
query.awaitTermination()
spark.stop()
"""


def start(folder: Path, source: Path) -> subprocess.Popen[bytes]:
    """The application, with all that it starts in a group of its own."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    paths = [str(source), str(folder / "target"), str(folder / "checkpoint")]
    log = (folder / "log.txt").open("ab")
    with contextlib.closing(log):
        return subprocess.Popen([sys.executable, str(script), *paths], stdout=log, stderr=log, start_new_session=True)


def batches(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


def test_each_row_is_once_in_the_store_however_often_the_driver_is_killed(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    home = StoreHome(tmp_path / "source")
    with home.open() as store:
        for queue_id in range(3):
            home.put_numbered(store, ROWS // 3, queue_id=queue_id)
    for _ in range(KILLS):
        process = start(tmp_path, home.path)
        before = batches(tmp_path)
        while process.poll() is None and batches(tmp_path) < before + chance.randrange(1, 4):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.5)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = start(tmp_path, home.path)
    assert process.wait(240) == 0, (tmp_path / "log.txt").read_text()[-4000:]
    with MessageStore.open(tmp_path / "target", Settings(), read_only=True) as target:
        found = [
            (record.keys, record.body)
            for queue in target.queues
            for record in StoreHome.read_queue(target, queue.topic, queue.queue_id)
        ]
    assert len(found) == ROWS
    assert sorted(found) == sorted([((f"k{n}",), b"%04d" % n) for n in range(ROWS // 3)] * 3)
    assert audit(tmp_path / "target").errors == []
