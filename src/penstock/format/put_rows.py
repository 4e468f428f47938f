"""The messages of a put as one table: a PUT_ROW per message, and the bytes that the rows point into.

`plan_puts` builds the table from columns of messages. The log writes the table in one pass. Planning checks every
message, so every planned table can be written. Pure functions, except that `encode` writes into its buffer `out`.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.constants import MIN_RECORD_SIZE, SCHEDULE_TOPIC
from penstock.format.hosts import IPV4_HOST_SIZE
from penstock.format.kernel_row_types import PUT_ROW
from penstock.format.kernels import Buffer, Ints, ListColumn, Longs, MapColumn, PutTable, TextColumn, WritableBuffer
from penstock.format.sys_flag import with_hosts
from penstock.format.topics import is_legal_topic

_FIXED_SIZE: Final = MIN_RECORD_SIZE - 2 * IPV4_HOST_SIZE
_RANGES: Final = {
    "queue_id": (0, 2**31 - 1),
    "flag": (-(2**31), 2**31 - 1),
    "born_timestamp": (0, 2**63 - 1),
    "delay_level": (1 - 10**10, 10**10 - 1),  # ten digits, as for the property DELAY
}


class RowRefused(Exception):
    """Row `number` cannot be stored. If `reason` is empty, a check of that message alone gives the reason."""

    def __init__(self, number: int, reason: str = "") -> None:
        super().__init__(f"row {number}: {reason}")
        self.number = number
        self.reason = reason


class PutLimits(msgspec.Struct, frozen=True):
    """The store's limits in bytes, its number of delay levels, and what it writes into every record."""

    max_message_size: int
    max_record_size: int
    delay_levels: int
    born_host: bytes
    store_host: bytes
    has_record_crc: bool = False

    @property
    def sys_flag(self) -> int:
        return with_hosts(0, self.born_host, self.store_host)


class PutColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of messages. `topic` has each row's index into `topics`, or -1 for null. An absent number is 0."""

    topics: list[str]
    topic: Ints
    body: TextColumn
    keys: ListColumn | None = None
    tags: TextColumn | None = None
    properties: MapColumn | None = None
    queue_id: Longs | None = None
    delay_level: Longs | None = None
    flag: Longs | None = None
    born_timestamp: Longs | None = None


class PutRows(msgspec.Struct, frozen=True):
    """A planned batch of puts. `encode` sets queue_offset and physical_offset of each row."""

    rows: PutTable
    ends: Longs
    """The end of each record in bytes, relative to the start of the first record."""
    queues: list[tuple[str, int]]
    """The topic and id of each queue that gets messages. rows["queue"] is an index into this list."""
    waits: bool
    """Whether the put must wait for the flush, because at least one message does."""
    topics: TextColumn
    bodies: Buffer
    properties: Buffer
    limits: PutLimits

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, start: int, stop: int) -> int:
        """Returns the bytes of the records of rows[start:stop]."""
        return int(self.ends[stop - 1]) - (int(self.ends[start - 1]) if start else 0)

    def fitting(self, start: int, room: int) -> int:
        """Returns the first row from `start` on whose record no longer fits, if records fill `room` bytes in order."""
        before = int(self.ends[start - 1]) if start else 0
        return int(np.searchsorted(self.ends, before + room, "right"))

    def encode(
        self, out: WritableBuffer, at: int, physical_offset: int, start: int, stop: int, next_offsets: Longs, now: int
    ) -> None:
        """Writes the records of rows[start:stop] at out[at:]. Leaves the first record unpublished: readers stop there.

        `physical_offset` is the offset of the first record, and `now` the store time in ms. `next_offsets` has the next
        queue offset of each of `queues`; `encode` advances them.
        """
        kernels.encode_puts(
            out,
            at,
            physical_offset,
            self.rows[start:stop],
            self.topics,
            self.bodies,
            self.properties,
            next_offsets,
            now,
            self.limits.sys_flag,
            self.limits.born_host,
            self.limits.store_host,
        )


def plan_puts(columns: PutColumns, limits: PutLimits) -> PutRows:
    """Checks every message and plans its record. Raises RowRefused for the first message that cannot be stored."""
    rows = np.zeros(len(columns.topic), PUT_ROW)
    topics = _with_schedule_topic(columns.topics)
    _set_topics(rows, columns.topic, columns.topics)
    _set_bodies(rows, columns.body)
    _set_numbers(rows, columns)
    texts = [topic.encode("utf-8", "surrogatepass") for topic in topics]
    lengths = np.array([len(text) for text in texts], np.int32)
    topic_column = TextColumn(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), b"".join(texts), None)
    properties, waits = _set_properties(rows, columns, topic_column, topics.index(SCHEDULE_TOPIC), limits)
    hosts = len(limits.born_host) + len(limits.store_host)
    rows["size"] = sizes = (
        _FIXED_SIZE + hosts + rows["body_length"].astype(np.int64) + lengths[rows["topic"]] + rows["properties_length"]
    )
    _refuse_first((rows["body_length"] > limits.max_message_size) | (sizes > limits.max_record_size))
    firsts = rows[kernels.number_queues(rows)]
    queues = [(topics[topic], queue_id) for topic, queue_id in firsts[["topic", "queue_id"]].tolist()]
    return PutRows(rows, np.cumsum(sizes), queues, waits, topic_column, columns.body.data, properties, limits)


def _with_schedule_topic(topics: list[str]) -> list[str]:
    return topics if SCHEDULE_TOPIC in topics else [*topics, SCHEDULE_TOPIC]


def _set_topics(rows: PutTable, topic: Ints, topics: list[str]) -> None:
    _refuse_first(topic < 0, "the topic is null")
    legal = np.array([is_legal_topic(name) for name in topics], np.bool_)
    if not legal.all():
        _refuse_first(~legal[topic])
    rows["topic"] = topic


def _set_bodies(rows: PutTable, body: TextColumn) -> None:
    if body.valid is not None:
        _refuse_first(~body.valid, "the body is null")
    rows["body_at"] = body.offsets[:-1]
    rows["body_length"] = lengths = np.diff(body.offsets)
    _refuse_first(lengths < 0, "the body ends before it begins")


def _set_numbers(rows: PutTable, columns: PutColumns) -> None:
    for name, (lowest, highest) in _RANGES.items():
        values: Longs | None = getattr(columns, name)
        if values is None:
            continue
        _refuse_first((values < lowest) | (values > highest))
        if name != "delay_level":
            rows[name] = values


def _set_properties(
    rows: PutTable, columns: PutColumns, topics: TextColumn, schedule_topic: int, limits: PutLimits
) -> tuple[Buffer, bool]:
    """Returns the concatenated property strings of all rows, and whether any row waits for the flush."""
    given = (columns.keys, columns.tags, columns.properties, columns.delay_level)
    if all(column is None for column in given) and not limits.has_record_crc:
        return b"", True
    texts, waiting, bad = kernels.property_texts(
        rows, *given, topics, schedule_topic, limits.delay_levels, limits.has_record_crc
    )
    if bad >= 0:
        raise RowRefused(bad)
    return texts, waiting > 0


def _refuse_first(bad: npt.NDArray[np.bool_], reason: str = "") -> None:
    if bad.any():
        raise RowRefused(int(bad.argmax()), reason)
