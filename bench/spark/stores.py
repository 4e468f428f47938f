"""The stores that are read: so many messages over several topics, with bodies that no compression makes smaller.

Each is written once, closed, and only read from then on. The one behind the broker holds the first messages of the
other, by the same rule, so that a row of one is a row of the other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import BenchFailed
from penstock.format.index_layout import IndexGeometry
from penstock.store import MessageStore, Settings

SIZE_NAMES = {128: "128 B", 1024: "1 KB"}
SIZE_IDS = {128: "128b", 1024: "1k"}
TAGS = ("TagA", "TagB")
_BATCH = 8192
_RECORD = 128
"""About what a record takes besides its body."""
_MIB = 1 << 20
_QUEUE_FILE = 6 * _MIB


class Sizes(msgspec.Struct, frozen=True):
    """How much is read."""

    messages: dict[int, int]
    """By the size of a body."""
    pulled: dict[int, int]
    """How many of them are behind the broker."""
    log_file: int
    index: IndexGeometry
    topics: tuple[str, ...] = ("orders", "payments", "shipments", "returns")
    queues: int = 4
    """Of each topic."""

    def disk(self, messages: dict[int, int]) -> int:
        """Bytes of the stores with so many messages, each with its queues and a log file made ahead."""
        files = sum(count * (body + _RECORD) // self.log_file + 2 for body, count in messages.items())
        queues = len(self.topics) * self.queues * _QUEUE_FILE
        return files * self.log_file + len(messages) * (2 * self.index.file_size + queues)

    @property
    def disk_need(self) -> int:
        """The stores, those behind brokers, and the same rows as Parquet: one copy to read and one being written."""
        rows = sum(count * (body + _RECORD) for body, count in self.messages.items())
        return self.disk(self.messages) + self.disk(self.pulled) + 2 * rows


FULL = Sizes(
    messages={128: 3_500_000, 1024: 900_000},
    pulled={128: 200_000, 1024: 200_000},
    log_file=1024 * _MIB,
    index=IndexGeometry(1_000_000, 4_000_000),
)
QUICK = Sizes(
    messages={128: 4_000, 1024: 2_000},
    pulled={128: 400, 1024: 400},
    log_file=8 * _MIB,
    index=IndexGeometry(1_000, 4_000),
    topics=("orders", "payments"),
    queues=1,
)


def settings_of(sizes: Sizes) -> dict[str, object]:
    """By RocketMQ's names: its defaults but for smaller index files, and for a slow disk's sake."""
    return {
        "mappedFileSizeCommitLog": sizes.log_file,
        "maxHashSlotNum": sizes.index.slots,
        "maxIndexNum": sizes.index.items,
        "osPageCacheBusyTimeOutMills": 60_000,
    }


def fill(path: Path, body: int, count: int, sizes: Sizes) -> None:
    """Writes a store. Raises BenchFailed if it refuses a message."""
    settings = Settings.load(pairs=[f"{name}={value}" for name, value in settings_of(sizes).items()])
    path.mkdir(parents=True)
    with MessageStore.open(path, settings) as store:
        for first in range(0, count, _BATCH):
            answer = store.put_arrow(messages(body, first, min(_BATCH, count - first), sizes))
            if not answer.ok:
                raise BenchFailed(f"a put was refused: {answer.reason}")
        store.catch_up()


def messages(body: int, first: int, count: int, sizes: Sizes) -> pa.RecordBatch:
    """The messages from a number on: topics, queues and tags in turns, one key each."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    texts = pa.array(numbers).cast(pa.string())
    data = np.random.default_rng(first).bytes(body * count)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(body)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(sizes.topics).take(pa.array(numbers % len(sizes.topics))),
            "body": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]),
            "keys": pc.binary_join_element_wise("order_", texts, ""),
            "tags": pa.array(TAGS).take(pa.array(numbers // 16 % len(TAGS))),
            "queue_id": pa.array(numbers // len(sizes.topics) % sizes.queues),
        }
    )
