"""What is wrong with bytes of the log that are no record: the reason of a scan, made into a kind of finding.

A scan tells at which check a record failed. A wrong size and wrong lengths fail the same check: what lies between this
place and the next valid record decides which of them it is.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.format.constants import BLANK_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_SIZE, MIN_RECORD_SIZE_V2
from penstock.format.rows import Reason
from penstock.format.scan import Damage
from penstock.format.sys_flag import host_sizes
from penstock.store.audit import kinds
from penstock.store.audit.finding import Kind
from penstock.store.audit.maps import is_zero
from penstock.store.file_map import FileMap

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")

_BY_REASON = {
    Reason.BAD_MAGIC: kinds.RECORD_MAGIC,
    Reason.BAD_SIZE: kinds.RECORD_SIZE,
    Reason.BEYOND_END: kinds.RECORD_SIZE,
    Reason.BAD_POSITION: kinds.RECORD_POSITION,
    Reason.BAD_LENGTHS: kinds.RECORD_LENGTHS,
    Reason.BAD_CRC: kinds.RECORD_CRC,
    Reason.UNWRITTEN: kinds.RECORD_MAGIC,
}


class Harm(msgspec.Struct, frozen=True):
    """A range of the log without a valid record, and why its first record is none."""

    physical_offset: int
    size: int
    reason: str
    """The name of the check that failed: see `Reason`."""
    kind: str
    what: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


def diagnose(file: FileMap, base: int, damage: Damage) -> Harm:
    """Looks at damage that lies in a file which begins at `base`."""
    at = damage.position - base
    kind, what = _judge(file, at, damage)
    return Harm(damage.position, damage.size, damage.reason.name, kind.name, what)


def _judge(file: FileMap, at: int, damage: Damage) -> tuple[Kind, str]:
    data, reason = file.view, damage.reason
    magic = int.from_bytes(data[at + 4 : at + 8], "big")
    stored = _INT.unpack_from(data, at)[0] if at + 4 <= len(data) else 0
    if reason is Reason.UNWRITTEN and is_zero(file, at, at + damage.size):
        return kinds.LOG_HOLE, "nothing was written here, and records follow"
    if magic == BLANK_MAGIC:
        return kinds.FILLER_IN_MIDDLE, f"a filler says {stored} bytes, and {len(data) - at} are left in the file"
    if reason in (Reason.BAD_SIZE, Reason.BEYOND_END):
        return kinds.RECORD_SIZE, f"the record says that it has {stored} bytes, and {len(data) - at} are left"
    if reason is Reason.BAD_POSITION:
        (position,) = _LONG.unpack_from(data, at + 28)
        return kinds.RECORD_POSITION, f"the record says that it lies at {position}"
    if reason is Reason.BAD_LENGTHS:
        parts = _length_of_parts(data, at)
        if parts is not None and parts == damage.size != stored:
            return kinds.RECORD_SIZE, f"the record says that it has {stored} bytes, and its parts make {parts}"
        return kinds.RECORD_LENGTHS, f"the parts of the record do not make its {stored} bytes"
    if reason is Reason.BAD_CRC:
        return kinds.RECORD_CRC, "the body does not have the CRC that the record says"
    return _BY_REASON[reason], f"0x{magic:08x} is not a record's magic"


def _length_of_parts(data: memoryview, at: int) -> int | None:
    """The size that a record's own lengths add up to, None if they lead out of the file."""
    fixed, digits = MIN_RECORD_SIZE, 1
    if int.from_bytes(data[at + 4 : at + 8], "big") == MESSAGE_MAGIC_V2:
        fixed, digits = MIN_RECORD_SIZE_V2, 2
    born_size, store_size = host_sizes(_INT.unpack_from(data, at + 36)[0])
    length, place = born_size + store_size - 16, at + 68 + born_size + store_size
    for size in (4, digits, 2):
        if not at <= place <= len(data) - size:
            return None
        part = int.from_bytes(data[place : place + size], "big", signed=True)
        if part < 0:
            return None
        length, place = length + part, place + size + part
    return fixed + length
