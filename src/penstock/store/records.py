"""Reading one record from the log, and believing it only after checking it."""

from __future__ import annotations

import struct

from penstock.format import kernels
from penstock.format.constants import MESSAGE_MAGIC_V2
from penstock.format.record import Record, decode_record
from penstock.format.rows import Reason
from penstock.format.sys_flag import host_sizes
from penstock.store.commit_log import CommitLog
from penstock.store.witness import Witness

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BORN_HOST_AT = 48


class Records:
    """Whole, checked records by physical offset."""

    def __init__(self, commit_log: CommitLog, *, verify_crc: bool, witness: Witness | None = None) -> None:
        self._log = commit_log
        self._verify_crc = verify_crc
        self._witness = witness

    def raw(self, offset: int, size: int) -> tuple[bytes | None, Reason]:
        """The record's bytes, or None and why not; UNWRITTEN means that nothing is there (any more)."""
        data = self._log.read(offset, size)
        if data is None:
            return None, Reason.UNWRITTEN
        reason = Reason(kernels.check_record(data, 0, offset, self._verify_crc))
        if reason is Reason.STOP and _INT.unpack_from(data)[0] != size:
            reason = Reason.BAD_SIZE
        return (data if reason is Reason.STOP else None), reason

    def at(self, offset: int) -> Record | None:
        """The record at `offset`, None if no valid one begins there, or its queue knows it by another place."""
        head = self._log.read(offset, 4)
        if head is None:
            return None
        size = _INT.unpack(head)[0]
        if size <= 0:
            return None
        data, _ = self.raw(offset, size)
        if data is None:
            return None
        record = decode_record(data)
        return None if self._witness is not None and self._witness.denies(record.topic, data) else record

    def store_timestamp(self, offset: int) -> int:
        """Store time of the record at `offset`, -1 if it is not there; reads only its head."""
        head = self._log.read(offset, _BORN_HOST_AT)
        if head is None:
            return -1
        born_size, _ = host_sizes(_INT.unpack_from(head, 36)[0])
        found = self._log.read(offset + _BORN_HOST_AT + born_size, 8)
        return -1 if found is None else int(_LONG.unpack(found)[0])


def belongs_to(record: bytes, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether a checked record says that it is this message of this queue."""
    if _INT.unpack_from(record, 12)[0] != queue_id or _LONG.unpack_from(record, 20)[0] != queue_offset:
        return False
    born_size, store_size = host_sizes(_INT.unpack_from(record, 36)[0])
    body_at = _BORN_HOST_AT + born_size + 8 + store_size + 12
    topic_at = body_at + 4 + _INT.unpack_from(record, body_at)[0]
    wide = int.from_bytes(record[4:8], "big") == MESSAGE_MAGIC_V2
    length = int.from_bytes(record[topic_at : topic_at + 1 + wide], "big")
    topic_at += 1 + wide
    return record[topic_at : topic_at + length] == topic
