"""How often a store is looked at before a report of it can be believed, whoever does the looking.

    looks = Looks(files, layout)
    while looks.report is None:
        look = looks.begin()
        ...audit; then looks.take(look, report), or looks.lost(look, error) if a file was gone

A closed store is looked at once. Of a store in use an error counts if two looks have it: else it was the owner at work.
A store that somebody opened while it was taken for closed is looked at again, as one in use.


The whole audit on one machine: plans, audits every range of the log, and puts the results together.

    report = audit(folder, settings)

Nothing on disk is changed, and no lock is taken. Memory is proportional to what one batch of records takes, to the
number of queues, and to the slots of one index file (four bytes each); not to the size of the log. Ranges are
independent of each other, so a cluster can audit them as well: `plan_look` there, `audit_index_file` and `audit_range`
anywhere, `settle` and `finish` with the joined results (`penstock.pipeline.jobs.verify`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from penstock.format import kernels
from penstock.store.audit import finding_kinds
from penstock.store.audit.config import ConfigState, QueueBounds, audit_config, read_config
from penstock.store.audit.cover import QueueCover, QueueName
from penstock.store.audit.findings import AuditReport, Collector, Figures, Finding
from penstock.store.audit.index import audit_index
from penstock.store.audit.keys import IndexFacts, audit_index_file
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import PIECE_SIZE, AuditPlan, AuditRange, bounded, pieces, survey
from penstock.store.audit.queues import QueueFacts, audit_queue
from penstock.store.audit.ranges import RangeResult, audit_range
from penstock.store.external.agreement import is_external
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.overlay import OverlayFiles
from penstock.store.settings import Settings

_TRIES = 4


class Look(msgspec.Struct, frozen=True):
    """One look at a store, as it begins."""

    is_live: bool
    """Whether another process may be writing."""
    before: tuple[object, ...]
    """What no process can open and close a store without changing."""


class Looks:
    """All looks at one store; `report` is there once the last is done."""

    def __init__(self, files: Files, layout: Layout, *, in_use: bool | None = None) -> None:
        """`in_use` says whether another process may be writing; None asks the store's lock each time."""
        self._files = files
        self._layout = layout
        self._in_use = in_use
        self._begun = 0
        self._doubted: AuditReport | None = None
        self.report: AuditReport | None = None

    def begin(self) -> Look:
        """Begins one more look."""
        self._begun += 1
        if self._begun > _TRIES:
            return Look(True, ())
        owned = self._in_use
        if owned is None:  # a job may be building the queues of a store that only appends, or be going to
            owned = bool(self._files.lock_owner(self._layout.lock)) or is_external(self._files, self._layout)
        return Look(owned, self._state())

    def take(self, look: Look, seen: AuditReport) -> None:
        """Takes what a look has seen."""
        if self._begun > _TRIES:
            self.report = seen
        elif look.is_live and seen.errors:
            if self._doubted is not None:
                self.report = _confirmed(self._doubted, seen)
            self._doubted = seen
        elif look.is_live or self._in_use is False or self._state() == look.before:
            self.report = seen  # else somebody opened the store while it was taken for closed
        self._end_of_look()

    def lost(self, look: Look, error: FileNotFoundError) -> None:
        """Takes that a file was gone; raises the error unless an owner may have removed it."""
        if self._begun > _TRIES or (not look.is_live and self._state() == look.before):
            raise error
        self._end_of_look()

    def _end_of_look(self) -> None:
        if self.report is None and self._begun == _TRIES:
            self.report = self._doubted

    def _state(self) -> tuple[object, ...]:
        files, layout = self._files, self._layout
        checkpoint = files.modified_ms(layout.checkpoint) if files.exists(layout.checkpoint) else 0
        return files.lock_owner(layout.lock), files.exists(layout.abort), checkpoint


def _confirmed(first: AuditReport, second: AuditReport) -> AuditReport:
    """The second report with those of its errors that the first has too: the others were the owner at work."""
    known = {(finding.kind, finding.path, finding.offset) for finding in first.errors}
    real = [each for each in second.findings if each.severity == "note" or (each.kind, each.path, each.offset) in known]
    return msgspec.structs.replace(second, findings=real)


MAX_OF_A_KIND = 100_000
"""How many findings of one kind are kept; the rest is counted."""
_WAITS, _WAIT_SECONDS = 40, 0.05
Progress = Callable[[int, int], None]
"""Called with the bytes of the log that are done, and all of them."""


def audit(
    store: Path | Layout,
    settings: Settings | None = None,
    files: Files | None = None,
    *,
    in_use: bool | None = None,
    check_crc: bool = True,
    workers: int = 1,
    piece_size: int = PIECE_SIZE,
    progress: Progress = lambda done, total: None,
) -> AuditReport:
    """Audits a store that is closed, has crashed, or is in use.

    `in_use` says whether another process may be writing; None asks the store's lock. A caller that owns the lock and
    leaves the files alone meanwhile says False. `workers` threads share the log, `piece_size` bytes at a time.
    """
    settings = settings or Settings()
    files = files or OverlayFiles()
    layout = store if isinstance(store, Layout) else Layout.of(store, settings)
    auditor = _Auditor(files, layout, settings, check_crc, workers, piece_size, progress)
    looks = Looks(files, layout, in_use=in_use)
    while looks.report is None:
        look = looks.begin()
        try:
            seen = auditor.look(look.is_live)
        except FileNotFoundError as error:
            looks.lost(look, error)
        else:
            looks.take(look, seen)
    return looks.report


def plan_look(
    files: Files, layout: Layout, settings: Settings, *, is_live: bool, check_crc: bool = True
) -> tuple[AuditPlan, ConfigState]:
    """What one look will go over; the config of a store in use is read before anything else of it."""
    plan = survey(files, layout, settings, is_live=is_live, check_crc=check_crc)
    config = read_config(files, plan)
    return (bounded(plan, files) if is_live else plan), config


class _Auditor:
    def __init__(
        self,
        files: Files,
        layout: Layout,
        settings: Settings,
        check_crc: bool,
        workers: int,
        piece_size: int,
        progress: Progress,
    ) -> None:
        self._files = files
        self._layout = layout
        self._settings = settings
        self._check_crc = check_crc
        self._workers = workers
        self._piece_size = piece_size
        self._progress = progress

    def look(self, is_live: bool) -> AuditReport:
        """One audit."""
        plan, config = plan_look(self._files, self._layout, self._settings, is_live=is_live, check_crc=self._check_crc)
        found = (audit_index_file(plan, self._files, number) for number in range(len(plan.index_files)))
        index = tuple(facts for facts in found if facts is not None)
        result = RangeResult()
        topics = kernels.TopicTable()
        for part in self._ranges(plan, index, topics):
            result.join(part)
        settle(plan, self._files, index, result, topics)
        return finish(plan, self._files, config, index, result)

    def _ranges(self, plan: AuditPlan, index: tuple[IndexFacts, ...], topics: kernels.Topics) -> Iterator[RangeResult]:
        cut = pieces(plan, self._files, self._piece_size)
        total = sum(piece.stop - piece.start for piece in cut)
        done = 0
        self._progress(0, total)

        def work(piece: AuditRange) -> RangeResult:
            return audit_range(plan, self._files, piece, index, topics)

        with ThreadPoolExecutor(self._workers) as pool:
            results = pool.map(work, cut) if self._workers > 1 else map(work, cut)
            for piece, result in zip(cut, results, strict=True):
                done += piece.stop - piece.start
                self._progress(done, total)
                yield result


def settle(
    plan: AuditPlan,
    files: Files,
    index: tuple[IndexFacts, ...],
    result: RangeResult,
    topics: kernels.Topics | None = None,
) -> None:
    """Looks again at the newest records that have no units, until the owner of a store in use has made them."""
    for _ in range(_WAITS if plan.is_live else 0):
        behind = [
            missed
            for cover in result.queues.values()
            for missed in cover.missed
            if missed.physical_first >= plan.settled
        ]
        file = next((file for file in plan.log.files if 0 <= plan.settled - file.base < plan.log_file_size), None)
        if not behind or file is None:
            return
        time.sleep(_WAIT_SECONDS)
        newest = AuditRange(file, plan.settled - file.base, plan.log_limit - file.base, True)
        again = audit_range(plan, files, newest, index, topics)
        for name, cover in result.queues.items():
            seen = again.queues.get(name, QueueCover())
            cover.missed = [each for each in cover.missed if each.physical_first < plan.settled] + seen.missed
            cover.matched += seen.matched


def finish(
    plan: AuditPlan, files: Files, config: ConfigState, index: tuple[IndexFacts, ...], result: RangeResult
) -> AuditReport:
    """Puts the results of all ranges together; `result` is their join, in log order."""
    log = LogState(plan, files, result)
    collector = Collector(MAX_OF_A_KIND)
    bounds: dict[QueueName, QueueBounds] = {}
    units = unsettled = 0
    for name in sorted({*plan.queues, *result.queues}):
        facts = audit_queue(
            plan,
            files,
            name,
            result.queues.get(name, QueueCover()),
            log,
            is_configured=not config.topics or name[0] in config.topics,
        )
        _charge(log, facts)
        collector.add(facts.findings)
        units += facts.maximum - facts.minimum
        unsettled += facts.unsettled
        if name in plan.queues:
            bounds[name] = QueueBounds(facts.minimum, facts.maximum)
    collector.add(plan.shape_findings())
    collector.add(log.findings())
    collector.add(audit_index(plan, files, index, result.keys, log))
    collector.add(audit_config(plan, config, log, bounds))
    collector.add(_state_notes(plan, result, unsettled))
    figures = Figures(
        log.begin,
        log.end,
        len(log.files),
        result.records,
        result.messages,
        result.bytes,
        len(plan.queues),
        units,
        len(index),
        sum(facts.count - 1 for facts in index),
        result.keys.keys,
        plan.is_live,
        not plan.crashed,
        plan.check_crc,
    )
    return AuditReport(collector.findings(), figures, log.damage())


def _charge(log: LogState, facts: QueueFacts) -> None:
    for number, count in facts.lost.items():
        log.places.add(number, count)
    for number, count in facts.repaired.items():
        log.repaired.add(number, count)


def _state_notes(plan: AuditPlan, result: RangeResult, unsettled: int) -> Iterator[Finding]:
    if plan.crashed:
        yield finding_kinds.NOT_CLOSED.at(
            plan.layout.abort, "the file is there, so the last process did not end cleanly"
        )
    if unsettled:
        what = f"{unsettled} of the newest records were not in their queues yet"
        yield finding_kinds.UNSETTLED.at(plan.layout.root, what, messages=unsettled)
    for (topic, queue_id), count in result.deleted_messages.items():
        if count:
            what = f"{count} records of queue {queue_id} of {topic} were deleted with their topic"
            yield finding_kinds.TOPIC_DELETED.at(plan.layout.deleted_topics, what, messages=count)
