"""What tests with Spark share: reading with options, and comparing rows with what the store itself returns."""

from __future__ import annotations

import re
from typing import Any

import pytest
from arrow_batches import expected_row
from pyspark.sql import DataFrame, SparkSession
from store_home import StoreHome

from penstock.store import MessageStore

_SENTENCE = re.compile(r"rocketmq: (.*?)\s*(SQLSTATE: \w+)?$")


def read(spark: SparkSession, home: StoreHome | str, **options: Any) -> DataFrame:
    """A batch read of a store."""
    path = str(home.path) if isinstance(home, StoreHome) else home
    return spark.read.format("rocketmq").options(**options).load(path)


def rows(frame: DataFrame, *by: str) -> list[dict[str, Any]]:
    """The rows of a frame, in the order of some columns."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: tuple(row[name] for name in by))


def stored(home: StoreHome, store: MessageStore, *topics: str) -> list[dict[str, Any]]:
    """What the store itself returns of some topics, as rows, queue by queue."""
    store.catch_up()
    return [
        {**expected_row(record), "broker": home.path.name}
        for queue in store.queues
        if queue.topic in topics
        for record in home.read_queue(store, queue.topic, queue.queue_id)
    ]


QUEUE_ORDER = "topic", "queue_id", "queue_offset"


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The one sentence that a user sees; fails if a traceback comes with it."""
    text = str(error.value).split("\n\nJVM stacktrace")[0].split("JVM stacktrace:")[0].strip()
    assert "Traceback" not in text, text
    found = [match[1] for line in text.splitlines() if (match := _SENTENCE.search(line.strip()))]
    assert len(found) == 1, text
    return found[0]
