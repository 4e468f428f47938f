"""A page of a queue: units to records, checked and copied; which pages of a file are in memory; the count of a file's
readers. Twin of read.pxi."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.format.kernel_row_types import Reason
from penstock.format.kernels.parameter_types import Buffer, Cold, Ints
from penstock.format.kernels.plain.dispatch import find_property
from penstock.format.kernels.plain.record import view_of, walk
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, is_ext_address, unpack_unit

FOUND, NO_MATCH, REMOVING = range(3)
_MAX_PAGE = 1024
_RECENT_BYTES = 64 << 20
_MAX_GAP = 256 << 10
_MAX_PLAN = 8 << 20
_libc = ctypes.CDLL(None)


class Residency:
    """Which pages of a file map are in memory, so that reading them does not wait for the disk.

    The operating system is asked each time (`mincore`). The map may be closed; then the answers mean nothing.
    """

    def __init__(self, data: Buffer) -> None:
        with view_of(data) as view:
            self._size = len(view)
            self._address = np.frombuffer(view, np.uint8).ctypes.data

    def check(self, start: int, stop: int) -> bool:
        """Whether data[start:stop] is in memory; False for a range outside of `data`."""
        if start < 0 or stop > self._size:
            return False
        if start >= stop:
            return True
        begin = start - start % mmap.PAGESIZE
        pages = (ctypes.c_ubyte * ((stop - begin - 1) // mmap.PAGESIZE + 1))()
        refused = _libc.mincore(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(stop - begin), pages)
        return refused == 0 and all(page & 1 for page in pages)


class PageReader:
    """Reads pages of queues within fixed limits; has no other state.

    memory_bytes         a record is in memory if it starts at most this many bytes before the log's end, else on disk
    max_count_in_memory  a page ends at a record in memory once it has this many records
    max_bytes_in_memory  a page ends at a record in memory that would bring it past this many bytes
    max_count_on_disk    the same count for records on disk
    max_bytes_on_disk    the same size for records on disk
    check_crc            whether to check the CRC of each body
    page_type            `try_page` calls it with (status, next queue offset, lowest and highest queue offset, records,
                         count, damaged queue offsets, whether the last record is on disk)
    statuses             the values of FOUND, NO_MATCH and REMOVING for it
    """

    def __init__(
        self,
        memory_bytes: int,
        max_count_in_memory: int,
        max_bytes_in_memory: int,
        max_count_on_disk: int,
        max_bytes_on_disk: int,
        check_crc: bool,
        page_type: Callable[..., Any] | None = None,
        statuses: tuple[Any, Any, Any] = (None, None, None),
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
        residency: Residency | None = None,
        written_from: int = 0,
        loaded: int = 0,
    ) -> tuple[bytes, int, int, int, int, int, list[int] | None, int, int, Cold | None]:
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
        residency             tells what of `data` is in memory; None: all of it is
        written_from          physical offset from which this process wrote the log: its last 64 MiB are in memory
        loaded                the caller has loaded the records of units[at:loaded]

        Returns (records, place and queue offset of the first unit not examined, the page's count and total now, status,
        damaged queue offsets or None, physical offset of the last unit examined, physical offset at which to continue
        or -1, cold ranges or None). The status is FOUND, NO_MATCH or REMOVING, or -1 if no unit was examined. The page
        continues in another log file, or in the same one, if not all of its records are in memory. If those of the next
        units are not, no unit is examined, and the cold ranges are (end of these units, [(start and stop in `data`,
        place of the first unit), ...]).
        """
        view, log = view_of(units), view_of(data)[:readable]
        if at < 0 or stop > len(view):
            raise ValueError(f"units {at} to {stop} do not lie in {len(view)} bytes")
        wanted = None if hashes is None else set(hashes.tolist())
        found: list[bytes] = []
        damaged: list[int] = []
        status, last, needed = -1, -1, -1
        planned = stop
        first = unpack_unit(view, at)[0] if at + UNIT_SIZE <= stop else -1
        if loaded > at:
            planned = min(loaded, stop)
        elif residency is not None and 0 <= first < max(written_from, log_end - _RECENT_BYTES):
            reach = (base, base + min(readable, len(log)), file_size, log_start, log_end)
            planned, ranges = self._plan(view, at, stop, wanted, reach, max_records, count, total)
            if not all(residency.check(begin, end) for begin, end, _ in ranges):
                return b"", at, queue_offset, count, total, -1, None, -1, first, (planned, ranges)
        while at + UNIT_SIZE <= stop:
            physical, size, code = unpack_unit(view, at)
            if len(found) == _MAX_PAGE or (
                count and self._is_full(log_end - physical, count, total + size, max_records)
            ):
                break
            if at >= planned:
                needed = physical
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
            last, at, queue_offset = physical, at + UNIT_SIZE, queue_offset + 1
        return b"".join(found), at, queue_offset, count, total, status, damaged or None, last, needed, None

    def try_page(
        self,
        unit_files: tuple[object, ...],
        lowest: int,
        offset: int,
        topic: bytes,
        queue_id: int,
        log_files: tuple[object, ...],
        file_size: int,
        log_end: int,
        max_records: int,
        hashes: Ints | None,
        texts: tuple[bytes, ...],
        written_from: int,
    ) -> Any:
        """Reads the usual page in one step: its units lie in one file, its records in one file, all in memory.

        unit_files    the files of the queue, in order; each has a FileWindow as `window`
        lowest        the lowest queue offset of the queue
        offset        the queue offset of the first message wanted
        log_files     the files of the log, in order, each of `file_size` bytes

        The other arguments are those of `read`. Returns a page; None, after which nothing has changed, for every other
        get, and wherever a status other than those three is due. Here always None: the reference is the store's general
        path on top of `read`.
        """
        return None

    def _is_full(self, distance: int, count: int, total: int, max_records: int) -> bool:
        """Whether a page of `count` records ends before a record that would bring it to `total` bytes."""
        max_count, max_bytes = self._limits[distance > self._memory_bytes]
        return count >= min(max_records, max_count) or total > max_bytes

    def _plan(
        self,
        view: memoryview,
        at: int,
        stop: int,
        wanted: set[int] | None,
        reach: tuple[int, int, int, int, int],
        max_records: int,
        count: int,
        total: int,
    ) -> Cold:
        """Finds the ranges of the log file that a page reads if each record fits its unit; joins ranges that are close.

        The plan ends early, before `stop`, at 8 MiB.
        """
        base, readable, file_size, log_start, log_end = reach
        ranges: list[tuple[int, int, int]] = []
        planned = 0
        while at + UNIT_SIZE <= stop:
            physical, size, code = unpack_unit(view, at)
            if count and self._is_full(log_end - physical, count, total + size, max_records):
                break
            is_wanted = wanted is None or is_ext_address(code) or _low_bits(code) in wanted
            if size == NO_RECORD_SIZE or size <= 0 or physical < log_start or not is_wanted:
                at += UNIT_SIZE
                continue
            if not base <= physical < base + file_size or len(ranges) == _MAX_PAGE or planned > _MAX_PLAN:
                break
            begin, end = physical - base, min(physical + size, readable) - base
            if begin < end:
                if ranges and 0 <= begin - ranges[-1][1] <= _MAX_GAP:
                    planned += end - ranges[-1][1]
                    ranges[-1] = (ranges[-1][0], end, ranges[-1][2])
                else:
                    planned += end - begin
                    ranges.append((begin, end, at))
            at, count, total = at + UNIT_SIZE, count + 1, total + size
        return at, ranges

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


class FileWindow:
    """What readers see of a mapped file: its bytes, how many of them may be read, and whether it is being deleted.

    data         the file's bytes
    from_offset  the offset of its first byte
    marks        int64 numbers that the file's writer keeps; the first is the number of bytes that may be read
    readers      refuses readers once the file is being deleted
    residency    tells what of `data` is in memory; None: all of it is
    """

    def __init__(
        self, data: Buffer, from_offset: int, marks: Buffer, readers: ReaderCount, residency: Residency | None
    ) -> None:
        if len(view_of(marks)) < 8:
            raise ValueError("the marks of a file take 8 bytes or more")


class QueuePages:
    """Pages of one queue with all of its messages, as pulls want them again and again.

    reader        reads the pages
    queues        all queues by (topic, queue id); a queue that is no longer there has no pages
    queue         the queue, with topic, topic_bytes, queue_id, min_offset, and its files in files.files
    log           the log, with its files in `files`, file_size, written_from and flushed_where
    only_flushed  whether only records on disk may be read
    """

    def __init__(
        self, reader: PageReader, queues: Mapping[tuple[str, int], object], queue: Any, log: Any, only_flushed: bool
    ) -> None: ...

    def read(self, offset: int, max_records: int) -> tuple[bytes, int, int, int, int] | None:
        """Returns (records, next, lowest and highest queue offset, count) of a page; None where `try_page` does, where
        no message is found, or one is damaged. So here always None.
        """
        return None


def _low_bits(code: int) -> int:
    """Returns the low 32 bits as a signed number: the hash of a tag."""
    return (code + 2**31) % 2**32 - 2**31
