"""Values of the store's API: messages, statuses, results and pages, and the tag filter of a subscription.

Statuses are RocketMQ's. Importing this module needs no pyarrow, although the Arrow results live here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import MissingPackage
from penstock.format import kernels
from penstock.format.message_id import encode_message_id
from penstock.format.record import Record, decode_records
from penstock.format.record_layout import size_and_magic

if TYPE_CHECKING:
    import pyarrow as pa


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to put; everything but topic and body has a default.

    `keys`, `tags`, `delay_level` and `wait` set the properties KEYS, TAGS, DELAY and WAIT. They override entries of
    `properties` with those names. `keys` may be one string of keys separated by spaces. With `wait=False` a put waits
    neither for the disk nor for a slave. `born_timestamp` is in ms; 0 means now. `sys_flag` carries the compression and
    transaction bits. The store sets the host bits itself and never compresses.

    `property_text` is for callers, such as a broker, that have the properties in their stored form: `name 0x01 value`,
    joined with 0x02. The store keeps this text unchanged and does not interpret it. A message with `property_text` must
    not have `properties`, `keys`, `tags` or `delay_level`.
    """

    topic: str
    body: bytes
    keys: Sequence[str] | str = ()
    tags: str = ""
    properties: Mapping[str, str] | None = None
    queue_id: int = 0
    delay_level: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "127.0.0.1:0"
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait: bool = True
    property_text: str = ""


class PutStatus(Enum):
    """How a put ended. The record is stored with the first four statuses only."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGECACHE_BUSY = "OS_PAGECACHE_BUSY"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class GetStatus(Enum):
    """How a get ended."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


_PUT_OK: Final = PutStatus.PUT_OK  # on CPython 3.11 a look-up in the Enum takes longer than the property `ok`


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one put. `reason` explains every status except PUT_OK."""

    status: PutStatus
    physical_offset: int = -1
    size: int = 0
    queue_id: int = -1
    queue_offset: int = -1
    store_timestamp: int = 0
    store_host: str = ""
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is _PUT_OK

    @property
    def stored(self) -> bool:
        return self.physical_offset >= 0

    @property
    def refused_for_good(self) -> bool:
        """Whether the message itself is the reason, so that the same put would be refused again."""
        return self.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def msg_id(self) -> str:
        """The offset message id, empty if nothing was stored."""
        return encode_message_id(self.store_host, self.physical_offset) if self.stored else ""


class BatchResult(msgspec.Struct, frozen=True):
    """The result of a batch, which is stored as a whole or not at all. `msg_id` joins the messages' ids with commas."""

    status: PutStatus
    results: tuple[PutResult, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is _PUT_OK

    @property
    def msg_id(self) -> str:
        return ",".join(result.msg_id for result in self.results)


class Page(msgspec.Struct, frozen=True, dict=True):
    """The result of a get: whole records as stored in the log, in queue order."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    """The records, concatenated: the body of a pull response."""
    count: int = 0
    damaged: tuple[int, ...] = ()
    """Queue offsets that were skipped because their record is damaged."""
    suggest_slave: bool = False

    @cached_property
    def records(self) -> list[bytes]:
        """The records, one bytes object each."""
        records, at = [], 0
        while at < len(self.data):
            size, _ = size_and_magic(self.data, at)
            records.append(self.data[at : at + size])
            at += size
        return records

    @cached_property
    def messages(self) -> list[Record]:
        return decode_records(self.data)


MAX_ROWS: Final = 20_000
"""Default row limit of an Arrow page. Pages of this size stay in the processor's cache while they are built."""
MAX_BYTES: Final = 8 << 20


@contextmanager
def needing_pyarrow() -> Iterator[None]:
    """Wraps imports that need pyarrow. If pyarrow is missing, raises MissingPackage with the install command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "pyarrow":
            raise
        raise MissingPackage("Arrow batches need the package pyarrow: pip install 'penstock[arrow]'") from None


def _no_offsets() -> npt.NDArray[np.int64]:
    return np.empty(0, np.int64)


class ArrowResult(msgspec.Struct, frozen=True, eq=False):
    """The result of an Arrow batch: the number of rows stored, and their offsets.

    Either all rows are stored or none, with one exception. If a batch is larger than a log file and the next file
    cannot be created, only the first `count` rows are stored, and `reason` says so.
    """

    status: PutStatus
    count: int = 0
    queue_offsets: npt.NDArray[np.int64] = msgspec.field(default_factory=_no_offsets)
    physical_offsets: npt.NDArray[np.int64] = msgspec.field(default_factory=_no_offsets)
    store_timestamp: int = 0
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is _PUT_OK

    @property
    def physical_offset(self) -> int:
        """Physical offset of the first row, -1 if nothing was stored."""
        return int(self.physical_offsets[0]) if self.count else -1


class ArrowPage(msgspec.Struct, frozen=True, eq=False):
    """The result of an Arrow get: rows of a queue, in queue order."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    batch: pa.RecordBatch
    damaged: tuple[int, ...] = ()
    """Queue offsets that were skipped because their record is damaged."""
    missing: tuple[int, ...] = ()
    """Queue offsets that were skipped because the log does not have their record (any more)."""
    record_bytes: int = 0
    """Total size in bytes of the rows' records in the log."""


class LogPage(NamedTuple):
    """Rows of the log, in log order, and the physical offset of the next page."""

    batch: pa.RecordBatch
    next_offset: int


class TagFilter:
    """The tags of a subscription: `*`, or tags joined by `||`. Immutable.

    A get compares the tag hash in each unit first, then the tag text of the record, because tags may share a hash.
    """

    def __init__(self, expression: str | None) -> None:
        wanted = [piece.strip() for piece in (expression or "*").split("||")]
        self.tags = frozenset(piece for piece in wanted if piece)
        everything = not self.tags or "*" in self.tags
        self.hashes = None if everything else np.unique(np.array(list(map(kernels.java_hash, self.tags)), np.int32))
        """Hashes of the tags, in order; None if every message matches."""
        self.texts = () if everything else tuple(tag.encode("utf-8", "surrogateescape") for tag in self.tags)


EVERYTHING = TagFilter("*")
