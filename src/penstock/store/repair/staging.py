"""Builds queues and index anew from the log, beside the old ones: under `penstock/staging/`.

The store's own dispatch builds them, so what comes out is what a start would build. The log and the old queues are only
read, through views that keep every change in memory. Of an old queue one thing is taken: the places at its end whose
messages lay in bytes that are damaged or covered by now. No later record tells that they ever were, and without them
their offsets would be given a second time. A crash leaves a folder that nobody looks into and the next build removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import disk_refused
from penstock.format.constants import BLANK_HEADER_SIZE, BLANK_MAGIC
from penstock.format.queue_unit import NO_RECORD_SIZE, PRE_BLANK, UNIT_SIZE, pack_unit
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Placeholders
from penstock.store.consume_queues import ConsumeQueues, DerivedFiles
from penstock.store.damage import DamagedRange
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch import Dispatcher
from penstock.store.index import Index
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.mapped_file import MappedFile
from penstock.store.overlay import OverlayFiles
from penstock.store.records import RecordReader
from penstock.store.repair.compare import OldQueues, QueueName
from penstock.store.repair.report import Progress
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import Settings

Selects = Callable[[str, int], bool]
_FAR = 2**63 - 1


class _Lost(NamedTuple):
    """Places of a queue, next to each other, and the unit that they get."""

    first: int
    last: int
    unit: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StagingPlan:
    """What is to be built, and from which part of the log."""

    log_end: int
    restarts: Mapping[QueueName, int]
    """Where queues begin again at offset 0."""
    damage: Sequence[DamagedRange]
    selects: Selects | None = None
    """Which queues it is about; None: all."""
    builds: Selects | None = None
    """Which of them are not built elsewhere and `load`ed; None: all."""
    with_index: bool = True
    source: Layout | None = None
    """The store that the log belongs to, if that is another one than the new queues are for."""


class Staging:
    """Queues and index under construction. Use it in a `with` block, which closes them."""

    def __init__(
        self, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int], plan: StagingPlan
    ) -> None:
        self._io = files
        self._layout = layout
        self._log_end = plan.log_end
        source = plan.source or layout
        queue_size = settings.mapped_file_size_consume_queue
        self.old = OldQueues(files, source, queue_size, plan.selects)
        reading = files if files.read_only else OverlayFiles()
        self.log = CommitLog(reading, layout.commit_log, settings, clock)
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
        """Those in the part of the log that was dispatched."""
        return self._dispatcher.placeholders

    # -- building --------------------------------------------------------------------------------------------

    def build(self, progress: Progress) -> None:
        """Dispatches the whole log. Raises StoreFailed."""
        begin = max(self.log.min_offset, 0)
        dispatcher = self._dispatcher
        dispatcher.move_to(begin)
        while dispatcher.behind > 0:
            dispatcher.step()
            progress("build queues and index", dispatcher.position - begin, self._log_end - begin)

    def load(self, names: Iterable[QueueName], placeholders: list[tuple[int, int]]) -> None:
        """Takes in queues that lie in the staging folder already, and the placeholders that their builder came past."""
        self.placeholders.add(placeholders)
        for name in names:
            queue = self.queues.find_or_add(*name)
            if queue is not None:
                queue.load()

    def keep_ends(self) -> None:
        """Takes over the places at the old queues' ends whose messages are lost. Raises StoreFailed."""
        for old in self.old if self._damage or self.placeholders else ():
            lost = self._lost_end(old, self.queues.find(old.topic, old.queue_id))
            built = self.queues.find_or_add(old.topic, old.queue_id) if lost else None
            if built is None or old.topic in self._dispatcher.deleted:
                continue
            if not built.files.files and lost[0].first:
                built.fill_up_to(lost[0].first)
            for each in lost:
                built.fill_up_to(each.last + 1, each.unit)

    def _lost_end(self, old: ConsumeQueue, built: ConsumeQueue | None) -> list[_Lost]:
        """The places behind a built queue's end that an old one has, and whose messages are lost."""
        lost: list[_Lost] = []
        end = -1 if built is None else built.max_physical_offset
        start = max(0 if built is None else built.max_offset, old.files.min_offset // UNIT_SIZE)
        for number in range(start, old.max_offset):
            unit = self._unit_of_lost(old.unit(number), max(end, 0))
            if unit is not None:
                lost.append(_Lost(start, number, unit))
                start = number + 1
        return lost

    def _unit_of_lost(self, unit: tuple[int, int, int], begin: int) -> bytes | None:
        """What stands for a message that lay behind `begin` and is lost; None if it is not known to be."""
        offset, size, tags_code = unit
        if size == NO_RECORD_SIZE:  # a start has kept the place already
            covered = self.placeholders.first_between(begin, _FAR)
            if covered is None and any(each.physical_offset >= begin for each in self._damage):
                return PRE_BLANK
        else:
            covered = self._covering(offset)
            if covered is None and any(each.physical_offset <= offset < each.end for each in self._damage):
                return pack_unit(offset, size, tags_code)
        return None if covered is None else pack_unit(*covered, 0)

    def _covering(self, offset: int) -> tuple[int, int] | None:
        """The placeholder over a position of the log, or before the filler that covers it, at a file's end."""
        found = self.placeholders.last_before(offset)
        if found is None or offset < sum(found):
            return found
        size = self.log.queue.file_size
        filler = self.log.read(sum(found), BLANK_HEADER_SIZE) or bytes(BLANK_HEADER_SIZE)
        is_filler = int.from_bytes(filler[4:], "big") == BLANK_MAGIC
        return found if is_filler and sum(found) // size == offset // size else None

    def sync(self) -> None:
        """Brings all that was built to disk. Raises StoreFailed."""
        try:
            for queue in self.queues:
                for file in queue.files.files:
                    file.map.sync()
                    self._set_time(queue, file)
            for table in () if self.index is None else self.index.files:
                table.sync()
        except OSError as error:
            raise disk_refused("cannot sync what was built", self._layout.staging, 0, error) from error

    def _set_time(self, queue: ConsumeQueue, file: MappedFile) -> None:
        """RocketMQ looks for a time in the first queue file that was modified after it."""
        offset, size, _ = queue.unit((file.from_offset + file.wrote) // UNIT_SIZE - 1)
        timestamp = self.records.store_timestamp(offset) if size != NO_RECORD_SIZE else -1
        if timestamp > 0:
            self._io.set_modified_ms(file.path, timestamp)
