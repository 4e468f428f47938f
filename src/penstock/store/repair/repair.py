"""Repairs a damaged store, and rebuilds queues and index.

`repair` makes a store usable again, also for RocketMQ. (Penstock skips damage anyway; RocketMQ does not.) Its steps:

    1  log files get their full size, and missing ones are created
    2  the whole log is scanned; every damaged range is saved, then covered by valid records
    3  config files and a checkpoint that cannot be read go to the quarantine
    4  queues and index are built from the log; those that differ from the old ones are swapped in
    5  the store is started, which truncates a torn tail; wrong offsets are corrected; the store is closed
    6  an audit reports the remaining problems

Each step saves and syncs the old bytes before it replaces them. The file `abort` exists from the first change to the
end. If the process is killed, the store can start, and a second repair gives the same result. A dry run takes the same
steps on a view that keeps all changes in memory.

`rebuild` builds all queues and the index again, or the queues of one topic, one queue, or the index alone. The old
files go to the quarantine once the new files are complete, so a crash leaves the old or the new files. Like dispatch,
`rebuild` skips damage.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.clock import now_ms
from penstock.errors import BadStore
from penstock.store.audit import Finding, audit
from penstock.store.audit.queue_coverage import without
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.damage import DamagedRange, MayExceed, never_exceed
from penstock.store.file_io import Files
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.repair.compare import OldQueues, QueueName, any_within, find_lost, index_offsets
from penstock.store.repair.config import ConfigRepair, repair_offsets
from penstock.store.repair.derived import DerivedRebuilder, differing_queues
from penstock.store.repair.log import LogRepair, RepairedLog
from penstock.store.repair.log_scan import LogScan, QueueSequences, find_restarts, scan_log
from penstock.store.repair.report import LostMessages, Progress, RebuildReport, RepairReport, no_progress
from penstock.store.repair.staging import Staging
from penstock.store.repair.target import RepairTarget, open_target
from penstock.store.settings import Settings

_REQUESTED = "requested"


def rebuild(
    folder: str | Path,
    settings: Settings | None = None,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    index_only: bool = False,
    dry_run: bool = False,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = no_progress,
    may_exceed: MayExceed = never_exceed,
) -> RebuildReport:
    """Rebuilds all queues and the index; with `index_only`, the index alone.

    `topic` and `queue_id` limit it to the queues of that topic, with that id; the index then stays. No process may have
    the store open. Raises BadStore, StoreInUse, BadSettings or StoreFailed; then the old files are in place, or the
    next start finishes the swap.
    """
    with open_target(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed) as target:
        wants_index = index_only or (topic is None and queue_id is None)
        if wants_index and target.index_problem:
            raise BadStore(target.index_problem)

        def selects(each: str, number: int) -> bool:
            return not index_only and topic in (None, each) and queue_id in (None, number)

        return _rebuild(target, selects, wants_index, progress)


def _rebuild(
    target: RepairTarget, selects: Callable[[str, int], bool], wants_index: bool, progress: Progress
) -> RebuildReport:
    scan, restarts = _scan(target, progress)
    report = RebuildReport(str(target.layout.root), target.dry_run, scan.begin, scan.end)
    damage = [DamagedRange(each.physical_offset, each.size, each.reason) for each in scan.damage]
    wants_index = wants_index and target.settings.message_index_enable

    def choose(staging: Staging) -> tuple[dict[QueueName, str], str]:
        queues = dict.fromkeys(((queue.topic, queue.queue_id) for queue in staging.queues), _REQUESTED)
        queues |= differing_queues(staging, scan.begin, damage)
        target.mark_unclean()
        return queues, _REQUESTED if wants_index else ""

    derived = DerivedRebuilder(target.files, target.layout, target.settings, target.clock, target.quarantine)
    report.rebuilt = derived.rebuild(
        scan.end,
        choose,
        damage=damage,
        restarts=restarts,
        selects=selects,
        with_index=wants_index,
        progress=progress,
    )
    with target.open(progress, bodies_checked=scan.is_sound) as store:
        report.start = store.report.notes
    return report


def _scan(target: RepairTarget, progress: Progress) -> tuple[LogScan, dict[QueueName, int]]:
    """Scans the log read-only; also returns where queues restart. Raises BadStore if the log needs `repair` first."""
    view = target.files if target.dry_run else OverlayFiles()
    log = MappedFileQueue(view, target.layout.commit_log, target.settings.mapped_file_size_commit_log)
    sequences = QueueSequences()
    queues = OldQueues(target.files, target.layout, target.settings.mapped_file_size_consume_queue)
    log.load()
    try:
        scan = scan_log(log.files, topics=sequences.topics, on_rows=sequences.on_rows, progress=progress)
    finally:
        log.close()
    return scan, find_restarts(sequences, queues)


def repair(
    folder: str | Path,
    settings: Settings | None = None,
    *,
    dry_run: bool = False,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = no_progress,
    may_exceed: MayExceed = never_exceed,
) -> RepairReport:
    """Repairs the store in `folder`. No process may have the store open.

    File sizes are inferred from the files unless the settings give them. Raises BadStore, StoreInUse, BadSettings or
    StoreFailed; repairs made before the error stay, and a second call resumes.
    """
    with open_target(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed) as target:
        return _Repair(target, progress).run()


class _Repair:
    def __init__(self, target: RepairTarget, progress: Progress) -> None:
        self._target = target
        self._io = target.files
        self._layout = target.layout
        self._progress = progress
        self._report = RepairReport(str(target.layout.root), target.dry_run)

    def run(self) -> RepairReport:
        target, report = self._target, self._report
        log_repair = LogRepair(target, self._progress)
        config_repair = ConfigRepair(self._io, self._layout, target.quarantine)
        log = log_repair.run()
        report.log_begin, report.log_end, report.ranges = log.begin, log.end, log.ranges
        report.changes += log.changes
        report.changes += config_repair.repair_config()
        report.changes += config_repair.repair_checkpoint(log.newest)
        if log.end > log.begin:
            self._rebuild_derived(log)
        log_repair.update_noted_damage()
        self._start(config_repair)
        report.problems += [f"{each.path}: {each.what}; {each.remedy}" for each in self._errors()]
        if target.index_problem:
            report.problems.append(target.index_problem)
        return report

    # -- queues and index ------------------------------------------------------------------------------------

    def _rebuild_derived(self, log: RepairedLog) -> None:
        target, index = self._target, self._index_fault(log)
        derived = DerivedRebuilder(target.files, target.layout, target.settings, target.clock, target.quarantine)

        def choose(staging: Staging) -> tuple[dict[QueueName, str], str]:
            self._find_lost(staging)
            queues = differing_queues(staging, log.begin, log.damage)
            if queues or index:
                target.mark_unclean()
            return queues, index

        self._report.rebuilt += derived.rebuild(
            log.end,
            choose,
            damage=log.damage,
            restarts=log.restarts,
            with_index=bool(index),
            progress=self._progress,
        )

    def _index_fault(self, log: RepairedLog) -> str:
        """Returns what is wrong with the index, in a few words; an empty string if the index can stay."""
        settings = self._target.settings
        if not settings.message_index_enable:
            return ""
        if any_within(index_offsets(self._view, self._layout.index, settings.index_geometry), log.placeholders):
            return "it pointed to lost messages"
        faults = [each for each in self._errors() if Path(each.path).is_relative_to(self._layout.index)]
        if not faults:
            return ""
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        return f"{faults[0].what}{more}"

    def _find_lost(self, staging: Staging) -> None:
        """Adds the lost messages to the ranges of the report.

        Old units that point into a range show them; for other queue offsets, the built units do.
        """
        ranges = self._report.ranges
        if not ranges:
            return
        bounds = [(each.physical_offset, each.end) for each in ranges]
        from_old: dict[QueueName, list[tuple[int, int]]] = {}
        for old in staging.old:
            for number, lost in find_lost(old, bounds):
                from_old.setdefault((old.topic, old.queue_id), []).append((lost.first_offset, lost.last_offset + 1))
                ranges[number].lost.append(lost)
        for built in staging.queues:
            known = sorted(from_old.get((built.topic, built.queue_id), []))
            for number, lost in find_lost(built, bounds):
                for first, end in without(lost.first_offset, lost.last_offset + 1, known):
                    ranges[number].lost.append(LostMessages(built.topic, built.queue_id, first, end - 1))

    # -- start and audit -------------------------------------------------------------------------------------

    def _start(self, config_repair: ConfigRepair) -> None:
        with self._target.open(self._progress) as store:
            self._report.start += store.report.notes
            levels = len(self._target.settings.delay_levels)
            self._report.changes += repair_offsets(self._io, self._layout, store.queues, levels, config_repair)

    @property
    def _view(self) -> Files:
        return self._io if self._io.read_only else OverlayFiles()

    def _errors(self) -> list[Finding]:
        """Runs an audit without CRC checks, because the scan has checked every CRC; returns its errors."""

        def progress(done: int, total: int) -> None:
            self._progress("audit the store", done, total)

        settings = self._target.settings
        return audit(self._layout, settings, self._view, in_use=False, check_crc=False, progress=progress).errors
