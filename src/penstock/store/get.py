"""The read path: a page of messages from a queue, with RocketMQ's statuses and next offsets.

A page is the result of one get. It ends at the end of a queue file at the latest. If the record of a unit is damaged or
deleted, that unit is skipped, and the page continues after it. Each record's position, size, topic, queue id and queue
offset are compared with its unit, and its body with its CRC. Thread-safe; keeps no state between gets.
"""

from __future__ import annotations

import os
import struct

from penstock.format import kernels
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.topics import is_legal_topic
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.mapped_file import MappedFile
from penstock.store.message import GetStatus, Page, TagFilter
from penstock.store.settings import Settings

_POSITION = struct.Struct(">q")
"""The physical offset, first field of a unit."""
_MIN_BYTES_EXAMINED = 16_000
_STATUSES = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
"""Statuses, indexed by the outcome number that the kernel returns."""


class PageGetter:
    """Reads pages for `MessageStore.get` and the broker's pulls."""

    def __init__(self, settings: Settings, commit_log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = commit_log
        self._queues = queues
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._in_memory = ram * settings.access_message_in_memory_max_ratio // 100
        self._pages = kernels.PageReader(
            self._in_memory,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
            settings.verify_crc_on_read,
        )

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int, tags: TagFilter, log_end: int) -> Page:
        """Reads one page. `log_end` is the physical offset up to which records may be read.

        A record's distance to `log_end` decides whether the transfer limits for messages in memory or on disk apply.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            legal = queue_id >= 0 and is_legal_topic(topic)
            status = GetStatus.NO_MESSAGE_IN_QUEUE if legal else GetStatus.NO_MATCHED_LOGIC_QUEUE
            return Page(status, 0, 0, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        if not lowest <= offset < highest:
            return Page(*self._outside(offset, lowest, highest), lowest, highest)
        if max_messages <= 0:
            return Page(GetStatus.NO_MATCHED_MESSAGE, offset, lowest, highest)
        position = offset * UNIT_SIZE
        units = queue.files.find(position)
        if units is None or units.readable <= position - units.from_offset or not units.acquire():
            per_file = queue.files.file_size // UNIT_SIZE
            return Page(GetStatus.OFFSET_FOUND_NULL, offset + per_file - offset % per_file, lowest, highest)
        try:
            return self._read(queue, units, offset, max_messages, tags, lowest, highest, log_end)
        finally:
            units.release()

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
        offset: int,
        max_messages: int,
        tags: TagFilter,
        lowest: int,
        highest: int,
        log_end: int,
    ) -> Page:
        """Reads the page whose first unit lies in the acquired file `units`. Calls the kernel once per log file."""
        view = units.map.view
        at = offset * UNIT_SIZE - units.from_offset
        stop = min(units.readable, at + max(_MIN_BYTES_EXAMINED, max_messages * UNIT_SIZE))
        log = self._log.queue
        log_start, file_size = log.min_offset, log.file_size
        outcome, next_offset, count, total, physical = 1, offset, 0, 0, 0
        records = b""
        damaged: tuple[int, ...] = ()
        needed: int = _POSITION.unpack_from(view, at)[0]
        while needed >= 0:
            file = log.find(needed)
            if file is not None and not file.acquire():
                file = None
            try:
                data, some, size, examined, status, bad, last, needed = self._pages.read(
                    view,
                    at,
                    stop,
                    next_offset,
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
                )
            finally:
                if file is not None:
                    file.release()
            at += examined * UNIT_SIZE
            next_offset += examined
            count += some
            total += size
            records = records + data if records else data
            if status >= 0:
                outcome = status
            if examined:
                physical = last
            if bad is not None:
                damaged += tuple(bad)
        far = log_end - physical > self._in_memory
        return Page(_STATUSES[outcome], next_offset, lowest, highest, records, count, damaged, far)
