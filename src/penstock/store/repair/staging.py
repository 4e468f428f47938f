"""Builds queues and index from the log under `penstock/staging/`, beside the old ones.

The store's own dispatcher builds them, so the result equals queues and index that a start builds. The log and the old
queues are read through views that keep every change in memory. From an old queue, only the units at its end are kept
whose messages lay in damaged or covered bytes. No later record shows that these messages existed, and without their
units their queue offsets would be assigned a second time.

A crash during a build leaves a folder that no start reads, and that the next build removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import disk_refused
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.queue_unit import NO_RECORD_SIZE, PRE_BLANK, UNIT_SIZE, pack_unit
from penstock.format.record_layout import is_filler
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Placeholders
from penstock.store.consume_queues import ConsumeQueues, DerivedFiles
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.damage import DamagedRange
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch import Dispatcher
from penstock.store.file_io import Files
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.mapped_file import MappedFile
from penstock.store.record_reader import RecordReader
from penstock.store.repair.compare import OldQueues, QueueName
from penstock.store.repair.report import Progress
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import Settings

Selects = Callable[[str, int], bool]
_FAR = 2**63 - 1


class _LostUnits(NamedTuple):
    """Consecutive queue offsets of lost messages, `first` to `last` inclusive, and the unit that each gets."""

    first: int
    last: int
    unit: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StagingPlan:
    """Which queues to build, and from which part of the log."""

    log_end: int
    restarts: Mapping[QueueName, int]
    """By queue, the physical offset where it restarts at queue offset 0."""
    damage: Sequence[DamagedRange]
    selects: Selects | None = None
    """Selects the queues to rebuild; None for all."""
    builds: Selects | None = None
    """Selects those of them that `build` builds; the caller loads the others with `load`. None for all."""
    with_index: bool = True
    source: Layout | None = None
    """The layout of the store that owns the log, if the new queues are for another folder."""


class Staging:
    """Queues and index under construction. A context manager: it opens the log, and closes everything at the end."""

    def __init__(
        self, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int], plan: StagingPlan
    ) -> None:
        self._io = files
        self._layout = layout
        self._log_end = plan.log_end
        source = plan.source or layout
        queue_size = settings.mapped_file_size_consume_queue
        self.old = OldQueues(files, source, queue_size, plan.selects)
        view = files if files.read_only else OverlayFiles()
        self.log = CommitLog(view, layout.commit_log, settings, clock)
        self.records = RecordReader(self.log, verify_crc=False)
        self.queues = ConsumeQueues(files, layout.staging / "consumequeue", queue_size)
        self.index: Index | None = None
        if plan.with_index and settings.message_index_enable:
            self.index = Index(files, layout.staging / "index", settings.index_geometry, clock)
        self._dispatcher = Dispatcher(
            self.log, DerivedFiles(self.queues, self.index), settings.delay_levels, RunningFlags()
        )
        self._dispatcher.build_only(plan.builds or plan.selects)
        self._dispatcher.set_deleted(read_deleted_topics(files, source.deleted_topics), plan.restarts)
        self._dispatcher.set_damage(plan.damage)
        self._damage = plan.damage

    def __enter__(self) -> Staging:
        self.log.queue.load()
        if self.log.queue.files:
            self.log.queue.truncate(self._log_end, zero=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.log.close()

    @property
    def placeholders(self) -> Placeholders:
        """The placeholders in the dispatched part of the log."""
        return self._dispatcher.placeholders

    # -- building --------------------------------------------------------------------------------------------

    def build(self, progress: Progress) -> None:
        """Dispatches the whole log to the new queues and index. Raises StoreFailed."""
        begin = max(self.log.min_offset, 0)
        dispatcher = self._dispatcher
        dispatcher.move_to(begin)
        while dispatcher.behind > 0:
            dispatcher.step()
            progress("build queues and index", dispatcher.position - begin, self._log_end - begin)

    def load(self, names: Iterable[QueueName], placeholders: list[tuple[int, int]]) -> None:
        """Loads queues that are already in the staging folder.

        `placeholders`: (offset, size) of the placeholder records that their builder found in the log.
        """
        self.placeholders.add(placeholders)
        for name in names:
            queue = self.queues.find_or_add(*name)
            if queue is not None:
                queue.load()

    def keep_lost_tails(self) -> None:
        """Appends to the new queues units for lost messages at the ends of the old queues. Raises StoreFailed."""
        for old in self.old if self._damage or self.placeholders else ():
            lost = self._lost_end(old, self.queues.find(old.topic, old.queue_id))
            built = self.queues.find_or_add(old.topic, old.queue_id) if lost else None
            if built is None or old.topic in self._dispatcher.deleted:
                continue
            if not built.files.files and lost[0].first:
                built.fill_up_to(lost[0].first)
            for each in lost:
                built.fill_up_to(each.last + 1, each.unit)

    def _lost_end(self, old: ConsumeQueue, built: ConsumeQueue | None) -> list[_LostUnits]:
        """Returns the lost messages that the old queue has after the end of the built queue."""
        lost: list[_LostUnits] = []
        end = -1 if built is None else built.max_physical_offset
        start = max(0 if built is None else built.max_offset, old.files.min_offset // UNIT_SIZE)
        for number in range(start, old.max_offset):
            unit = self._unit_of_lost(old.unit(number), max(end, 0))
            if unit is not None:
                lost.append(_LostUnits(start, number, unit))
                start = number + 1
        return lost

    def _unit_of_lost(self, unit: tuple[int, int, int], begin: int) -> bytes | None:
        """Returns the new unit for a lost message; None if the message is not known to be lost.

        `unit`: its old unit. `begin`: the message was in the log after this physical offset.
        """
        offset, size, tags_code = unit
        if size == NO_RECORD_SIZE:  # a start has replaced the unit already
            covered = self.placeholders.first_between(begin, _FAR)
            if covered is None and any(each.physical_offset >= begin for each in self._damage):
                return PRE_BLANK
        else:
            covered = self._covering(offset)
            if covered is None and any(each.physical_offset <= offset < each.end for each in self._damage):
                return pack_unit(offset, size, tags_code)
        return None if covered is None else pack_unit(*covered, 0)

    def _covering(self, offset: int) -> tuple[int, int] | None:
        """Returns (offset, size) of the placeholder that covers a physical offset, or None.

        The filler after a placeholder at the end of a file counts as part of the placeholder.
        """
        placeholder = self.placeholders.last_before(offset)
        if placeholder is None or offset < sum(placeholder):
            return placeholder
        size = self.log.queue.file_size
        following = self.log.read(sum(placeholder), BLANK_HEADER_SIZE) or bytes(BLANK_HEADER_SIZE)
        return placeholder if is_filler(following) and sum(placeholder) // size == offset // size else None

    def sync(self) -> None:
        """Syncs everything that was built. Raises StoreFailed."""
        try:
            for queue in self.queues:
                for file in queue.files.files:
                    file.map.sync()
                    self._set_time(queue, file)
            for table in () if self.index is None else self.index.files:
                table.sync()
        except OSError as error:
            raise disk_refused("cannot sync the new files", self._layout.staging, 0, error) from error

    def _set_time(self, queue: ConsumeQueue, file: MappedFile) -> None:
        """Sets a queue file's modification time to the store time of its last record.

        RocketMQ relies on it: to search by time, it opens the first queue file that was modified after that time.
        """
        offset, size, _ = queue.unit((file.from_offset + file.wrote) // UNIT_SIZE - 1)
        timestamp = self.records.store_timestamp(offset) if size != NO_RECORD_SIZE else -1
        if timestamp > 0:
            self._io.set_modified_ms(file.path, timestamp)
