"""The suite `sql`: queries of `penstock sql` over a store of 2 GB, on two cores beside one.

Each run is a process of its own, pinned to its cores, over files that are in memory. *Query*: from a session that is
open to the last row. *Process*: the whole command, from the start of Python on. CPU seconds are user and system time
of the process; its memory is the peak of its resident pages, mapped files included.

`python -m bench.sql STORE CORES QUERY` is the process of a query: one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from bench import PROJECT
from bench.run import OURS, Goal, Row, Run, Task, no_peer
from bench.spark import Sizes as StoreSizes
from bench.spark import fill
from bench.workspace import GIB, MIB, BenchFailed
from penstock.format.index_layout import IndexGeometry

ONE = "one core"
BODY = 1024
QUERIES = {
    "tags": ("count by tag", "SELECT tags, count(*) AS n FROM log GROUP BY tags ORDER BY tags"),
    "topic": ("count by tag of a topic", "SELECT tags, count(*) AS n FROM orders GROUP BY tags ORDER BY tags"),
    "bytes": ("bytes by topic", "SELECT topic, sum(octet_length(body)) AS n FROM log GROUP BY topic ORDER BY topic"),
    "text": ("text in bodies", "SELECT count(*) AS n FROM log WHERE body_text LIKE '%no such text%'"),
}
FULL = StoreSizes(messages={BODY: 1_750_000}, pulled={}, log_file=GIB, index=IndexGeometry(1_000_000, 4_000_000))
QUICK = StoreSizes(messages={BODY: 4_000}, pulled={}, log_file=8 * MIB, index=IndexGeometry(1_000, 4_000))


class SqlSuite:
    """See the module."""

    name = "sql"
    summary = "SQL over a store by DuckDB, on two cores beside one."
    sides = ("Two cores", "One core")

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        store = partial(_store, folder / "sql", QUICK if quick else FULL)
        found = []
        for name, (title, query) in QUERIES.items():
            first = name == "tags"
            rows = (
                Row(name, title, "s", Goal("ratio at least", 1 / 0.6) if first else None, True, beside=ONE),
                Row(
                    f"{name}-cpu",
                    f"{title}: CPU of the query",
                    "s",
                    Goal("at most", 0.5) if first else None,
                    True,
                    beside=ONE,
                    figure="cpu",
                ),
                Row(
                    f"{name}-process",
                    f"{title}: CPU of the process",
                    "s",
                    Goal("at most", 1.0) if first else None,
                    True,
                    beside=ONE,
                    figure="process",
                ),
                Row(
                    f"{name}-memory",
                    f"{title}: peak memory",
                    "bytes",
                    Goal("at most", 300e6),
                    True,
                    has_ratio=False,
                    beside=ONE,
                    figure="memory",
                ),
            )
            found.append(Task(name, rows, {OURS: partial(_ask, store, 2, query), ONE: partial(_ask, store, 1, query)}))
        return found

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Every run ends its own process."""


def _store(folder: Path, sizes: StoreSizes) -> Path:
    if not folder.exists():
        fill(folder, BODY, sizes.messages[BODY], sizes)
    return folder


class _Answer(msgspec.Struct):
    seconds: float
    cpu: float
    memory: int
    lines: int


def _ask(store: partial[Path], cores: int, query: str) -> Run:
    asked, process = _run(store(), cores, query), _process_cpu(store(), cores, query)
    figures = {"value": asked.seconds, "cpu": asked.cpu, "process": process, "memory": float(asked.memory)}
    return Run(figures, {"rows": asked.lines}, asked.cpu)


def _process_cpu(store: Path, cores: int, query: str) -> float:
    """The CPU seconds of the command itself."""
    command = [sys.executable, "-m", "penstock.cli.main", "sql", str(store), query, "--threads", str(cores)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=partial(_pin, cores))
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise BenchFailed("the command `penstock sql` failed")
    return used.ru_utime + used.ru_stime


def _pin(cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _run(store: Path, cores: int, query: str) -> _Answer:
    command = [sys.executable, "-m", "bench.sql", str(store), str(cores), query]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if ended.returncode:
        raise BenchFailed(f"a query failed: {ended.stderr.strip().splitlines()[-1]}")
    return msgspec.json.decode(ended.stdout, type=_Answer)


# -- the process -------------------------------------------------------------------------------------------------------


def _of_query(store: str, cores: int, query: str) -> tuple[float, float, int]:
    from penstock.pipeline.arrow_scan import ScanOptions
    from penstock.sql.duckdb_engine import SqlSession

    with SqlSession(ScanOptions(paths=(store,), threads=cores)) as session:
        began, cpu = time.perf_counter(), time.process_time()
        rows = sum(result.read_all().num_rows for result in session.run(query))
        return time.perf_counter() - began, time.process_time() - cpu, rows


def _peak() -> int:
    """The peak of the resident memory of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024


if __name__ == "__main__":
    _, _store_path, _cores, _query = sys.argv
    _pin(int(_cores))
    _seconds, _cpu, _rows = _of_query(_store_path, int(_cores), _query)
    print(json.dumps({"seconds": _seconds, "cpu": _cpu, "memory": _peak(), "lines": _rows}))
