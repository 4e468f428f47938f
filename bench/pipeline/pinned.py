"""Processes that may use so many cores and no more, each with a Spark session: driver, Java and workers alike.

    pinned = Pinned(2, folder)
    pinned.ask("bench.pipeline.rebuild", path=...)      # calls that module's in_session(spark, path=...) over there
    pinned.ask("bench.pipeline.scans:usage", path=...)  # or another function

The process pins itself before it starts anything, so that all it starts is pinned as well. It and its session start
when they are first asked something; a session's start is in no answer's seconds.

The process is `bench.pipeline.process`: a line of JSON in, a line of JSON out.
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
from bench.harness import BenchFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOWN_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1


class Pinned:
    """A process on `cores` cores, with what Spark writes below `folder`. Ended by `stop`."""

    def __init__(self, cores: int, folder: Path) -> None:
        self._cores = cores
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def ask(self, name: str, **given: Any) -> dict[str, Any]:
        """What `name` gave, its `seconds`, and the `memory` of Python meanwhile. Raises BenchFailed with its error."""
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
            order = [sys.executable, "-m", "bench.pipeline.process", str(self._folder), *cores]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(order, cwd=PROJECT, stdin=pipe, stdout=pipe, text=True)
        return self._process

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
    """The same with a session that is there already, unpinned: for tests."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def ask(self, name: str, **given: Any) -> dict[str, Any]:
        return call(self._spark, name, given)

    def stop(self) -> None:
        """The session is somebody else's."""


def call(spark: SparkSession | None, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Calls `module:function(spark, **given)`, `in_session` if no function is named."""
    module, _, function = name.partition(":")
    called = getattr(importlib.import_module(module), function or "in_session")
    with _Memory() as memory:
        started = time.perf_counter()
        told = called(spark, **given)
        took = time.perf_counter() - started
    return {**told, "seconds": took, "memory": memory.most}


class _Memory:
    """The most that this process and the Python processes below it held of their own at one time, in a `with` block.

    What they have mapped of files is not theirs, and neither is Java's heap.
    """

    def __init__(self) -> None:
        self.most = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        self.most = _held()
        while not self._ending.wait(_LOOK_EVERY_S):
            self.most = max(self.most, _held())

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()


def _held() -> int:
    """Bytes of memory that no file backs, of this process and of all Python processes below it."""
    below: dict[int, list[int]] = {}
    held: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # it has ended
            continue
        said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        below.setdefault(int(said["PPid"]), []).append(int(folder.name))
        if said["Name"].startswith("python"):
            held[int(folder.name)] = int(said.get("RssAnon", "0 kB").split()[0]) * 1024
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += held.get(process, 0)
        waiting += below.get(process, [])
    return total


def serve(folder: str, cores: list[str], orders: TextIO, answers: TextIO) -> None:
    """Does as it is asked until nobody asks any more."""
    os.sched_setaffinity(0, {int(core) for core in cores})
    spark: SparkSession | None = None
    for line in orders:
        order = json.loads(line)
        try:
            spark = spark or _session(folder, len(cores))
            answer = call(spark, order["call"], order["given"])
        except Exception as error:  # whatever it is, the one who asked is to read it
            answer = {"error": f"{order['call']}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    if spark is not None:
        spark.stop()


def _session(folder: str, cores: int) -> SparkSession:
    from penstock.pipeline.session import start_session

    places = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    conf = {**places, "spark.driver.memory": "1g"}
    return start_session("penstock bench", f"local[{cores}]", conf, light_java=True)
