"""A page of a queue: units to records, checked and copied. The plain twin of `_pages.pxi`."""

from __future__ import annotations

from penstock.format.kernels._plain_columns import find_property
from penstock.format.kernels._plain_log import view_of, walk
from penstock.format.kernels._types import Buffer, Ints
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, is_ext_address, unpack_unit
from penstock.format.rows import Reason

FOUND, NO_MATCH, REMOVING = range(3)
_MAX_PAGE = 1024


class PageReader:
    """Reads pages within the limits it was made with; keeps nothing between them but those."""

    def __init__(
        self,
        in_memory: int,
        count_in_memory: int,
        bytes_in_memory: int,
        count_on_disk: int,
        bytes_on_disk: int,
        check_crc: bool,
    ) -> None:
        self._in_memory = in_memory
        self._limits = ((count_in_memory, bytes_in_memory), (count_on_disk, bytes_on_disk))
        self._check_crc = check_crc

    def read(
        self,
        units: Buffer,
        at: int,
        stop: int,
        queue_offset: int,
        topic: bytes,
        queue_id: int,
        data: Buffer,
        base: int,
        readable: int,
        file_size: int,
        log_start: int,
        log_end: int,
        most: int,
        count: int,
        total: int,
        hashes: Ints | None,
        texts: tuple[bytes, ...],
    ) -> tuple[bytes, int, int, int, int, list[int] | None, int, int]:
        """Goes through units[at:stop], whose records lie in the log file `data`, until the page is full.

        `count` and `total` are what the page already holds, `hashes` (int32, or None for all) and `texts` what is
        wanted. Returns (records, how many, bytes, units examined, FOUND/NO_MATCH/REMOVING or -1 if nothing was
        examined, damaged units or None, physical offset of the last unit examined, the one that needs another file
        or -1).
        """
        view, log = view_of(units), view_of(data)[:readable]
        if at < 0 or stop > len(view):
            raise ValueError(f"units {at} to {stop} do not lie in {len(view)} bytes")
        wanted = None if hashes is None else set(hashes.tolist())
        found: list[bytes] = []
        damaged: list[int] = []
        examined, status, last, needed, before = 0, -1, -1, -1, total
        for place in range(at, stop - UNIT_SIZE + 1, UNIT_SIZE):
            physical, size, code = unpack_unit(view, place)
            most_count, most_bytes = self._limits[log_end - physical > self._in_memory]
            if len(found) == _MAX_PAGE or (count and (count >= min(most, most_count) or total + size > most_bytes)):
                break
            outcome = FOUND
            if size == NO_RECORD_SIZE or size <= 0 or physical < log_start:
                outcome = REMOVING
            elif wanted is not None and not is_ext_address(code) and _low_bits(code) not in wanted:
                outcome = NO_MATCH
            elif not base <= physical < base + file_size:
                needed = physical
                break
            else:
                record = bytes(log[physical - base : physical - base + size])
                reason = self._judge(record, log, physical, base, size, topic, queue_id, queue_offset)
                if reason is not Reason.STOP:
                    outcome = REMOVING
                    if reason is not Reason.UNWRITTEN:
                        damaged.append(queue_offset)
                elif wanted is not None and find_property(record, 0, b"TAGS") not in texts:
                    outcome = NO_MATCH
                else:
                    found.append(record)
                    count, total = count + 1, total + size
            if outcome == FOUND or not count:
                status = outcome
            last, examined, queue_offset = physical, examined + 1, queue_offset + 1
        return b"".join(found), len(found), total - before, examined, status, damaged or None, last, needed

    def _judge(
        self,
        record: bytes,
        log: memoryview,
        physical: int,
        base: int,
        size: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
    ) -> Reason:
        """STOP if these bytes of the log are the record that the unit promises."""
        if len(record) < size:
            return Reason.UNWRITTEN
        rows, _, reason = walk(log, base, physical - base, physical - base + 1, self._check_crc, None, 1)
        if not len(rows):
            return Reason(reason)
        row = rows[0]
        name = record[row["topic_at"] : row["topic_at"] + row["topic_length"]]
        fits = (row["size"], row["queue_id"], row["queue_offset"], name) == (size, queue_id, queue_offset, topic)
        return Reason.STOP if fits else Reason.BAD_POSITION


def _low_bits(code: int) -> int:
    """The low 32 bits as a signed number: a tag's hash."""
    return (code + 2**31) % 2**32 - 2**31
