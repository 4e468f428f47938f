"""The read path: a page of messages from a queue, with RocketMQ's statuses and next offsets.

A page is the result of one get. It ends at the end of a queue file at the latest. If the record of a unit is damaged or
deleted, that unit is skipped, and the page continues after it. Each record's position, size, topic, queue id and queue
offset are compared with its unit, and its body with its CRC. Thread-safe; keeps no state between gets.

The usual page is read in one compiled step. The general path, which the plain kernels always take, reads every other
page: one that begins outside of the queue, crosses the end of a log file, or is not in memory.

Units and records that are not in memory are loaded first (`cold_reads.py`). A page ends before a record that the disk
cannot read, and a page that would begin with it raises StoreFailed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.topics import is_legal_topic
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files.file_io import NotResident
from penstock.store.files.mapped_file import MappedFile
from penstock.store.message import GetStatus, Page, TagFilter
from penstock.store.settings import Settings

_TARGET = struct.Struct(">qi")
"""Physical offset and size of a record, the first fields of a unit."""
_MIN_EXAMINED = 800
"""How many units a get looks at, at least, for messages with the wanted tags."""
_STATUSES = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
"""Statuses, indexed by the outcome number that the kernel returns."""


class PageGetter:
    """Reads pages for `MessageStore.get` and the broker's pulls."""

    def __init__(self, settings: Settings, commit_log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = commit_log
        self._queues = queues
        self._in_memory = usable_memory() * settings.access_message_in_memory_max_ratio // 100
        self._pages = kernels.PageReader(
            self._in_memory,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
            settings.verify_crc_on_read,
            Page,
            _STATUSES,
        )
        self._tries_at_once = not settings.transient_pool_active

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        tags: TagFilter,
        log_end: int,
        at_once: bool = False,
    ) -> Page:
        """Reads one page. `log_end` is the physical offset up to which records may be read.

        A record's distance to `log_end` decides whether the transfer limits for messages in memory or on disk apply.
        With `at_once` raises NotResident instead of waiting for the disk.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            legal = queue_id >= 0 and is_legal_topic(topic)
            status = GetStatus.NO_MESSAGE_IN_QUEUE if legal else GetStatus.NO_MATCHED_LOGIC_QUEUE
            return Page(status, 0, 0, 0)
        lowest = queue.min_offset
        if self._tries_at_once:
            log = self._log.queue
            page: Page | None = self._pages.try_page(
                queue.files.files,
                lowest,
                offset,
                queue.topic_bytes,
                queue_id,
                log.files,
                log.file_size,
                log_end,
                max_messages,
                tags.hashes,
                tags.texts,
                log.written_from,
            )
            if page is not None:
                return page
        highest = queue.files.max_offset // UNIT_SIZE
        if not lowest <= offset < highest:
            return Page(*self._outside(offset, lowest, highest), lowest, highest)
        if max_messages <= 0:
            return Page(GetStatus.NO_MATCHED_MESSAGE, offset, lowest, highest)
        position = offset * UNIT_SIZE
        units = queue.files.find(position)
        readable = 0 if units is None else units.readable
        if units is None or readable <= position - units.from_offset or not units.acquire():
            per_file = queue.files.file_size // UNIT_SIZE
            return Page(GetStatus.OFFSET_FOUND_NULL, offset + per_file - offset % per_file, lowest, highest)
        try:
            return self._read(queue, units, readable, offset, max_messages, tags, lowest, highest, log_end, at_once)
        finally:
            units.release()

    def pages_of(self, topic: str, queue_id: int, only_flushed: bool) -> kernels.QueuePages | None:
        """Returns what reads the usual pages of a queue in one step; None if there is no such queue, or no such step.

        With `only_flushed` the pages have records on disk only.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self._tries_at_once:
            return None
        return kernels.QueuePages(self._pages, self._queues.table, queue, self._log.queue, only_flushed)

    @staticmethod
    def _outside(offset: int, lowest: int, highest: int) -> tuple[GetStatus, int]:
        if highest == 0:
            return GetStatus.NO_MESSAGE_IN_QUEUE, 0
        if offset < lowest:
            return GetStatus.OFFSET_TOO_SMALL, lowest
        if offset == highest:
            return GetStatus.OFFSET_OVERFLOW_ONE, offset
        return GetStatus.OFFSET_OVERFLOW_BADLY, highest

    def _read(
        self,
        queue: ConsumeQueue,
        units: MappedFile,
        readable: int,
        offset: int,
        max_messages: int,
        tags: TagFilter,
        lowest: int,
        highest: int,
        log_end: int,
        at_once: bool,
    ) -> Page:
        """Reads the page whose first unit lies in the acquired file `units`. Calls the kernel once per log file."""
        view = units.map.view
        at = offset * UNIT_SIZE - units.from_offset
        stop = at + (max_messages * UNIT_SIZE if max_messages > _MIN_EXAMINED else _MIN_EXAMINED * UNIT_SIZE)
        if stop > readable:
            stop = readable
        residency = units.map.residency
        if residency is not None and not residency.check(at, stop):
            units.map.ensure_resident(at, stop, at_once=at_once)
        log = self._log.queue
        log_start, file_size = log.min_offset, log.file_size
        outcome, count, total, physical, loaded = 1, 0, 0, 0, 0
        records = b""
        damaged: tuple[int, ...] = ()
        needed: int = _TARGET.unpack_from(view, at)[0]
        if needed < 0:  # a damaged unit points before the log: it is skipped
            needed = 0
        while needed >= 0:
            file = log.find(needed)
            if file is not None and not file.acquire():
                file = None
            try:
                data, at, offset, count, total, status, bad, last, needed, cold = self._pages.read(
                    view,
                    at,
                    stop,
                    offset,
                    queue.topic_bytes,
                    queue.queue_id,
                    b"" if file is None else file.map.view,
                    needed - needed % file_size,
                    0 if file is None else file.readable,
                    file_size,
                    log_start,
                    log_end,
                    max_messages,
                    count,
                    total,
                    tags.hashes,
                    tags.texts,
                    None if file is None else file.map.residency,
                    log.written_from,
                    loaded,
                )
                if cold is not None and file is not None:
                    if at_once:
                        raise NotResident
                    try:
                        loaded = _load(file, view, at, cold)
                    except StoreFailed:
                        if not count:
                            raise
                        break
            finally:
                if file is not None:
                    file.release()
            records = records + data if records else data
            if status >= 0:
                outcome = status
            if last >= 0:
                physical = last
            if bad is not None:
                damaged += tuple(bad)
        far = log_end - physical > self._in_memory
        return Page(_STATUSES[outcome], offset, lowest, highest, records, count, damaged, far)


def _load(file: MappedFile, units: memoryview, at: int, cold: kernels.Cold) -> int:
    """Loads the records of the units from `at` on. Returns the place of the first unit whose record is not loaded.

    Raises StoreFailed if the disk cannot read the record of the first unit.
    """
    planned, ranges = cold
    if len(ranges) > 1:
        for start, stop, _ in ranges:
            file.map.will_need(start, stop - start)
    for start, stop, place in ranges:
        try:
            file.map.load(start, stop)
        except StoreFailed:
            if place > at:
                return place
            physical, size = _TARGET.unpack_from(units, at)
            start = physical - file.from_offset
            file.map.load(start, min(start + size, file.readable))  # what cannot be read may lie behind this record
            return at + UNIT_SIZE
    return planned


# -- memory --------------------------------------------------------------------------------------------------------


def usable_memory(root: Path = Path("/")) -> int:
    """Returns the bytes of memory that this process may use: those of the machine, or the limit of its control group.

    Reads the files of cgroup v2 and v1 below `root`: of the process's own group and of all groups around it.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = mount / path.strip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
                limits.append(int((folder / name).read_text()))
            if folder == mount:
                break
    return min(limits)
