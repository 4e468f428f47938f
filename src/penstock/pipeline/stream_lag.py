"""How far streaming queries over `format("rocketmq")` are behind: messages, bytes and seconds, by query and topic.

    spark.streams.addListener(StreamLag("/var/lib/node_exporter/penstock.prom"))
    lag(query.lastProgress)

A query's progress has its own offsets and the ends of the queues at that time. Messages behind are exact. Bytes are the
messages times the mean size of those in the last micro-batch; 0 until there was one. Seconds are the age of the last
message that was read, where others wait behind it: the lag is at most this long. A source that is none of ours is left
out. Needs pyspark for `StreamLag`. Spark calls a listener in one thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.pipeline.options import MEAN_SIZES
from penstock.pipeline.stream_source import from_json, proof_of

log = logging.getLogger("penstock.pipeline")


class TopicLag(NamedTuple):
    """What a query has not yet read of one topic."""

    query: str
    """The query's name, or its id if it has none."""
    topic: str
    """Empty if the query reads a log (order=log); `messages` is then 0."""
    messages: int
    size: int
    """Bytes: exact for a log, otherwise estimated."""
    seconds: float
    """The age of the last message read if others wait; 0 if none wait or the age is unknown."""


def lag(progress: Any) -> list[TopicLag]:
    """Returns the lag that a query's progress shows, by topic. `progress` is `query.lastProgress` or a listener's."""
    if progress is None:
        return []
    document = progress if isinstance(progress, Mapping) else msgspec.json.decode(progress.json)
    now = datetime.fromisoformat(document["timestamp"]).timestamp() * 1000
    query = document.get("name") or document["id"]
    return [found for source in document["sources"] for found in _source_lag(query, source, now)]


def _source_lag(query: str, source: Mapping[str, Any], now_ms: float) -> Iterator[TopicLag]:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or latest is None or MEAN_SIZES not in latest:
        return
    read, ends, proof = from_json(end), from_json(latest), proof_of(end)
    behind: dict[str, int] = {}
    oldest: dict[str, float] = {}
    for queue, stop in ends.items():
        count = max(stop - read.get(queue, 0), 0)
        behind[queue.topic] = behind.get(queue.topic, 0) + count
        if count and queue in proof.read and proof.read[queue].store_timestamp >= 0:
            oldest[queue.topic] = min(oldest.get(queue.topic, now_ms), proof.read[queue].store_timestamp)
    for topic, count in sorted(behind.items()):
        seconds = max(now_ms - oldest.get(topic, now_ms), 0.0) / 1000
        size = count * int(latest[MEAN_SIZES].get(topic, 0)) if topic else count
        yield TopicLag(query, topic, count if topic else 0, size, seconds)


def _offsets(value: object) -> dict[str, Any] | None:
    """Returns a source's offsets; None if they are not those of `format("rocketmq")`."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.MsgspecError:
            return None
    return value if isinstance(value, dict) else None


_METRICS: Final = (
    ("penstock_stream_lag_messages", "Messages that the query has not read yet.", 2),
    ("penstock_stream_lag_bytes", "Estimated bytes of these messages.", 3),
    ("penstock_stream_lag_seconds", "Age of the last message read, if others wait.", 4),
)


class StreamLag(StreamingQueryListener):
    """Logs the lag of each query after each micro-batch, and writes it as metrics.

    `metrics_file` is a file for Prometheus's textfile collector. It is replaced as a whole, and has the queries that
    are running. Without it, `lags` has the same for a program to export.
    """

    def __init__(self, metrics_file: str | Path | None = None) -> None:
        self._file = None if metrics_file is None else Path(metrics_file)
        self._by_run: dict[str, list[TopicLag]] = {}

    @property
    def lags(self) -> list[TopicLag]:
        """The lag of all running queries at their last micro-batch."""
        return [each for found in self._by_run.values() for each in found]

    def onQueryStarted(self, event: Any) -> None:
        """Does nothing: a query has no progress yet."""

    def onQueryProgress(self, event: Any) -> None:
        found = lag(event.progress)
        for each in found:
            log.info(
                "rocketmq: query %s is %d messages (%d bytes, %.0f s) behind in topic %s",
                each.query, each.messages, each.size, each.seconds, each.topic or "(log)",
            )  # fmt: skip
        self._by_run[str(event.progress.runId)] = found
        self._write()

    def onQueryIdle(self, event: Any) -> None:
        """Does nothing: an idle query is where its last progress says."""

    def onQueryTerminated(self, event: Any) -> None:
        self._by_run.pop(str(event.runId), None)
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            temporary.write_text(metrics_text(self.lags))
            temporary.replace(self._file)
        except OSError as error:
            log.warning("rocketmq: the lag was not written to %s: %s", self._file, error)


def metrics_text(lags: list[TopicLag]) -> str:
    """Returns the lags in Prometheus's text format."""
    lines = []
    for name, meaning, field in _METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        lines += [f'{name}{{query="{_label(each.query)}",topic="{_label(each.topic)}"}} {each[field]}' for each in lags]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
