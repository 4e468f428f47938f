"""A standalone cluster of which one worker does not see the store's folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.spark import may_mount, standalone_cluster
from support.stores import StoreHome

_DRIVER = """
import sys
from pyspark.sql import SparkSession

master, path, fail = sys.argv[1:]
settings = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    "spark.task.maxFailures": "1", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s", "spark.ui.enabled": "false",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executorEnv.PYTHONPATH": "",
}
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
frame = spark.read.format("rocketmq").options(subscribe="T", failOnDataLoss=fail, minPartitions="8").load(path)
try:
    print("ROWS", frame.count())
except Exception as error:
    print("ERROR", error)
"""


@pytest.mark.rest
@pytest.mark.timeout(420)
@pytest.mark.skipif(not may_mount(), reason="it mounts an empty folder in a namespace of its own, as root")
def test_a_worker_that_does_not_see_the_store_ends_the_read_whatever_fail_on_data_loss_says(
    home: StoreHome, tmp_path: Path
) -> None:
    with home.open() as store:
        for queue_id in range(8):
            home.put_numbered(store, 100, queue_id=queue_id)
    with standalone_cluster(tmp_path, hidden=[home.path]) as master:
        driver = [sys.executable, "-c", _DRIVER, master, str(home.path), "false"]
        ran = subprocess.run(driver, capture_output=True, text=True, timeout=360, env=dict(os.environ), check=False)
    assert "ROWS" not in ran.stdout, "rows are missing, and nothing says so"
    assert f"the host {socket.gethostname()} does not see the log's files" in ran.stdout, ran.stdout + ran.stderr
    assert str(home.path / "commitlog") in ran.stdout
