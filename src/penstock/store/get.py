"""Getting a page of messages from a queue, with RocketMQ's statuses and next offsets.

A page never crosses the end of a queue file and holds at least one message if one matches. A unit whose record is
damaged or gone is passed over, and only that unit. Nothing is served that is not what the unit promises: position,
size, body CRC, topic, queue and queue offset are checked.
"""

from __future__ import annotations

import os

from penstock.format.rows import Reason
from penstock.format.topics import is_readable_topic
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import NO_RECORD_SIZE, ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.queue_ext import QueueExtensions
from penstock.store.records import Records, belongs_to
from penstock.store.settings import Settings
from penstock.store.status import GetStatus, Page
from penstock.store.tag_filter import TagFilter

_LEAST_UNITS_EXAMINED = 800


class Getter:
    """Answers gets; keeps nothing between them."""

    def __init__(
        self,
        settings: Settings,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        extensions: QueueExtensions,
        records: Records,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._extensions = extensions
        self._records = records
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._in_memory = ram * settings.access_message_in_memory_max_ratio // 100
        self._limits = (
            (
                settings.max_transfer_count_on_message_in_memory,
                settings.max_transfer_bytes_on_message_in_memory,
            ),
            (settings.max_transfer_count_on_message_in_disk, settings.max_transfer_bytes_on_message_in_disk),
        )

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int, tags: TagFilter) -> Page:
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            known = queue_id >= 0 and is_readable_topic(topic)
            status = GetStatus.NO_MESSAGE_IN_QUEUE if known else GetStatus.NO_MATCHED_LOGIC_QUEUE
            return Page(status, 0, 0, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        answer = self._outside(offset, lowest, highest)
        if answer is not None:
            return Page(*answer, lowest, highest)
        if max_messages <= 0:
            return Page(GetStatus.NO_MATCHED_MESSAGE, offset, lowest, highest)
        return self._scan(queue, offset, max_messages, tags, lowest, highest)

    @staticmethod
    def _outside(offset: int, lowest: int, highest: int) -> tuple[GetStatus, int] | None:
        if highest == 0:
            return GetStatus.NO_MESSAGE_IN_QUEUE, 0
        if offset < lowest:
            return GetStatus.OFFSET_TOO_SMALL, lowest
        if offset == highest:
            return GetStatus.OFFSET_OVERFLOW_ONE, offset
        if offset > highest:
            return GetStatus.OFFSET_OVERFLOW_BADLY, highest
        return None

    def _scan(self, queue: ConsumeQueue, offset: int, most: int, tags: TagFilter, lowest: int, highest: int) -> Page:
        units = queue.page(offset, max(_LEAST_UNITS_EXAMINED, most))
        if units is None:
            per_file = queue.files.file_size // 20
            return Page(GetStatus.OFFSET_FOUND_NULL, offset + per_file - offset % per_file, lowest, highest)
        topic = queue.topic.encode()
        log_end, log_start = self._log.max_offset, self._log.min_offset
        status = GetStatus.NO_MATCHED_MESSAGE
        records: list[bytes] = []
        damaged: list[int] = []
        total = examined = physical = 0
        codes = self._extensions.resolve(queue.topic, queue.queue_id, units["tags_code"])
        wanted = tags.may_match(codes)
        for place, (physical, size, _) in enumerate(units.tolist()):
            if self._full(len(records), total, size, most, log_end - physical):
                break
            examined = place + 1
            if size == NO_RECORD_SIZE or physical < log_start:
                status = status if records else GetStatus.MESSAGE_WAS_REMOVING
                continue
            if not wanted[place]:
                status = status if records else GetStatus.NO_MATCHED_MESSAGE
                continue
            record, reason = self._records.raw(physical, size)
            if record is not None and not belongs_to(record, topic, queue.queue_id, offset + place):
                record, reason = None, Reason.BAD_POSITION
            if record is None:
                status = status if records else GetStatus.MESSAGE_WAS_REMOVING
                if reason is not Reason.UNWRITTEN:
                    damaged.append(offset + place)
                continue
            if not tags.matches(record):
                status = status if records else GetStatus.NO_MATCHED_MESSAGE
                continue
            records.append(record)
            total += size
            status = GetStatus.FOUND
        return Page(
            status,
            offset + examined,
            lowest,
            highest,
            records,
            tuple(damaged),
            log_end - physical > self._in_memory,
        )

    def _full(self, count: int, total: int, size: int, most: int, distance: int) -> bool:
        if count == 0:
            return False
        most_count, most_bytes = self._limits[distance > self._in_memory]
        return count >= min(most, most_count) or total + size > most_bytes
