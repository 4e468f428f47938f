"""Types of the kernels' parameters and results."""

from __future__ import annotations

from array import array
from mmap import mmap
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bools",
    "Buffer",
    "Cold",
    "Ints",
    "ListColumn",
    "Longs",
    "MapColumn",
    "PutTable",
    "QueuePart",
    "Rows",
    "TextColumn",
    "Topics",
    "UnitFile",
    "UnitRun",
    "WritableBuffer",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
WritableBuffer: TypeAlias = "bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
Rows: TypeAlias = npt.NDArray[np.void]  # of dtype ROW
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]
PutTable: TypeAlias = npt.NDArray[np.void]  # of dtype PUT_ROW
UnitRun: TypeAlias = tuple[int, int, int, int]
"""Records with consecutive queue offsets: first and end of these, and the physical offsets of their start and end."""
QueuePart: TypeAlias = tuple[str, int, list[UnitRun], memoryview]
"""Topic, queue id, runs, and the units of all runs end to end."""

Cold: TypeAlias = tuple[int, list[tuple[int, int, int]]]
"""What a page needs of a log file, not all of it in memory: the end of its units, and the ranges of their records, each
as start, stop, and the place of its first unit."""


class UnitFile(NamedTuple):
    """A file of a queue: its queue id, the queue offset of its first unit, and how many bytes of it may be read."""

    queue_id: int
    first: int
    readable: int
    data: Buffer


class TextColumn(NamedTuple):
    """One text or byte string per row: data[offsets[i]:offsets[i + 1]], null where `valid[i]` is False."""

    offsets: Ints
    data: Buffer
    valid: Bools | None


class ListColumn(NamedTuple):
    """A list of texts per row: items[offsets[i]:offsets[i + 1]], null where `valid[i]` is False."""

    offsets: Ints
    items: TextColumn
    valid: Bools | None


class MapColumn(NamedTuple):
    """A map per row: names and values offsets[i] to offsets[i + 1], null where `valid[i]` is False."""

    offsets: Ints
    names: TextColumn
    values: TextColumn
    valid: Bools | None


class Topics(Protocol):
    """The interface of both twins' TopicTable. A `walk` takes the table of its own twin."""

    def intern(self, topic: bytes) -> int: ...
    def name(self, topic_id: int) -> str: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
