"""Predicts deletion: which file is deleted when and why, how full the disk is, and which groups have unread messages.

`Explainer` changes nothing, and works on a read-only view and on an open store. It uses the decisions of `policy`, as
the cleaner does. The prediction holds as long as neither the store nor the disk changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.store.engine_parts import Engine
from penstock.store.put_and_get_statistics import DiskFigures
from penstock.store.retention.policy import (
    Cause,
    DiskUsage,
    GroupOffsets,
    Level,
    LogFile,
    RetentionLimits,
    Unread,
    find_unread,
)
from penstock.store.single_record_reader import RecordReader


class FileOutlook(msgspec.Struct, frozen=True):
    """The prediction for one log file."""

    name: str
    size: int
    modified_ms: int
    """When the file was last changed; its age counts from here."""
    stored_from_ms: int
    stored_until_ms: int
    """An upper bound: store time of the first message of the next file, or of the newest message; -1 if unknown."""
    expires_ms: int
    """When the file is old enough to be deleted."""
    goes_ms: int
    """First time in an hour of deleteWhen when this and all earlier files are old enough; -1 for the last file."""
    cause: Cause | None
    """Why a pass would delete the file now; None if the file stays."""
    why: str


class PlannedDeletion(msgspec.Struct, frozen=True):
    """The log files that cleaner passes would delete at one moment."""

    at_ms: int
    files: list[str]
    size: int
    """Total bytes of these files."""
    log_offset: int
    """Everything before this physical offset would be deleted."""
    unread: list[Unread]


class Outlook(msgspec.Struct, frozen=True):
    """The whole explanation."""

    now_ms: int
    disk: list[DiskFigures]
    puts_refused: str
    """Why the disk is too full for puts; empty if it is not."""
    files: list[FileOutlook]
    now: PlannedDeletion
    """The files that passes would delete now, regardless of the hour; `penstock store retention` deletes them."""
    next_hour: PlannedDeletion
    """The files that passes would have deleted by the next hour of deleteWhen, including those of `now`."""


class Explainer:
    """Computes the prediction for one engine. Stateless."""

    def __init__(self, engine: Engine, records: RecordReader, limits: RetentionLimits) -> None:
        self._io = engine.io
        self._log = engine.log
        self._queues = engine.queues
        self._records = records
        self._limits = limits

    def explain(self, now_ms: int, usages: Sequence[DiskUsage], offsets: GroupOffsets) -> Outlook:
        limits = self._limits
        end = self._log.queue.wrote_offset
        files = [LogFile.of(self._io, file, safe_offset=end) for file in self._log.queue.files]
        level, worst = limits.worst(usages)
        causes = {file.from_offset: cause for file, cause in limits.files_to_delete(files, now_ms, usages)}
        return Outlook(
            now_ms=now_ms,
            disk=[disk_figures(usage, limits) for usage in usages],
            puts_refused=limits.refusal(worst) if worst is not None and level is Level.FULL else "",
            files=self._outlooks(files, causes, now_ms),
            now=self._going(files, now_ms, usages, offsets),
            next_hour=self._going(files, limits.next_hour_ms(now_ms), usages, offsets),
        )

    def _outlooks(self, files: list[LogFile], causes: dict[int, Cause], now_ms: int) -> list[FileOutlook]:
        starts = [self._records.store_timestamp(file.from_offset) for file in files]
        ends = [*starts[1:], self._log.newest_timestamp or -1]
        oldest_ready = 0
        outlooks: list[FileOutlook] = []
        for number, file in enumerate(files):
            expires = self._limits.expires_ms(file)
            oldest_ready = max(oldest_ready, expires)
            last = number == len(files) - 1
            cause = causes.get(file.from_offset)
            outlooks.append(
                FileOutlook(
                    name=f"{file.from_offset:020d}",
                    size=file.size,
                    modified_ms=file.modified_ms,
                    stored_from_ms=starts[number],
                    stored_until_ms=ends[number],
                    expires_ms=expires,
                    goes_ms=-1 if last else self._limits.next_hour_ms(max(oldest_ready, now_ms)),
                    cause=cause,
                    why=_why(cause, last, expires, now_ms),
                )
            )
        return outlooks

    def _going(
        self, files: list[LogFile], at_ms: int, usages: Sequence[DiskUsage], offsets: GroupOffsets
    ) -> PlannedDeletion:
        going = [file for file, _ in self._limits.files_to_delete(files, at_ms, usages)]
        end = going[-1].from_offset + going[-1].size if going else max(self._log.min_offset, 0)
        unread = find_unread(self._queues, offsets, end) if going else []
        names = [f"{file.from_offset:020d}" for file in going]
        return PlannedDeletion(at_ms, names, sum(file.size for file in going), end, unread)


def _why(cause: Cause | None, last: bool, expires_ms: int, now_ms: int) -> str:
    if cause is Cause.AGE:
        return "older than fileReservedTime"
    if cause is Cause.DISK:
        return "not old, but the disk is above diskSpaceCleanForciblyRatio"
    if last:
        return "the last file always stays"
    return "not old enough" if expires_ms > now_ms else "old enough, but behind a file that stays"


def disk_figures(usage: DiskUsage, limits: RetentionLimits) -> DiskFigures:
    return DiskFigures(str(usage.path), usage.used, usage.usable, usage.ratio, limits.level(usage).name)
