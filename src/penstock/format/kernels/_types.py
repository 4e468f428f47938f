"""Types in the kernels' signatures."""

from __future__ import annotations

from array import array
from mmap import mmap
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
WritableBuffer: TypeAlias = "bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
Rows: TypeAlias = npt.NDArray[np.void]  # of dtype ROW
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]
PutTable: TypeAlias = npt.NDArray[np.void]  # of dtype PUT_ROW
UnitRun: TypeAlias = tuple[int, int, int, int]
"""Records of a queue whose queue offsets follow each other: the first and the end of these, and where they lie."""
QueuePart: TypeAlias = tuple[str, int, list[UnitRun], memoryview]
"""Topic, queue id, runs, and the units of all runs."""


class TextColumn(NamedTuple):
    """One text or byte string per row: data[offsets[i]:offsets[i + 1]], or nothing where `valid` says so."""

    offsets: Ints
    data: Buffer
    valid: Bools | None


class ListColumn(NamedTuple):
    """A list of texts per row: items[offsets[i]:offsets[i + 1]]."""

    offsets: Ints
    items: TextColumn
    valid: Bools | None


class MapColumn(NamedTuple):
    """Names and values per row: those with the numbers offsets[i] to offsets[i + 1]."""

    offsets: Ints
    names: TextColumn
    values: TextColumn
    valid: Bools | None


class Topics(Protocol):
    """What both twins' TopicTable can do. A walk takes the table of its own twin."""

    def intern(self, topic: bytes) -> int: ...
    def name(self, topic_id: int) -> str: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
