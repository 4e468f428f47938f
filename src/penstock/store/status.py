"""What a put and a get answer: RocketMQ's statuses, and the values that come with them."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import msgspec

from penstock.format.message_id import encode_message_id
from penstock.format.record import Record, decode_record


class PutStatus(Enum):
    """How a put ended. The record is stored for the first four, and only for them."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGECACHE_BUSY = "OS_PAGECACHE_BUSY"
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


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to one put. `reason` is a sentence where the status is not PUT_OK."""

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
        return self.status is PutStatus.PUT_OK

    @property
    def stored(self) -> bool:
        return self.physical_offset >= 0

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def msg_id(self) -> str:
        """The offset message id, empty if nothing was stored."""
        return encode_message_id(self.store_host, self.physical_offset) if self.stored else ""


class BatchResult(msgspec.Struct, frozen=True):
    """The answer to a batch: stored whole, or not at all. `msg_id` joins the ids with commas."""

    status: PutStatus
    results: tuple[PutResult, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status is PutStatus.PUT_OK

    @property
    def msg_id(self) -> str:
        return ",".join(result.msg_id for result in self.results)


class Page(msgspec.Struct, frozen=True, dict=True):
    """The answer to a get: whole records as they stand in the log, in queue order."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    """The records, one behind the other: the body of a pull's answer."""
    count: int = 0
    damaged: tuple[int, ...] = ()
    """Queue offsets that were passed over because their record is damaged."""
    suggest_slave: bool = False

    @cached_property
    def records(self) -> list[bytes]:
        """The records one by one."""
        records, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 4], "big")
            records.append(self.data[at : at + size])
            at += size
        return records

    @cached_property
    def messages(self) -> list[Record]:
        return [decode_record(record) for record in self.records]
