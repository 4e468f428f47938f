"""Records of the log: topics, CRC and hash, encode, publish, check, walk and find. Twin of record.pxi.

Thread-safe. Publishing relies on a processor that keeps the order of stores, as x86 does; the compiled twin has a fence
between them.
"""

from __future__ import annotations

import re
import struct
import threading
import zlib

import numpy as np

from penstock.format.constants import (
    BLANK_HEADER_SIZE,
    BLANK_MAGIC,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_SIZE,
    MIN_RECORD_SIZE_V2,
    RECORD_CRC,
    SECTOR_SIZE,
)
from penstock.format.kernel_row_types import ROW, Reason
from penstock.format.kernels.parameter_types import Buffer, Rows, Topics, WritableBuffer
from penstock.format.record_layout import (
    HEAD,
    LONG,
    MIDDLE,
    SIZE_AND_MAGIC,
    size_and_magic,
)
from penstock.format.sys_flag import host_sizes

_AFTER_MAGIC = struct.Struct(">iiiqqiq")  # the rest of HEAD
_ANY_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94", re.DOTALL)
_MAX_INT = 2**31 - 1
_RECORD_CRC = re.compile(rb"__CRC32#\x01.{10}\x02", re.DOTALL)


def view_of(data: Buffer) -> memoryview:
    """Returns the bytes of any C-contiguous buffer."""
    return memoryview(data).cast("B")  # type: ignore[arg-type]  # arrays are buffers; numpy says so from 3.12 on


def writable_view_of(out: WritableBuffer) -> memoryview:
    """Returns the bytes of a buffer; raises BufferError if it is read-only."""
    view = view_of(out)
    if view.readonly:
        raise BufferError("the buffer is read-only")
    return view


def checked_rows(rows: Rows) -> Rows:
    """Returns the rows; raises ValueError unless they are a contiguous array of ROW."""
    if rows.dtype != ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
        raise ValueError("rows must be a contiguous array of ROW")
    return rows


class TopicTable:
    """Gives each topic an id: 0, 1, 2 ... in order of first appearance. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[bytes, int] = {}
        self._names: list[str] = []

    def intern(self, topic: bytes) -> int:
        """Returns the id of a topic; a new topic gets the next one."""
        with self._lock:
            topic_id = self._ids.setdefault(topic, len(self._ids))
            if topic_id == len(self._names):
                self._names.append(topic.decode("utf-8", "surrogateescape"))
            return topic_id

    def name(self, topic_id: int) -> str:
        """Returns the topic with this id; raises IndexError if there is none."""
        if not 0 <= topic_id < len(self._names):
            raise IndexError(f"no topic has the id {topic_id}")
        return self._names[topic_id]

    @property
    def names(self) -> list[str]:
        """All topics, in the order of their ids."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)


def crc32(data: Buffer) -> int:
    """Returns the CRC-32 with its top bit cleared, as records store it."""
    return zlib.crc32(view_of(data)) & 0x7FFFFFFF


def ends_with_record_crc(properties: bytes | memoryview) -> bool:
    """Whether a property string ends with a record's CRC."""
    return _RECORD_CRC.fullmatch(properties[-len(RECORD_CRC) :]) is not None


def seal_record(record: memoryview, magic: int) -> None:
    """Writes the CRC into the last property of a record that is complete but for its size and magic."""
    record[-11:-1] = _digits(record_crc(record, magic))


def _digits(crc: int) -> bytes:
    return f"{crc:010}"[::-1].encode()


def record_crc(record: memoryview, magic: int) -> int:
    """Returns the CRC of a record without its last property. Size and magic count as they will be stored."""
    crc = zlib.crc32(SIZE_AND_MAGIC.pack(len(record), magic))
    return zlib.crc32(record[BLANK_HEADER_SIZE : -len(RECORD_CRC)], crc) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """Returns Java's String.hashCode: a signed 32-bit number over UTF-16 code units."""
    code = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code & 0x80000000 else code


def encode_record(
    out: WritableBuffer,
    at: int,
    physical_offset: int,
    queue_offset: int,
    store_timestamp: int,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: Buffer,
    topic: bytes,
    properties: bytes,
    publish_now: bool,
) -> int:
    """Writes a V1 record at out[at:] and returns its size; its first 8 bytes only if `publish_now`.

    If the properties end with RECORD_CRC, its digits become the record's CRC. Raises ValueError (OverflowError for a
    number that does not fit its field) before anything is written.
    """
    view = writable_view_of(out)
    body_bytes = view_of(body)
    if (len(born_host), len(store_host)) != host_sizes(sys_flag):
        raise ValueError("the hosts' lengths contradict the IPv6 bits of sys_flag")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise ValueError(f"the topic takes {len(topic)} bytes; at most {MAX_TOPIC_LENGTH} fit")
    if len(properties) > MAX_PROPERTIES_LENGTH:
        raise ValueError(f"the properties take {len(properties)} bytes; at most {MAX_PROPERTIES_LENGTH} fit")
    hosts = len(born_host) + len(store_host)
    size = MIN_RECORD_SIZE - 16 + hosts + len(body_bytes) + len(topic) + len(properties)
    check_room(view, at, size)
    try:
        rest = b"".join(
            (
                _AFTER_MAGIC.pack(
                    crc32(body_bytes), queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp
                ),
                born_host,
                LONG.pack(store_timestamp),
                store_host,
                MIDDLE.pack(reconsume_times, prepared_transaction_offset, len(body_bytes)),
                body_bytes,
                len(topic).to_bytes(1, "big"),
                topic,
                len(properties).to_bytes(2, "big"),
                properties,
            )
        )
    except struct.error as error:
        raise OverflowError(str(error)) from None
    view[at + BLANK_HEADER_SIZE : at + size] = rest
    if ends_with_record_crc(properties):
        seal_record(view[at : at + size], MESSAGE_MAGIC)
    if publish_now:
        publish(view, at, size)
    return size


def publish(out: WritableBuffer, at: int, size: int, magic: int = MESSAGE_MAGIC) -> None:
    """Stores size and magic of the record at out[at:]: from now on readers see it. The magic is V1's or V2's."""
    _publish(out, at, size, magic)


def take_back(out: WritableBuffer, start: int, stop: int, first_size: int) -> None:
    """Zeroes out[start:stop], to which a batch was being written whose first record has `first_size` bytes.

    Unpublishes the records from the last one to the first before it zeroes anything else. So a kill at any moment
    leaves the records of the batch up to one of them, perhaps behind a first one that is not published, or none.
    """
    view = writable_view_of(out)
    if start < 0 or stop < start or stop > len(view):
        raise ValueError(f"{start} to {stop} is outside {len(view)} bytes")
    heads, at = [start] if stop - start >= BLANK_HEADER_SIZE else [], start + first_size
    while start < at <= stop - BLANK_HEADER_SIZE:
        size, magic = size_and_magic(view, at)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2, BLANK_MAGIC) or not BLANK_HEADER_SIZE <= size <= stop - at:
            break
        heads.append(at)
        at += size
    for head in reversed(heads):
        view[head + 4 : head + 8] = bytes(4)
        view[head : head + 4] = bytes(4)
    view[start:stop] = bytes(stop - start)


def write_blank(out: WritableBuffer, at: int, size: int) -> None:
    """Stores the 8-byte header of a filler of `size` bytes; the bytes after it stay as they are."""
    _publish(out, at, size, BLANK_MAGIC)


def copy_published(out: WritableBuffer, at: int, data: Buffer) -> None:
    """Copies whole records to out[at:]. Stores the first one's size and magic last, so all become visible at once."""
    view, source = writable_view_of(out), view_of(data)
    if len(source) < BLANK_HEADER_SIZE:
        raise ValueError(f"{len(source)} bytes are not a record")
    check_room(view, at, len(source))
    view[at + 8 : at + len(source)] = source[8:]
    view[at : at + 4] = source[:4]
    view[at + 4 : at + 8] = source[4:8]


def _publish(out: WritableBuffer, at: int, size: int, magic: int) -> None:
    view = writable_view_of(out)
    if size < BLANK_HEADER_SIZE:
        raise ValueError(f"{size} bytes are not a record")
    check_room(view, at, size)
    header = SIZE_AND_MAGIC.pack(size, magic)
    view[at : at + 4] = header[:4]
    view[at + 4 : at + 8] = header[4:]


def check_room(view: memoryview, at: int, size: int) -> None:
    """Raises ValueError unless `size` bytes fit at position `at`."""
    if at < 0 or size > _MAX_INT or at + size > len(view):
        raise ValueError(f"{size} bytes at {at} do not fit into {len(view)}")


def check_record(data: Buffer, at: int, base: int, check_crc: bool) -> int:
    """Checks one record as `walk` does. Returns a Reason: STOP if it is valid, BEYOND_END if `at` is past the data."""
    view = view_of(data)
    if at < 0:
        raise ValueError(f"{at} is not a position")
    if at >= len(view):
        return int(Reason.BEYOND_END)
    return int(examine(view, at, base, check_crc)[0])


def walk(
    data: Buffer, base: int, start: int, stop: int, check_crc: bool, topics: Topics | None, max_rows: int
) -> tuple[Rows, int, int]:
    """Returns (rows of the valid records that start in [start, stop), position after them, Reason to end there).

    Reads at most `max_rows`. Fills topic_id if `topics` is given.
    """
    view = view_of(data)
    if start < 0:
        raise ValueError(f"{start} is not a position")
    at, stop = start, min(stop, len(view))
    fields: list[tuple[int, ...]] = []
    reason = Reason.STOP
    while at < stop:
        if len(fields) >= max_rows:
            reason = Reason.FULL
            break
        reason, row = examine(view, at, base, check_crc)
        if row is None:
            break
        if topics is not None:
            topic_at = at + row[15]
            row = (*row[:12], topics.intern(bytes(view[topic_at : topic_at + row[16]])), *row[13:])
        fields.append(row)
        at += row[6]
    return np.array(fields, dtype=ROW), at, int(reason)


def first_torn(data: Buffer, base: int, rows: Rows, doubted_from: int = 0, doubted_since: int = 0) -> int:
    """Returns the number of the first doubted row whose topic or properties lost a sector, or -1.

    Doubted are records that end after the physical offset `doubted_from`, with a store time from `doubted_since` on.
    The CRC covers only the body. If the sectors behind a complete body never reached the disk, topic or properties are
    zero there, and the record still passes every other check. So a record counts as torn if some sector's share of its
    topic and properties is all zero. The store refuses such properties (`check_no_zeros`).
    """
    starts = rows["physical_offset"] - base
    ends = starts + rows["size"] - 2 * (rows["properties_length"] == 0)  # their length, 0, is not looked at
    boundaries = -(-(starts + rows["topic_at"]) // SECTOR_SIZE) * SECTOR_SIZE
    content = np.frombuffer(view_of(data), np.uint8)
    if len(rows) and not (int(starts.min()) >= 0 and int(ends.max()) <= len(content)):
        raise ValueError("a row is outside the data")
    doubted = (base + starts + rows["size"] > doubted_from) & (rows["store_timestamp"] >= doubted_since)
    crossing = np.flatnonzero((boundaries < ends) & doubted)
    suspects = crossing[(content[boundaries[crossing]] == 0) | (boundaries[crossing] + SECTOR_SIZE < ends[crossing])]
    for number in suspects.tolist():
        end = int(ends[number])
        if ends_with_record_crc(view_of(data)[end - int(rows["properties_length"][number]) : end]):
            continue  # its CRC says for certain what this can only guess
        for boundary in range(int(boundaries[number]), end, SECTOR_SIZE):
            if not content[boundary : min(boundary + SECTOR_SIZE, end)].any():
                return int(number)
    return -1


def find_valid_end(
    data: Buffer,
    base: int,
    start: int,
    stop: int,
    check_crc: bool,
    doubted_from: int = 2**63 - 1,
    doubted_since: int = 0,
) -> tuple[int, int, int]:
    """As `walk`, without rows: returns (position after the valid records, Reason, last record's store timestamp).

    A doubted record that lost a sector (`first_torn`) is not valid; the Reason is then UNWRITTEN. The timestamp is in
    milliseconds, 0 if there is no record.
    """
    rows, reached, reason = walk(data, base, start, stop, check_crc, None, max(stop - start, 0))
    torn = first_torn(data, base, rows, doubted_from, doubted_since)
    if torn >= 0:
        reached, reason = int(rows["physical_offset"][torn]) - base, int(Reason.UNWRITTEN)
        rows = rows[:torn]
    return reached, reason, int(rows["store_timestamp"][-1]) if len(rows) else 0


def find_record(data: Buffer, base: int, start: int, stop: int, check_crc: bool) -> int:
    """Returns the first position in [start, stop) where a valid record or filler starts, or -1."""
    view = view_of(data)
    if start < 0:
        raise ValueError(f"{start} is not a position")
    for magic in _ANY_MAGIC.finditer(view, start + 4, max(0, min(stop + 7, len(view)))):
        at = magic.start() - 4
        if examine(view, at, base, check_crc)[0] in (Reason.STOP, Reason.BLANK):
            return at
    return -1


def without_record_crc(properties: bytes) -> bytes:
    """Returns a property string without the CRC of the record, if that is its last property."""
    return properties[: -len(RECORD_CRC)] if ends_with_record_crc(properties) else properties


def is_incomplete(magic: int) -> bool:
    """Whether this is a magic with some bytes still zero: a store across two cache lines can be seen in halves."""
    return any(
        all(seen in (0, due) for seen, due in zip(magic.to_bytes(4, "big"), whole.to_bytes(4, "big"), strict=True))
        for whole in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2, BLANK_MAGIC)
    )


def examine(view: memoryview, at: int, base: int, check_crc: bool) -> tuple[Reason, tuple[int, ...] | None]:
    """Returns (STOP, the row) if a valid record starts at `at`, which is inside the view; else (Reason, None)."""
    left = len(view) - at
    if left < BLANK_HEADER_SIZE:
        return (Reason.BAD_SIZE if any(view[at:]) else Reason.UNWRITTEN), None
    _, magic = size_and_magic(view, at)  # read before the size, because it is stored last
    size, _ = size_and_magic(view, at)
    if magic == 0:
        return Reason.UNWRITTEN, None
    if magic == BLANK_MAGIC:
        return (Reason.BLANK if size == left else Reason.BAD_SIZE), None
    if magic == MESSAGE_MAGIC:
        fixed, topic_digits = MIN_RECORD_SIZE, 1
    elif magic == MESSAGE_MAGIC_V2:
        fixed, topic_digits = MIN_RECORD_SIZE_V2, 2
    else:
        return (Reason.UNWRITTEN if is_incomplete(magic) else Reason.BAD_MAGIC), None
    if size < fixed:
        return Reason.BAD_SIZE, None
    if size > left:
        return Reason.BEYOND_END, None
    _, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = HEAD.unpack_from(view, at)
    if physical_offset != base + at:
        return Reason.BAD_POSITION, None

    born_size, store_size = host_sizes(sys_flag)
    room = size - (fixed - 16 + born_size + store_size)  # for body, topic and properties
    if room < 0:
        return Reason.BAD_LENGTHS, None
    stored_at = HEAD.size + born_size
    middle_at = stored_at + 8 + store_size
    (stored,) = LONG.unpack_from(view, at + stored_at)
    reconsume_times, prepared, body_length = MIDDLE.unpack_from(view, at + middle_at)
    if not 0 <= body_length <= room:
        return Reason.BAD_LENGTHS, None
    body_at = middle_at + MIDDLE.size
    topic_at = body_at + body_length + topic_digits
    topic_length = _signed(view[at + topic_at - topic_digits : at + topic_at])
    if not 0 <= topic_length <= room - body_length:
        return Reason.BAD_LENGTHS, None
    properties_at = topic_at + topic_length + 2
    properties_length = _signed(view[at + properties_at - 2 : at + properties_at])
    if properties_length != room - body_length - topic_length:
        return Reason.BAD_LENGTHS, None
    if check_crc and ends_with_record_crc(view[at + properties_at : at + size]):  # it covers the body, too
        if bytes(view[at + size - 11 : at + size - 1]) != _digits(record_crc(view[at : at + size], magic)):
            return Reason.BAD_CRC, None
    elif check_crc and body_length and crc32(view[at + body_at : at + body_at + body_length]) != crc:
        return Reason.BAD_CRC, None
    return Reason.STOP, (
        *(physical_offset, queue_offset, stored, born, prepared, 0),
        *(size, crc, queue_id, flag, sys_flag, reconsume_times, -1),
        *(body_at, body_length, topic_at, topic_length, properties_at, properties_length, 0),
    )


def _signed(digits: memoryview) -> int:
    return int.from_bytes(digits, "big", signed=True)
