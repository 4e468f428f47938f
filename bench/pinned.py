"""Processes that may use a number of cores and no more, each with a Spark session: driver, Java and workers alike.

    pinned = Pinned(2, folder)
    pinned.ask("bench.pipeline:usage_on_spark", path=...)  # calls that function(spark, path=...) in the process

The process pins itself before it starts anything, so that all it starts is pinned as well. It and its session start
with the first question; a session's start is not in the seconds of any answer. `python -m bench.pinned FOLDER CORE ...`
is the process: a line of JSON in, a line of JSON out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bench import PROJECT
from bench.run import cpu_seconds, process_tree
from bench.workspace import BenchFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOWN_WITHIN_S = 60.0
_SAMPLE_S = 0.1


class Pinned:
    """A process on `cores` cores; Spark writes below `folder`. `stop` ends it."""

    def __init__(self, cores: int, folder: Path) -> None:
        self._cores = cores
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def ask(self, name: str, **given: Any) -> dict[str, Any]:
        """What `name` returned, with `seconds`, `cpu` and the `memory` of Python. Raises BenchFailed with its error."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"call": name, "given": given}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed("a pinned process has ended") from None
        said = process.stdout.readline()
        if not said:
            raise BenchFailed(f"a pinned process ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise BenchFailed(answer["error"])
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            there = sorted(os.sched_getaffinity(0))
            if len(there) < self._cores:
                raise BenchFailed(f"this takes {self._cores} cores, and {len(there)} may be used")
            cores = [str(core) for core in there[: self._cores]]
            order = [sys.executable, "-m", "bench.pinned", str(self._folder), *cores]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(order, cwd=PROJECT, stdin=pipe, stdout=pipe, text=True)
        return self._process

    @property
    def cpu(self) -> float:
        """CPU seconds of the process and all that it has started, since its start."""
        return 0.0 if self._process is None else cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """Does nothing if nothing runs."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Given:
    """The same with a session that exists already, unpinned: for tests."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def ask(self, name: str, **given: Any) -> dict[str, Any]:
        return call(self._spark, name, given)

    def stop(self) -> None:
        """The session belongs to the caller."""


def call(spark: SparkSession | None, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Calls `module:function(spark, **given)`."""
    module, _, function = name.partition(":")
    called = getattr(importlib.import_module(module), function)
    with _Memory() as memory:
        cpu, started = cpu_seconds(os.getpid()), time.perf_counter()
        returned = called(spark, **given)
        took = time.perf_counter() - started
        cpu = cpu_seconds(os.getpid()) - cpu
    return {**returned, "seconds": took, "cpu": cpu, "memory": memory.most}


class _Memory:
    """The peak of anonymous memory of this process and the Python processes below it, in a `with` block.

    Mapped files are not counted, and neither is Java's heap.
    """

    def __init__(self) -> None:
        self.most = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        self.most = self._held()
        while not self._ending.wait(_SAMPLE_S):
            self.most = max(self.most, self._held())

    def _held(self) -> int:
        found = [pid for pid, each in process_tree(os.getpid()) if each.name.startswith("python")]
        return sum(anonymous_bytes(pid) for pid in found)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that no file backs; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(said.get("RssAnon", "0 kB").split()[0]) * 1024


def serve(folder: str, cores: list[str], orders: TextIO, answers: TextIO) -> None:
    """Answers questions until its input ends."""
    os.sched_setaffinity(0, {int(core) for core in cores})
    spark: SparkSession | None = None
    for line in orders:
        order = json.loads(line)
        try:
            spark = spark or _session(folder, len(cores))
            answer = call(spark, order["call"], order["given"])
        except Exception as error:  # any error goes to the process that asked
            answer = {"error": f"{order['call']}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    if spark is not None:
        spark.stop()


def _session(folder: str, cores: int) -> SparkSession:
    from penstock.pipeline.session import start_session

    places = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    conf = {**places, "spark.driver.memory": "1g"}
    return start_session("penstock bench", f"local[{cores}]", conf, light_java=True)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what Java prints must not be read as an answer
        serve(sys.argv[1], sys.argv[2:], sys.stdin, out)
