"""What a put and a get of Arrow record batches answer, and their bounds. Importing this needs no pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import MissingPackage
from penstock.store.status import GetStatus, PutStatus

if TYPE_CHECKING:
    import pyarrow as pa


MAX_ROWS: Final = 20_000
"""Pages of this size stay in the processor's cache while their columns are made."""
MAX_BYTES: Final = 8 << 20


@contextmanager
def needing_pyarrow() -> Iterator[None]:
    """Around the imports of what needs pyarrow: raises MissingPackage with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "pyarrow":
            raise
        raise MissingPackage("Arrow batches need the package pyarrow: pip install 'penstock[arrow]'") from None


def _nothing() -> npt.NDArray[np.int64]:
    return np.empty(0, np.int64)


class ArrowResult(msgspec.Struct, frozen=True, eq=False):
    """The answer to an Arrow batch: how many of its rows are stored, and where each of these lies.

    All or none, except that a batch larger than a log file may end at a file for which the disk had no room: the first
    `count` rows are stored then, and `reason` says so.
    """

    status: PutStatus
    count: int = 0
    queue_offsets: npt.NDArray[np.int64] = msgspec.field(default_factory=_nothing)
    physical_offsets: npt.NDArray[np.int64] = msgspec.field(default_factory=_nothing)
    store_timestamp: int = 0
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is PutStatus.PUT_OK

    @property
    def physical_offset(self) -> int:
        """Where the first row lies, -1 if nothing was stored."""
        return int(self.physical_offsets[0]) if self.count else -1


class ArrowPage(msgspec.Struct, frozen=True, eq=False):
    """The answer to a get: rows of a queue, in queue order."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    batch: pa.RecordBatch
    damaged: tuple[int, ...] = ()
    """Queue offsets that were passed over because their record is damaged."""
    missing: tuple[int, ...] = ()
    """Queue offsets that were passed over because nothing stands (any more) where their record should be."""
    record_bytes: int = 0
    """What the rows' records take in the log."""


class LogPage(NamedTuple):
    """Rows of the log, in log order, and the offset at which to go on."""

    batch: pa.RecordBatch
    next_offset: int
