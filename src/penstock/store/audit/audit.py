"""Audits a store in one process: plans, audits every range of the log, and joins the results into a report.

    report = audit(folder, settings)

The audit changes nothing on disk and takes no lock. Its memory is proportional to one batch of records, to the number
of queues and to the slots of one index file (four bytes each), not to the size of the log. Ranges are independent, so a
cluster can audit them too (`penstock.pipeline.jobs.verify`). It runs `plan_pass` on the driver, `audit_index_file` and
`audit_range` anywhere, and `wait_for_dispatch` and `build_report` with the joined results.

A closed store is audited in one pass. For a store in use an error counts only if two passes find it: an error in one
pass may be a change that the store's owner was making. A store that was opened during a pass is audited again, as a
store in use. `AuditPasses` decides whether another pass is needed:

    passes = AuditPasses(files, layout)
    while passes.report is None:
        current = passes.begin()
        ...audit; then passes.add(current, report), or passes.file_missing(current, error)
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
from penstock.store.audit.files import foreign_findings
from penstock.store.audit.findings import AuditReport, Collector, Figures, Finding
from penstock.store.audit.index import audit_index
from penstock.store.audit.index_keys import IndexFacts, audit_index_file
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import PIECE_SIZE, AuditPlan, AuditRange, make_plan, split_log, with_live_bounds
from penstock.store.audit.queue_coverage import QueueCover, QueueName
from penstock.store.audit.queues import QueueFacts, audit_queue
from penstock.store.audit.ranges import QUEUE_FILES_OPEN, RangeResult, audit_range
from penstock.store.external_dispatch.files_shared_with_job import is_external
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout
from penstock.store.readonly.view import MapCache
from penstock.store.settings import Settings

MAX_PER_KIND = 100_000
"""How many findings of one kind are listed; further findings are only counted."""
_MAX_PASSES = 4
_WAITS, _WAIT_SECONDS = 40, 0.05
Progress = Callable[[int, int], None]
"""Called with the number of audited bytes of the log, and their total."""


class AuditPass(msgspec.Struct, frozen=True):
    """The state of a store when a pass begins."""

    is_live: bool
    """Whether another process may be writing."""
    before: tuple[object, ...]
    """Facts that change whenever a process opens or closes the store."""


class AuditPasses:
    """The passes over one store; `report` is set after the last one."""

    def __init__(self, files: Files, layout: Layout, *, in_use: bool | None = None) -> None:
        """`in_use` says whether another process may be writing; None asks the store's lock each time."""
        self._files = files
        self._layout = layout
        self._in_use = in_use
        self._started = 0
        self._unconfirmed: AuditReport | None = None
        self.report: AuditReport | None = None

    def begin(self) -> AuditPass:
        self._started += 1
        if self._started > _MAX_PASSES:
            return AuditPass(True, ())
        owned = self._in_use
        if owned is None:  # in a store with external dispatch, a job may be building the queues
            owned = bool(self._files.lock_owner(self._layout.lock)) or is_external(self._files, self._layout)
        return AuditPass(owned, self._state())

    def add(self, current: AuditPass, report: AuditReport) -> None:
        """Adds the report of the pass `current`. Sets `report` if no other pass is needed."""
        if self._started > _MAX_PASSES:
            self.report = report
        elif current.is_live and report.errors:
            if self._unconfirmed is not None:
                self.report = _confirmed(self._unconfirmed, report)
            self._unconfirmed = report
        elif current.is_live or self._in_use is False or self._state() == current.before:
            self.report = report  # else another process opened the store during the pass
        self._end_pass()

    def file_missing(self, current: AuditPass, error: FileNotFoundError) -> None:
        """Ends a pass that could not find a file. Raises `error` unless an owner may have removed the file."""
        if self._started > _MAX_PASSES or (not current.is_live and self._state() == current.before):
            raise error
        self._end_pass()

    def _end_pass(self) -> None:
        if self.report is None and self._started == _MAX_PASSES:
            self.report = self._unconfirmed

    def _state(self) -> tuple[object, ...]:
        files, layout = self._files, self._layout
        checkpoint = files.modified_ms(layout.checkpoint) if files.exists(layout.checkpoint) else 0
        return files.lock_owner(layout.lock), files.exists(layout.abort), checkpoint


def _confirmed(first: AuditReport, second: AuditReport) -> AuditReport:
    """Returns the second report without errors that the first lacks: the owner was changing those files."""
    known = {(finding.kind, finding.path, finding.offset) for finding in first.errors}
    real = [each for each in second.findings if each.severity == "note" or (each.kind, each.path, each.offset) in known]
    return msgspec.structs.replace(second, findings=real)


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

    `in_use`: whether another process may be writing; None asks the store's lock. A caller that owns the lock and does
    not write must pass False. `workers`: number of threads. `piece_size`: bytes of the log in one task of a thread.
    """
    settings = settings or Settings()
    files = files or OverlayFiles()
    layout = store if isinstance(store, Layout) else Layout.of(store, settings)
    auditor = _Auditor(files, layout, settings, check_crc, workers, piece_size, progress)
    passes = AuditPasses(files, layout, in_use=in_use)
    while passes.report is None:
        current = passes.begin()
        try:
            report = auditor.run_pass(current.is_live)
        except FileNotFoundError as error:
            passes.file_missing(current, error)
        else:
            passes.add(current, report)
    return passes.report


def plan_pass(
    files: Files, layout: Layout, settings: Settings, *, is_live: bool, check_crc: bool = True
) -> tuple[AuditPlan, ConfigState]:
    """Plans one pass; returns the plan and the content of the config files.

    Reads the config of a store in use before the bounds of log and queues: they grow, so offsets stay within them.
    """
    plan = make_plan(files, layout, settings, is_live=is_live, check_crc=check_crc)
    config = read_config(files, plan)
    return (with_live_bounds(plan, files) if is_live else plan), config


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

    def run_pass(self, is_live: bool) -> AuditReport:
        plan, config = plan_pass(self._files, self._layout, self._settings, is_live=is_live, check_crc=self._check_crc)
        audited = (audit_index_file(plan, self._files, number) for number in range(len(plan.index_files)))
        index = tuple(facts for facts in audited if facts is not None)
        result = RangeResult()
        topics = kernels.TopicTable()
        for part in self._ranges(plan, index, topics):
            result.join(part)
        wait_for_dispatch(plan, self._files, index, result, topics)
        return build_report(plan, self._files, config, index, result)

    def _ranges(
        self, plan: AuditPlan, index: tuple[IndexFacts, ...], topics: kernels.TopicTable
    ) -> Iterator[RangeResult]:
        pieces = split_log(plan, self._files, self._piece_size)
        total = sum(piece.stop - piece.start for piece in pieces)
        done = 0
        self._progress(0, total)

        queue_maps = MapCache(self._files, QUEUE_FILES_OPEN)

        def audit_piece(piece: AuditRange) -> RangeResult:
            return audit_range(plan, self._files, piece, index, topics, queue_maps if self._workers == 1 else None)

        with queue_maps, ThreadPoolExecutor(self._workers) as pool:
            results = pool.map(audit_piece, pieces) if self._workers > 1 else map(audit_piece, pieces)
            for piece, result in zip(pieces, results, strict=True):
                done += piece.stop - piece.start
                self._progress(done, total)
                yield result


def wait_for_dispatch(
    plan: AuditPlan,
    files: Files,
    index: tuple[IndexFacts, ...],
    result: RangeResult,
    topics: kernels.TopicTable | None = None,
) -> None:
    """Audits the newest records of a store in use again, until its owner has dispatched them or two seconds are over.

    Updates `result`.
    """
    for _ in range(_WAITS if plan.is_live else 0):
        missing = [
            missed
            for cover in result.queues.values()
            for missed in cover.missed
            if missed.physical_first >= plan.dispatched_to
        ]
        file = next((file for file in plan.log.files if 0 <= plan.dispatched_to - file.base < plan.log_file_size), None)
        if not missing or file is None:
            return
        time.sleep(_WAIT_SECONDS)
        newest = AuditRange(file, plan.dispatched_to - file.base, plan.log_limit - file.base, True)
        again = audit_range(plan, files, newest, index, topics)
        for name, cover in result.queues.items():
            newer = again.queues.get(name, QueueCover())
            cover.missed = [each for each in cover.missed if each.physical_first < plan.dispatched_to] + newer.missed
            cover.matched += newer.matched


def build_report(
    plan: AuditPlan, files: Files, config: ConfigState, index: tuple[IndexFacts, ...], result: RangeResult
) -> AuditReport:
    """Builds the report. `result`: the results of all ranges, joined in log order."""
    log = LogState(plan, files, result)
    collector = Collector(MAX_PER_KIND)
    bounds: dict[QueueName, QueueBounds] = {}
    units = undispatched = 0
    for name in sorted({*plan.queues, *result.queues}):
        facts = audit_queue(
            plan,
            files,
            name,
            result.queues.get(name, QueueCover()),
            log,
            is_configured=not config.topics or name[0] in config.topics,
        )
        _count_lost(log, facts)
        collector.add(facts.findings)
        units += facts.maximum - facts.minimum
        undispatched += facts.undispatched
        if name in plan.queues:
            bounds[name] = QueueBounds(facts.minimum, facts.maximum)
    collector.add(foreign_findings(plan.store_files))
    collector.add(log.findings())
    collector.add(audit_index(plan, files, index, result.keys, log))
    collector.add(audit_config(plan, config, log, bounds))
    collector.add(_state_notes(plan, result, undispatched))
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
        result.record_crcs,
    )
    return AuditReport(collector.findings(), figures, log.damage())


def _count_lost(log: LogState, facts: QueueFacts) -> None:
    for number, count in facts.lost.items():
        log.damaged.add(number, count)
    for number, count in facts.repaired.items():
        log.repaired.add(number, count)


def _state_notes(plan: AuditPlan, result: RangeResult, undispatched: int) -> Iterator[Finding]:
    if plan.crashed:
        yield finding_kinds.NOT_CLOSED.at(
            plan.layout.abort, "the file exists, so the last process did not exit cleanly"
        )
    if undispatched:
        what = f"{undispatched} of the newest records were not in their queues yet"
        yield finding_kinds.UNSETTLED.at(plan.layout.root, what, messages=undispatched)
    for (topic, queue_id), count in result.deleted_messages.items():
        if count:
            what = f"{count} records of queue {queue_id} of {topic} were deleted with their topic"
            yield finding_kinds.TOPIC_DELETED.at(plan.layout.deleted_topics, what, messages=count)
