"""What may be deleted, when and why: decisions over plain values, no files, no clock, no threads.

RocketMQ's rules: at the hours of `deleteWhen`, or when the disk is above `diskMaxUsedSpaceRatio`, or on request, files
go whose last change is `fileReservedTime` hours ago; above `diskSpaceCleanForciblyRatio` younger ones too; above
`diskSpaceWarningLevelRatio` puts are refused. Consumers play no part.

Penstock's own: a ratio says little about a large disk, so the two upper levels also ask for bytes. While
`diskEnoughFreeBytes` are free nothing is refused, and while twice as many are free nothing young is deleted, whatever
the ratio; below `diskMinFreeBytes` puts are refused, and below twice that young files go, whatever the ratio.


What is known of a log file that is asked whether it may go.

Who has not read what would go: exact, from the queues' units and the groups' offsets.

RocketMQ deletes without asking consumers. A group that has an offset for any queue of a topic counts as a reader of all
of its queues; where it has none for a queue, it has read nothing there. Delayed messages that are not delivered yet
have the delivery for a reader.
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
from penstock.store.io import Files
from penstock.store.mapped_file import MappedFile
from penstock.store.settings import Settings

MAX_FILES_A_PASS = 10
_HOUR_MS = 3_600_000


class Level(IntEnum):
    """What a disk's fullness asks for; each level includes those before it."""

    ROOMY = 0
    """Nothing: old files wait for their hour."""
    OLD_FILES_GO = 1
    """Old files go now."""
    YOUNG_FILES_GO = 2
    """Files that are not old go too, if cleanFileForciblyEnable allows it."""
    FULL = 3
    """Puts are refused."""


class Cause(Enum):
    """Why a file goes."""

    AGE = "age"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the partition of a folder is."""

    path: Path
    used: int
    usable: int
    """Bytes that this user can still have; blocks kept for root are neither used nor usable."""

    @property
    def ratio(self) -> float:
        """The used share, rounded up to whole percents as RocketMQ does."""
        return -(-100 * self.used // max(self.used + self.usable, 1)) / 100

    def less(self, size: int) -> DiskUsage:
        """The same after `size` bytes were deleted."""
        return replace(self, used=max(self.used - size, 0), usable=self.usable + size)


@dataclass(frozen=True, slots=True)
class LogFile:
    """What is asked of a file of the log before it may go."""

    from_offset: int
    size: int
    modified_ms: int
    safe: bool
    """Whether all of it is on disk and dispatched."""


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
    young_may_go: bool

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
            young_may_go=settings.clean_file_forcibly_enable,
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
        """The highest level, and the first partition that has it; nothing is known of none."""
        worst: tuple[Level, DiskUsage | None] = (Level.ROOMY, None)
        for usage in usages:
            level = self.level(usage)
            if worst[1] is None or level > worst[0]:
                worst = (level, usage)
        return worst

    def refusal(self, usage: DiskUsage) -> str:
        """Why puts are refused, and what ends that: path, numbers and settings."""
        free = f"{usage.usable >> 20} MiB free"
        where = f"the disk of {usage.path} is {usage.ratio:.0%} full, {free}"
        if usage.usable < self.min_free:
            return f"{where}; puts are taken again from {self.min_free >> 20} MiB free on (diskMinFreeBytes)"
        again = f"{where}; puts are taken again at {self.full_ratio:.0%} (diskSpaceWarningLevelRatio)"
        if self.enough_free:
            again += f", or from {self.enough_free >> 20} MiB free on (diskEnoughFreeBytes)"
        return again

    # -- the clock -------------------------------------------------------------------------------------------

    def is_hour(self, now_ms: int) -> bool:
        """Whether the local hour is one of deleteWhen."""
        return datetime.fromtimestamp(now_ms / 1000).hour in self.hours

    def next_hour_ms(self, now_ms: int) -> int:
        """The next moment, now included, at which the local hour is one of deleteWhen."""
        moment = datetime.fromtimestamp(now_ms / 1000)
        while moment.hour not in self.hours:
            moment = moment.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return max(now_ms, int(moment.timestamp() * 1000))

    def expires_ms(self, file: LogFile) -> int:
        return file.modified_ms + self.reserved_ms

    # -- the files -------------------------------------------------------------------------------------------

    def cause(self, file: LogFile, now_ms: int, level: Level) -> Cause | None:
        """Why a file that is not the log's last would go in a pass now; None if it stays."""
        if not file.safe:
            return None
        if self.expires_ms(file) <= now_ms:
            return Cause.AGE
        return Cause.DISK if level >= Level.YOUNG_FILES_GO and self.young_may_go else None

    def files_to_delete(
        self, files: Sequence[LogFile], now_ms: int, usages: Sequence[DiskUsage]
    ) -> Iterator[tuple[LogFile, Cause]]:
        """The files that passes now would delete, one after the other, if nothing else happened on the disk.

        The first usage is that of the log's own partition, on which room is made.
        """
        for file in files[:-1]:
            cause = self.cause(file, now_ms, self.worst(usages)[0])
            if cause is None:
                return
            yield file, cause
            usages = [usage.less(file.size) for usage in usages[:1]] + list(usages[1:])


def facts_of(files: Files, file: MappedFile, *, safe_offset: int) -> LogFile:
    """`safe_offset` is up to where the log is on disk and dispatched. A file that is lost is as old as can be."""
    try:
        modified = files.modified_ms(file.path)
    except FileNotFoundError:  # somebody deleted it by hand: nothing is left to keep
        modified = 0
    return LogFile(file.from_offset, file.size, modified, file.from_offset + file.size <= safe_offset)


DELIVERY = "(delivery of delayed messages)"
"""Stands for a group: no group may be called so."""
_UNITS_AT_ONCE = 65_536
GroupOffsets = Mapping[tuple[str, str], Mapping[int, int]]
"""By (topic, group), by queue id: the next queue offset that the group will read."""


class Unread(msgspec.Struct, frozen=True):
    """Messages of one queue that would go before a group has read them."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    """Where the group will go on, -1 if it has no offset for this queue."""
    messages: int
    size: int
    """Bytes of their records."""


def with_delivery(offsets: GroupOffsets, delay_offsets: Mapping[int, int]) -> GroupOffsets:
    """The groups' offsets, and those of the delivery: level n reads queue n - 1 of the schedule topic."""
    levels = {level - 1: offset for level, offset in delay_offsets.items()}
    return {**offsets, (SCHEDULE_TOPIC, DELIVERY): levels} if levels else offsets


def find_unread(queues: ConsumeQueues, offsets: GroupOffsets, log_offset: int) -> list[Unread]:
    """What each group has not read of the messages before a physical offset, the most bytes first."""
    by_topic: dict[str, list[tuple[str, Mapping[int, int]]]] = {}
    for (topic, group), by_queue in offsets.items():
        by_topic.setdefault(topic, []).append((group, by_queue))
    found: list[Unread] = []
    for queue in queues:
        for group, by_queue in by_topic.get(queue.topic, ()):
            offset = by_queue.get(queue.queue_id, -1)
            messages, size = count_before(queue, offset, log_offset)
            if messages:
                found.append(Unread(group, queue.topic, queue.queue_id, offset, messages, size))
    return sorted(found, key=lambda each: (-each.size, each.group, each.topic, each.queue_id))


def count_before(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> tuple[int, int]:
    """(messages, bytes) from a queue offset on whose records lie before a physical offset."""
    place, messages, size = max(queue_offset, queue.min_offset), 0, 0
    while (units := queue.page(place, _UNITS_AT_ONCE)) is not None:
        real = units[units["size"] != NO_RECORD_SIZE]
        before = real[real["offset"] < log_offset]
        messages += len(before)
        size += int(before["size"].sum(dtype="i8"))
        if len(before) < len(real):
            break
        place += len(units)
    return messages, size
