"""Types in the kernels' signatures."""

from __future__ import annotations

from array import array
from mmap import mmap
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
WritableBuffer: TypeAlias = "bytearray | memoryview | mmap | array[int] | npt.NDArray[Any]"
Rows: TypeAlias = npt.NDArray[np.void]  # of dtype ROW
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]


class Topics(Protocol):
    """What both twins' TopicTable can do. A walk takes the table of its own twin."""

    def intern(self, topic: bytes) -> int: ...
    def name(self, topic_id: int) -> str: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
