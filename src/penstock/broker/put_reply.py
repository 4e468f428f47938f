"""From the store's answer to a put to the reply that a client gets."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.format.hosts import encode_host
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.store.status import BatchResult, PutResult, PutStatus
from penstock.store.store import MessageStore

STORED: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""The message is there; clients take these as a result."""

_REFUSED: Final = {
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}


def code_of(status: PutStatus) -> ResponseCode:
    """What a put's status is to a client. A full disk is SERVICE_NOT_AVAILABLE, which clients try elsewhere."""
    return STORED.get(status) or _REFUSED.get(status, ResponseCode.SUCCESS)


class PutReplies:
    """What clients are told of a store's puts."""

    def __init__(self, store: MessageStore) -> None:
        self._host = encode_host(store.settings.store_host).hex().upper()
        self._folder = str(store.layout.root)

    def msg_id(self, physical_offset: int) -> str:
        """The offset id of a record, without taking the host apart each time."""
        return f"{self._host}{physical_offset:016X}"

    def msg_ids(self, physical_offsets: Sequence[int]) -> str:
        """The same for a batch, joined by commas."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
        return self._host + offsets.replace(",", f",{self._host}")

    def refused(
        self, command: Command, result: PutResult | BatchResult, ext: Mapping[str, str] | None = None
    ) -> Command:
        """The reply to a put of which nothing is stored. Where the store lies is not a stranger's business."""
        return command.reply(code_of(result.status), result.reason.replace(self._folder, "the store"), ext)
