"""Repairs a damaged store.

`repair` makes a store usable again, also for RocketMQ. (Penstock skips damage anyway; RocketMQ does not.) Its steps:

    1  log files get their full size, and missing ones are created
    2  the whole log is scanned; every damaged range is saved, then covered by valid records
    3  config files and a checkpoint that cannot be read go to the quarantine
    4  queues and index are built from the log, as by a rebuild; those that differ from the old ones are swapped in
    5  the store is started, which truncates a torn tail; wrong offsets are corrected; the store is closed
    6  an audit reports the remaining problems

Each step saves and syncs the old bytes before it replaces them. The file `abort` exists from the first change to the
end. If the process is killed, the store can start, and a second repair gives the same result. A dry run takes the same
steps on a view that keeps all changes in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.clock import now_ms
from penstock.store.audit import Finding, audit
from penstock.store.audit.queue_coverage import QueueName, without
from penstock.store.damage_and_quarantine import MayExceed, never_exceed
from penstock.store.files.atomic_files import clear_staging
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.rebuild.compare_queues import differing_queues
from penstock.store.rebuild.job import ThreadRunner, run_serially
from penstock.store.rebuild.plan import RebuildSource
from penstock.store.rebuild.report import Progress, no_progress
from penstock.store.rebuild.staged_build import Replacement, StagedBuild
from penstock.store.rebuild.target_store import TargetStore, open_target
from penstock.store.repair.config import ConfigRepair, repair_offsets
from penstock.store.repair.log import LogRepair, RepairedLog
from penstock.store.repair.lost_messages import any_within, find_lost, index_offsets
from penstock.store.repair.report import LostMessages, RepairReport
from penstock.store.settings import Settings

_MIN_FOR_THREADS = 64 << 20


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
    def __init__(self, target: TargetStore, progress: Progress) -> None:
        self._target = target
        self._io = target.files
        self._layout = target.layout
        self._progress = progress
        self._report = RepairReport(str(target.layout.root), target.dry_run)

    def run(self) -> RepairReport:
        target, report = self._target, self._report
        clear_staging(self._io, self._layout)  # what a killed rebuild left there would not fit the log afterwards
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
        """Builds queues and index, and swaps in those that differ from the old ones."""
        target, index_fault = self._target, self._index_fault(log)
        source = RebuildSource.in_place(target)
        in_parallel = not target.dry_run and log.end - log.begin >= _MIN_FOR_THREADS
        run = ThreadRunner(self._progress, "build queues and index") if in_parallel else run_serially
        build = StagedBuild(source, source.task(with_index=bool(index_fault)), run)
        build.build()
        self._find_lost(build)
        reasons = differing_queues(build.old_queues, build.built_queues, log.begin, log.damage)
        queues = {name: Replacement(reason, build.queues.get(name, 0)) for name, reason in reasons.items()}
        index = Replacement(index_fault, build.items) if index_fault else None
        if queues or index:
            target.mark_unclean()
        self._report.rebuilt += build.swap_in(queues, index)

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

    def _find_lost(self, build: StagedBuild) -> None:
        """Adds the lost messages to the ranges of the report.

        Old units that point into a range show them; for other queue offsets, the built units do.
        """
        ranges = self._report.ranges
        if not ranges:
            return
        bounds = [(each.physical_offset, each.end) for each in ranges]
        from_old: dict[QueueName, list[tuple[int, int]]] = {}
        for old in build.old_queues:
            for number, lost in find_lost(old, bounds):
                from_old.setdefault((old.topic, old.queue_id), []).append((lost.first_offset, lost.last_offset + 1))
                ranges[number].lost.append(lost)
        for built in build.built_queues:
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
