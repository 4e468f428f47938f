"""The tables of the documents, from the runs that are kept in `bench/results`: `python -m bench tables`.

A page has a table between the lines `<!-- bench:NAME -->` and `<!-- bench:NAME end -->`. NAME is a suite, whose kept
rows are all shown, or one of the short tables of this module. What stands there stays as long as nothing was kept for
it. `tests/bench/test_tables.py` checks that the pages show what the kept runs say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bench import PROJECT
from bench.report import RESULTS, Kept, as_markdown
from bench.run import Result
from bench.workspace import BenchFailed

PAGES = tuple(PROJECT / name for name in ("docs/explanation/performance.md", "README.md", "README.zh.md"))
_BETWEEN = re.compile(r"(<!-- bench:([\w-]+) -->\n)(.*?)(<!-- bench:\2 end -->\n)", re.DOTALL)
_SKIPPED = "soak.json"
"""Its own program writes it, and its chart: see `bench.soak`."""


def suite_table(kept: Kept) -> str:
    """All kept rows of a suite, those of one run together, each with machine, versions and command."""
    return "\n\n".join(as_markdown(run) for run in reversed(kept.runs)) + "\n"


# -- the short table -----------------------------------------------------------------------------------------


class Line(msgspec.Struct, frozen=True):
    """One line of the short table: the ratios of some rows of a suite."""

    suite: str
    rows: tuple[str, ...]
    english: tuple[str, str]
    """What was measured, and beside what."""
    chinese: tuple[str, str]


_JAVA_STORE = ("RocketMQ's store", "RocketMQ 的存储")
_JAVA_BROKER = ("RocketMQ's broker", "RocketMQ 的 Broker")
SHORT: tuple[Line, ...] = (
    Line(
        "recovery",
        ("restart-1k", "restart-100b"),
        ("restart after a kill, 2 GB of log, 1 KB / 100 B", _JAVA_STORE[0]),
        ("被杀死后重启，2 GB 日志，1 KB / 100 B", _JAVA_STORE[1]),
    ),
    Line(
        "recovery",
        ("rebuild-1k", "rebuild-100b"),
        ("rebuild of queues and index, one process, 1 KB / 100 B", _JAVA_STORE[0]),
        ("单进程重建队列与索引，1 KB / 100 B", _JAVA_STORE[1]),
    ),
    Line(
        "broker",
        ("send-128b-1", "send-128b-16", "send-128b-64"),
        ("send through the protocol, 128 B, 1 / 16 / 64 in flight", _JAVA_BROKER[0]),
        ("通过协议发送，128 B，在途 1 / 16 / 64", _JAVA_BROKER[1]),
    ),
    Line(
        "broker",
        ("consume-128b", "consume-1k"),
        ("consume, 128 B / 1 KB", _JAVA_BROKER[0]),
        ("消费，128 B / 1 KB", _JAVA_BROKER[1]),
    ),
    Line(
        "broker",
        ("endToEndLatency99pct",),
        ("end to end at 2,000 a second, p99", _JAVA_BROKER[0]),
        ("每秒 2,000 条时端到端 p99", _JAVA_BROKER[1]),
    ),
    Line(
        "producer",
        ("producer-128b-64", "producer-128b-64-cpu"),
        ("RocketMQ's own Producer, 64 threads, 128 B: rate / CPU time of the broker", _JAVA_BROKER[0]),
        ("RocketMQ 自带的 Producer，64 线程，128 B：速率 / Broker 的 CPU 时间", _JAVA_BROKER[1]),
    ),
    Line(
        "replication",
        ("sync-send-64", "catch-up-rate"),
        ("SYNC_MASTER, send 1 KB, 64 in flight / a new slave copies 2 GB", _JAVA_BROKER[0]),
        ("SYNC_MASTER，发送 1 KB，在途 64 / 新的 slave 复制 2 GB", _JAVA_BROKER[1]),
    ),
    Line(
        "store",
        ("put-1k-1t", "put-100b-1t"),
        ("put from Python, one thread, 1 KB / 100 B", "RocketMQ's store, in Java"),
        ("在 Python 中单线程写入，1 KB / 100 B", "Java 中的 RocketMQ 存储"),
    ),
    Line(
        "spark",
        ("count-128b-broker", "count-log-128b-broker"),
        ("count on Spark from the store's files, 128 B: by queue / by log", "the same through a broker"),
        ("在 Spark 上由存储文件计数，128 B：按队列 / 按日志", "通过 Broker 做同样的事"),
    ),
    Line(
        "spark",
        ("count-128b-ready", "count-1k-ready"),
        (
            "count on Spark, one column, 128 B / 1 KB",
            "upper bound: a Spark source returning prebuilt batches",
        ),
        ("在 Spark 上计数，一列，128 B / 1 KB", "上限：只返回现成批次的 Spark 数据源"),
    ),
)
_HEADS = {"short": ("Compared with", "Ratio"), "short-zh": ("对照", "比值")}


def short_table(name: str, kept: Mapping[str, Mapping[str, Result]]) -> str | None:
    """The ratios that a reader with a minute wants, as far as full runs measured them. None if none of them did."""
    lines: list[str] = []
    for line in SHORT:
        found = [kept.get(line.suite, {}).get(row) for row in line.rows]
        ratios = [each.ratio.value for each in found if each is not None and each.ratio is not None]
        if len(ratios) < len(line.rows):
            continue
        what, beside = line.english if name == "short" else line.chinese
        lines.append(f"| {what} | {beside} | {' / '.join(ratio_text(ratio) for ratio in ratios)} |")
    heads = [f"| | {' | '.join(_HEADS[name])} |", "|---|---|---|"]
    return "\n".join(heads + lines) + "\n" if lines else None


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"


# -- pages ---------------------------------------------------------------------------------------------------


def tables(folder: Path = RESULTS) -> Callable[[str], str | None]:
    """What gives the table of a name; None if nothing was kept for it."""
    kept = {path.stem: Kept.load(path.stem, folder) for path in folder.glob("*.json") if path.name != _SKIPPED}
    results = {suite: each.results() for suite, each in kept.items()}

    def table(name: str) -> str | None:
        if name in _HEADS:
            return short_table(name, results)
        return suite_table(kept[name]) if name in kept else None

    return table


def filled(text: str, table: Callable[[str], str | None]) -> str:
    """A page with its tables as the kept runs have them."""

    def fill(found: re.Match[str]) -> str:
        made = table(found[2])
        return found[0] if made is None else f"{found[1]}{made}{found[4]}"

    return _BETWEEN.sub(fill, text)


def write_tables() -> list[Path]:
    """Rewrites the tables of the documents; returns the pages that changed. Raises BenchFailed for lost results."""
    table, changed = tables(), []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if not _BETWEEN.search(before):
            raise BenchFailed(f"{page.name} has no place for a table: lines such as '<!-- bench:store -->'")
        after = filled(before, table)
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed
