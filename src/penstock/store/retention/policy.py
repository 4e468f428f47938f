"""The retention policy: decides which log files may be deleted, when and why. It has no clock and deletes nothing.

RocketMQ's rules: files whose last change is `fileReservedTime` hours ago are old. Old files are deleted at the hours of
`deleteWhen`, or when disk usage exceeds `diskMaxUsedSpaceRatio`, or on request. Above `diskSpaceCleanForciblyRatio`
young files are deleted, too. Above `diskSpaceWarningLevelRatio` puts are refused. Consumers do not delay deletion.

Penstock's rules: on a large disk a ratio says little, so limits in bytes override the two upper ratios. With
`diskEnoughFreeBytes` free no put is refused; with twice as many free no young file is deleted. With less than
`diskMinFreeBytes` free puts are refused; with less than twice as many free young files are deleted.

`find_unread` computes exactly, from queue units and group offsets, which messages would be deleted unread. A group that
has an offset for any queue of a topic counts as a reader of all its queues. If it has no offset for a queue, it has
read nothing of that queue. The delivery of delayed messages counts as a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from pathlib import Path

import msgspec

from penstock.format.constants import SCHEDULE_TOPIC
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files.file_io import Files
from penstock.store.files.mapped_file import MappedFile
from penstock.store.settings import Settings

MAX_FILES_A_PASS = 10
_HOUR_MS = 3_600_000


class Level(IntEnum):
    """The action that the disk usage requires; each level includes the lower ones."""

    ROOMY = 0
    """No action: old files wait for the hour of deleteWhen."""
    OLD_FILES_GO = 1
    """Old files are deleted now."""
    YOUNG_FILES_GO = 2
    """Young files are deleted, too, if cleanFileForciblyEnable is set."""
    FULL = 3
    """Puts are refused."""


class Cause(Enum):
    """Why a file is deleted."""

    AGE = "age"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the partition of a folder is."""

    path: Path
    used: int
    usable: int
    """Bytes that this user can still allocate; blocks reserved for root are neither used nor usable."""

    @property
    def ratio(self) -> float:
        """The used share, rounded up to whole percents as RocketMQ does."""
        return -(-100 * self.used // max(self.used + self.usable, 1)) / 100

    def less(self, size: int) -> DiskUsage:
        """Returns the usage after the deletion of `size` bytes."""
        return replace(self, used=max(self.used - size, 0), usable=self.usable + size)


@dataclass(frozen=True, slots=True)
class LogFile:
    """The facts about a log file that decide about its deletion."""

    from_offset: int
    size: int
    modified_ms: int
    safe: bool
    """Whether the whole file is on disk and dispatched."""

    @classmethod
    def of(cls, files: Files, file: MappedFile, *, safe_offset: int) -> LogFile:
        """`safe_offset` is the position up to which the log is on disk and dispatched."""
        try:
            modified = files.modified_ms(file.path)
        except FileNotFoundError:  # deleted by hand: it counts as expired
            modified = 0
        return cls(file.from_offset, file.size, modified, file.from_offset + file.size <= safe_offset)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The settings that deletion follows."""

    hours: frozenset[int]
    reserved_ms: int
    old_files_ratio: float
    young_files_ratio: float
    full_ratio: float
    enough_free: int
    min_free: int
    delete_young: bool

    @classmethod
    def of(cls, settings: Settings) -> RetentionLimits:
        return cls(
            hours=frozenset(int(hour) for hour in settings.delete_when.split(";")),
            reserved_ms=settings.file_reserved_time * _HOUR_MS,
            old_files_ratio=settings.disk_max_used_space_ratio / 100,
            young_files_ratio=settings.disk_space_clean_forcibly_ratio,
            full_ratio=settings.disk_space_warning_level_ratio,
            enough_free=settings.disk_enough_free_bytes,
            min_free=settings.disk_min_free_bytes,
            delete_young=settings.clean_file_forcibly_enable,
        )

    # -- the disk --------------------------------------------------------------------------------------------

    def level(self, usage: DiskUsage) -> Level:
        if self._is_over(usage, self.full_ratio, 1):
            return Level.FULL
        if self._is_over(usage, self.young_files_ratio, 2):
            return Level.YOUNG_FILES_GO
        return Level.OLD_FILES_GO if usage.ratio > self.old_files_ratio else Level.ROOMY

    def _is_over(self, usage: DiskUsage, ratio: float, times: int) -> bool:
        if usage.usable < self.min_free * times:
            return True
        return usage.ratio > ratio and (not self.enough_free or usage.usable < self.enough_free * times)

    def worst(self, usages: Iterable[DiskUsage]) -> tuple[Level, DiskUsage | None]:
        """Returns the highest level and the first partition that has it; ROOMY and None if `usages` is empty."""
        worst: tuple[Level, DiskUsage | None] = (Level.ROOMY, None)
        for usage in usages:
            level = self.level(usage)
            if worst[1] is None or level > worst[0]:
                worst = (level, usage)
        return worst

    def refusal(self, usage: DiskUsage) -> str:
        """Returns a sentence for the user: why puts are refused, and when they are accepted again."""
        free = f"{usage.usable >> 20} MiB free"
        where = f"the disk of {usage.path} is {usage.ratio:.0%} full, {free}"
        if usage.usable < self.min_free:
            return f"{where}; puts are accepted again with {self.min_free >> 20} MiB free (diskMinFreeBytes)"
        again = f"{where}; puts are accepted again at {self.full_ratio:.0%} (diskSpaceWarningLevelRatio)"
        if self.enough_free:
            again += f", or with {self.enough_free >> 20} MiB free (diskEnoughFreeBytes)"
        return again

    # -- the clock -------------------------------------------------------------------------------------------

    def is_hour(self, now_ms: int) -> bool:
        """Whether the local hour is one of deleteWhen."""
        return datetime.fromtimestamp(now_ms / 1000).hour in self.hours

    def next_hour_ms(self, now_ms: int) -> int:
        """Returns the next time, in ms, when the local hour is one of deleteWhen; `now_ms` if it is one now."""
        moment = datetime.fromtimestamp(now_ms / 1000)
        while moment.hour not in self.hours:
            moment = moment.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return max(now_ms, int(moment.timestamp() * 1000))

    def expires_ms(self, file: LogFile) -> int:
        return file.modified_ms + self.reserved_ms

    # -- the files -------------------------------------------------------------------------------------------

    def cause(self, file: LogFile, now_ms: int, level: Level) -> Cause | None:
        """Returns why a pass now would delete a file; None if it stays. `file` must not be the log's last one."""
        if not file.safe:
            return None
        if self.expires_ms(file) <= now_ms:
            return Cause.AGE
        return Cause.DISK if level >= Level.YOUNG_FILES_GO and self.delete_young else None

    def files_to_delete(
        self, files: Sequence[LogFile], now_ms: int, usages: Sequence[DiskUsage]
    ) -> Iterator[tuple[LogFile, Cause]]:
        """Yields the files that passes now would delete, in order, if nothing else changes the disk.

        `usages[0]` must be the log's partition: deletion frees space there.
        """
        for file in files[:-1]:
            cause = self.cause(file, now_ms, self.worst(usages)[0])
            if cause is None:
                return
            yield file, cause
            usages = [usage.less(file.size) for usage in usages[:1]] + list(usages[1:])


DELIVERY = "(delivery of delayed messages)"
"""Used like a group name; no real group can have it."""
_UNITS_AT_ONCE = 65_536
GroupOffsets = Mapping[tuple[str, str], Mapping[int, int]]
"""By (topic, group), by queue id: the next queue offset that the group will read."""


class Unread(msgspec.Struct, frozen=True):
    """Messages of one queue that would be deleted before a group has read them."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    """The queue offset that the group will read next; -1 if the group has no offset for this queue."""
    messages: int
    size: int
    """Bytes of the messages' records."""


def with_delivery(offsets: GroupOffsets, delay_offsets: Mapping[int, int]) -> GroupOffsets:
    """Returns `offsets` with delayed delivery as a group: level n reads queue n - 1 of the schedule topic."""
    levels = {level - 1: offset for level, offset in delay_offsets.items()}
    return {**offsets, (SCHEDULE_TOPIC, DELIVERY): levels} if levels else offsets


def find_unread(queues: ConsumeQueues, offsets: GroupOffsets, log_offset: int) -> list[Unread]:
    """Returns, by group and queue, the unread messages before physical offset `log_offset`; most bytes first."""
    by_topic: dict[str, list[tuple[str, Mapping[int, int]]]] = {}
    for (topic, group), by_queue in offsets.items():
        by_topic.setdefault(topic, []).append((group, by_queue))
    unread: list[Unread] = []
    for queue in queues:
        for group, by_queue in by_topic.get(queue.topic, ()):
            offset = by_queue.get(queue.queue_id, -1)
            messages, size = count_before(queue, offset, log_offset)
            if messages:
                unread.append(Unread(group, queue.topic, queue.queue_id, offset, messages, size))
    return sorted(unread, key=lambda each: (-each.size, each.group, each.topic, each.queue_id))


def count_before(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> tuple[int, int]:
    """Counts messages from `queue_offset` on whose records lie before `log_offset`; returns (messages, bytes)."""
    offset, messages, size = max(queue_offset, queue.min_offset), 0, 0
    while (units := queue.page(offset, _UNITS_AT_ONCE)) is not None:
        real = units[units["size"] != NO_RECORD_SIZE]
        before = real[real["offset"] < log_offset]
        messages += len(before)
        size += int(before["size"].sum(dtype="i8"))
        if len(before) < len(real):
            break
        offset += len(units)
    return messages, size
