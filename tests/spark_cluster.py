"""A standalone cluster of Spark on this machine: a master, and two workers of one core each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The master's address; on free ports of loopback, ended afterwards."""
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    log = (folder / "cluster.log").open("wb")
    environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK
    del environment["SPARK_CONF_DIR"]  # the master is not to be quiet: it says where it listens
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        started.append(subprocess.Popen([launcher, *arguments], stdout=log, stderr=log, env=environment))

    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        start("org.apache.spark.deploy.master.Master", *here, "--port", "0")
        master = _wait_for_master(folder / "cluster.log", started[0])
        for number in range(2):
            work = str(folder / f"work{number}")
            start("org.apache.spark.deploy.worker.Worker", *here, "-c", "1", "-m", "768m", "-d", work, master)
        yield master
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)
        log.close()


def _wait_for_master(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The address that the master chose."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("spark://127.0.0.1:"):
                return word.rstrip(".,")
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))
