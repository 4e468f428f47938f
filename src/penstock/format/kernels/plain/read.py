"""A page of a queue: units to records, checked and copied; and the count of a file's readers. Twin of read.pxi."""

from __future__ import annotations

import threading

from penstock.format.kernels.plain.dispatch import find_property
from penstock.format.kernels.plain.record import view_of, walk
from penstock.format.kernels.types import Buffer, Ints
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, is_ext_address, unpack_unit
from penstock.format.scan_rows import Reason

FOUND, NO_MATCH, REMOVING = range(3)
_MAX_PAGE = 1024


class PageReader:
    """Reads pages of queues within fixed limits; has no other state.

    memory_bytes         a record is in memory if it starts at most this many bytes before the log's end, else on disk
    max_count_in_memory  a page ends at a record in memory once it has this many records
    max_bytes_in_memory  a page ends at a record in memory that would bring it past this many bytes
    max_count_on_disk    the same count for records on disk
    max_bytes_on_disk    the same size for records on disk
    check_crc            whether to check the CRC of each body
    """

    def __init__(
        self,
        memory_bytes: int,
        max_count_in_memory: int,
        max_bytes_in_memory: int,
        max_count_on_disk: int,
        max_bytes_on_disk: int,
        check_crc: bool,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._limits = ((max_count_in_memory, max_bytes_in_memory), (max_count_on_disk, max_bytes_on_disk))
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
        max_records: int,
        count: int,
        total: int,
        hashes: Ints | None,
        texts: tuple[bytes, ...],
    ) -> tuple[bytes, int, int, int, int, list[int] | None, int, int]:
        """Reads the records of units[at:stop] from one log file until the page is full.

        units, at, stop       a file of the queue, and the bytes of it to read
        queue_offset          the queue offset of the first unit
        topic, queue_id       what each record must say
        data, base            a log file, and its physical offset
        readable, file_size   how many bytes of the log file may be read, and how many it has in all
        log_start, log_end    the physical offsets between which the log has records
        max_records           how many records the caller wants at most
        count, total          how many records and bytes the page has already
        hashes, texts         wanted tags as int32 hashes and as texts; None for hashes wants every record

        Returns (records, number of records, bytes, units examined, status, damaged queue offsets or None, physical
        offset of the last unit examined, physical offset that needs another log file or -1). The status is FOUND,
        NO_MATCH or REMOVING, or -1 if no unit was examined.
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
            max_count, max_bytes = self._limits[log_end - physical > self._memory_bytes]
            is_full = count >= min(max_records, max_count) or total + size > max_bytes
            if len(found) == _MAX_PAGE or (count and is_full):
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
        """Returns STOP if these bytes of the log are the record that the unit describes."""
        if len(record) < size:
            return Reason.UNWRITTEN
        rows, _, reason = walk(log, base, physical - base, physical - base + 1, self._check_crc, None, 1)
        if not len(rows):
            return Reason(reason)
        row = rows[0]
        name = record[row["topic_at"] : row["topic_at"] + row["topic_length"]]
        fits = (row["size"], row["queue_id"], row["queue_offset"], name) == (size, queue_id, queue_offset, topic)
        return Reason.STOP if fits else Reason.BAD_POSITION


class ReaderCount:
    """Counts the readers of a file, so that it is unmapped only after the last one. Thread-safe.

    Starts at one: the owner counts as a reader until `retire`.
    """

    def __init__(self) -> None:
        self.count = 1
        self.is_retired = False
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        """Adds a reader and returns True; False once the file is retired. Each acquire needs one `release`."""
        with self._lock:
            if self.is_retired or self.count <= 0:
                return False
            self.count += 1
            return True

    def release(self) -> bool:
        """Removes a reader; returns True if it was the last one."""
        with self._lock:
            self.count -= 1
            return self.count == 0

    def retire(self) -> bool:
        """Refuses new readers from now on and removes the owner; returns True if no reader is left.

        A second call changes nothing and returns False.
        """
        with self._lock:
            if self.is_retired:
                return False
            self.is_retired = True
            self.count -= 1
            return self.count == 0


def _low_bits(code: int) -> int:
    """Returns the low 32 bits as a signed number: the hash of a tag."""
    return (code + 2**31) % 2**32 - 2**31
