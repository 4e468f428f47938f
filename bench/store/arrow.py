"""Arrow record batches: into the store, beside Java's batches of 32; and the log handed out as Arrow.

An Arrow batch goes in whole, so it is measured twice: with the columns built each time, as Java builds its messages,
and with the columns given, as where they come from a file or from Spark. The goal stands on the first.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

import numpy as np
from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import PREFIX, QUEUES, SIZE_IDS, SIZE_NAMES, TAG, TOPIC, Ground, body_of, check
from bench.store.lists import LIST
from penstock.store import MessageStore

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192


def lacking(method: str) -> str:
    """Why the store cannot do this with Arrow, empty if it can."""
    if not hasattr(MessageStore, method):
        return f"MessageStore has no {method}"
    return "" if importlib.util.find_spec("pyarrow") else "pyarrow is not installed"


def build_batch(body: bytes, first: int, count: int) -> pa.RecordBatch:
    """The messages from number `first` on, as columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pa.array(np.arange(first, first + count, dtype=np.int32))
    columns = {
        "topic": pa.repeat(TOPIC, count),
        "body": pa.array([body] * count, pa.binary()),
        "keys": pc.binary_join_element_wise(PREFIX, pc.cast(numbers, pa.string()), ""),
        "tags": pa.repeat(TAG, count),
        "queue_id": pc.bit_wise_and(numbers, pa.scalar(QUEUES - 1, pa.int32())),
    }
    return pa.RecordBatch.from_pydict(columns)


class PutArrow(Scenario):
    """Batches of 8,192 rows into a new store."""

    group = "arrow"

    def __init__(self, ground: Ground, size: int, *, built: bool) -> None:
        self._ground = ground
        self._size = size
        self._built = built
        self._count = ground.sizes.messages[size]
        how = "" if built else ", columns given"
        self._row = Row(
            f"arrow-{SIZE_IDS[size]}{'' if built else '-given'}",
            f"put Arrow batches, {SIZE_NAMES[size]}{how} (Java: batches of {LIST})",
            "messages/s",
            Goal("ratio at least", 2) if built else None,
        )
        self.rows = (self._row,)

    def not_yet(self) -> str:
        return lacking("put_arrow")

    def ours(self) -> Run:
        body = body_of(self._size)
        pieces = [(first, min(BATCH_ROWS, self._count - first)) for first in range(0, self._count, BATCH_ROWS)]
        given = {} if self._built else {first: build_batch(body, first, rows) for first, rows in pieces}
        failed = 0
        with self._ground.fresh() as store:
            started = time.perf_counter()
            for first, rows in pieces:
                batch = build_batch(body, first, rows) if self._built else given[first]
                if not store.put_arrow(batch).ok:
                    failed += rows
            took = time.perf_counter() - started
            check(failed, self._count)
            return self._run(took, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer):
            answer = self._ground.ask(peer, "batch", size=self._size, count=self._count, batch=LIST)
            return self._run(answer["seconds"], answer["log_bytes"])

    def _run(self, seconds: float, log_bytes: int) -> Run:
        return Run({self._row.name: self._count / seconds}, {"messages": self._count, "log bytes": log_bytes})


class LogToArrow(Scenario):
    """All of a log as record batches, with all columns; one thread. Java has nothing like it."""

    group = "arrow"

    def __init__(self, ground: Ground, size: int) -> None:
        self._ground = ground
        self._size = size
        self._row = Row(f"log-arrow-{SIZE_IDS[size]}", f"log to Arrow, {SIZE_NAMES[size]}", "messages/s")
        self.rows = (self._row,)

    def not_yet(self) -> str:
        return lacking("log_arrow")

    def ours(self) -> Run:
        with self._ground.opened(self._size) as store:
            started = time.perf_counter()
            batch, offset = store.log_arrow()
            rows = batch.num_rows
            while batch.num_rows:
                batch, offset = store.log_arrow(offset)
                rows += batch.num_rows
            took = time.perf_counter() - started
        return Run({self._row.name: rows / took}, {"messages": rows})
