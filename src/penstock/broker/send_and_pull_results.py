"""Outcomes of sends and pulls."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.format.hosts import encode_host
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.send import batch_limit
from penstock.store.message import BatchResult, Page, PutResult, PutStatus
from penstock.store.message_store import MessageStore

STORED: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""The statuses of a put that stored the message. Clients treat their response codes as a result, not as an error."""
_REFUSED: Final = {
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}


def code_of(status: PutStatus) -> ResponseCode:
    """Returns the response code of a put. A full disk is SERVICE_NOT_AVAILABLE, so that clients try another broker."""
    return STORED.get(status) or _REFUSED.get(status, ResponseCode.SUCCESS)


class SendOutcome(msgspec.Struct, gc=False):
    """The outcome of an operation that stored a message. `code` is SUCCESS, or says why the message is less safe.

    A batch has the ids of all messages in `msg_id`, joined by commas, and the queue offset of the first one.
    """

    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    msg_id: str = ""
    queue_id: int = 0
    queue_offset: int = 0


class PutOutcomes:
    """Message ids and refusals for one store."""

    def __init__(self, store: MessageStore) -> None:
        self.host = encode_host(store.settings.store_host).hex().upper()
        """The start of every message id."""
        self.batch_limit = batch_limit(len(self.host) + 16)
        """Limit of the messages of a batch."""
        self._folder = str(store.layout.root)

    def msg_id(self, physical_offset: int) -> str:
        """Returns the offset message id of a record: the store's host and the physical offset, in hex."""
        return self.host + physical_offset.to_bytes(8).hex().upper()

    def msg_ids(self, physical_offsets: Sequence[int]) -> str:
        """Returns the offset message ids of a batch, joined by commas."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
        return self.host + offsets.replace(",", f",{self.host}")

    def refusal(self, result: PutResult | BatchResult) -> Refusal:
        """Returns the error for a put that stored nothing. It does not show clients the store's path."""
        return Refusal(code_of(result.status), result.reason.replace(self._folder, "the store"))


class PullOutcome(msgspec.Struct, gc=False):
    """The outcome of a pull: the page that was read, and from where to pull next."""

    code: ResponseCode
    page: Page
    next_begin_offset: int
    broker_id: int = 0
    """The broker to pull from next; 0 is the master."""
