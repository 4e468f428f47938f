"""Makes queues and index anew from the log: all of them, those of one topic, one queue, or the index alone.

The old files go to the quarantine when the new ones are complete. What comes out is what dispatch builds, and what it
passes over in the log stays passed over: for damage there is `repair`. A crash leaves the old ones or the new ones.


Makes a damaged store whole again: for Penstock, which passes over damage anyway, and for RocketMQ, which does not.

    1  log files get their shape: one after the other, each of the full size
    2  the whole log is walked, and every damaged range is saved and covered by a valid record
    3  config files and the checkpoint that cannot be read are set aside
    4  queues and index are built anew, and swapped where they are not what the log says
    5  the store is started, as ever, which cuts a torn end, and closed; offsets that cannot be are corrected
    6  an audit says what is left

Each step saves what it replaces, and syncs, before the next begins; `abort` lies there from the first change to the
end. Killed at any moment, the store starts, and a second repair ends where this one would have. A dry run takes the
same steps on a view that keeps all changes in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.clock import now_ms
from penstock.errors import BadStore
from penstock.store.audit import Finding, audit
from penstock.store.audit.cover import without
from penstock.store.damage import DamagedRange, MayExceed, never_exceed
from penstock.store.io import Files
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.overlay import OverlayFiles
from penstock.store.repair.compare import OldQueues, QueueName, index_offsets, leads_into, lost_in
from penstock.store.repair.config import Settler, settle_offsets
from penstock.store.repair.derived import Derived, what_differs
from penstock.store.repair.log import LogRepair, MendedLog
from penstock.store.repair.report import LostMessages, Progress, RebuildReport, RepairReport, silent
from penstock.store.repair.staging import Staging
from penstock.store.repair.survey import Sequences, Survey, restarts, survey
from penstock.store.repair.target import RepairTarget, own
from penstock.store.settings import Settings

_ASKED_FOR = "it was asked for"


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
    progress: Progress = silent,
    may_exceed: MayExceed = never_exceed,
) -> RebuildReport:
    """Rebuilds queues, of one topic or with one queue id if that is given, or all of them and the index.

    Nobody may have the store open. Raises BadStore, StoreInUse, BadSettings or StoreFailed; then the old files are in
    their places.
    """
    with own(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed) as place:
        wants_index = index_only or (topic is None and queue_id is None)
        if wants_index and place.index_problem:
            raise BadStore(place.index_problem)

        def selects(each: str, number: int) -> bool:
            return not index_only and topic in (None, each) and queue_id in (None, number)

        return _rebuild(place, selects, wants_index, progress)


def _rebuild(
    place: RepairTarget, selects: Callable[[str, int], bool], wants_index: bool, progress: Progress
) -> RebuildReport:
    found, begun_anew = _walk(place, progress)
    report = RebuildReport(str(place.layout.root), place.dry_run, found.begin, found.end)
    damage = [DamagedRange(each.physical_offset, each.size, each.reason) for each in found.found]
    wants_index = wants_index and place.settings.message_index_enable

    def wanted(staging: Staging) -> tuple[dict[QueueName, str], str]:
        queues = dict.fromkeys(((queue.topic, queue.queue_id) for queue in staging.queues), _ASKED_FOR)
        queues |= what_differs(staging, found.begin, damage)
        place.mark_unclean()
        return queues, _ASKED_FOR if wants_index else ""

    derived = Derived(place.files, place.layout, place.settings, place.clock, place.quarantine)
    report.rebuilt = derived.renew(
        found.end,
        wanted,
        damage=damage,
        restarts=begun_anew,
        selects=selects,
        with_index=wants_index,
        progress=progress,
    )
    with place.open(progress, were_bodies_checked=found.is_sound) as store:
        report.start = store.report.notes
    return report


def _walk(place: RepairTarget, progress: Progress) -> tuple[Survey, dict[QueueName, int]]:
    """Only looks; also where queues begin anew. A log that a start could not load is left to `repair`."""
    reading = place.files if place.dry_run else OverlayFiles()
    log = MappedFileQueue(reading, place.layout.commit_log, place.settings.mapped_file_size_commit_log)
    sequences = Sequences()
    queues = OldQueues(place.files, place.layout, place.settings.mapped_file_size_consume_queue)
    log.load()
    try:
        found = survey(log.files, topics=sequences.topics, watch=sequences.watch, progress=progress)
    finally:
        log.close()
    return found, restarts(sequences, queues)


def repair(
    folder: str | Path,
    settings: Settings | None = None,
    *,
    dry_run: bool = False,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = silent,
    may_exceed: MayExceed = never_exceed,
) -> RepairReport:
    """Repairs the store in a folder, which nobody may have open.

    File sizes are taken from the files unless the settings were given them. Raises BadStore, StoreInUse, BadSettings
    or StoreFailed; what was done until then stays done, and a second repair goes on.
    """
    with own(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed) as place:
        return _Repair(place, progress).run()


class _Repair:
    """One run."""

    def __init__(self, place: RepairTarget, progress: Progress) -> None:
        self._place = place
        self._io = place.files
        self._layout = place.layout
        self._progress = progress
        self._report = RepairReport(str(place.layout.root), place.dry_run)

    def run(self) -> RepairReport:
        place, report = self._place, self._report
        log_repair = LogRepair(place, self._progress)
        settler = Settler(self._io, self._layout, place.quarantine)
        log = log_repair.mend()
        report.log_begin, report.log_end, report.ranges = log.begin, log.end, log.ranges
        report.changes += log.changes
        report.changes += settler.settle_config()
        report.changes += settler.settle_checkpoint(log.newest)
        if log.end > log.begin:
            self._renew(log)
        log_repair.forget()
        self._start(settler)
        report.problems += [f"{each.path}: {each.what}; {each.remedy}" for each in self._errors()]
        if place.index_problem:
            report.problems.append(place.index_problem)
        return report

    # -- queues and index ------------------------------------------------------------------------------------

    def _renew(self, log: MendedLog) -> None:
        place, index = self._place, self._index_fault(log)
        derived = Derived(place.files, place.layout, place.settings, place.clock, place.quarantine)

        def wanted(staging: Staging) -> tuple[dict[QueueName, str], str]:
            self._find_lost(staging)
            queues = what_differs(staging, log.begin, log.damage)
            if queues or index:
                place.mark_unclean()
            return queues, index

        self._report.rebuilt += derived.renew(
            log.end,
            wanted,
            damage=log.damage,
            restarts=log.restarts,
            with_index=bool(index),
            progress=self._progress,
        )

    def _index_fault(self, log: MendedLog) -> str:
        """What there is to say against the index, in a few words; empty if nothing."""
        settings = self._place.settings
        if not settings.message_index_enable:
            return ""
        if leads_into(index_offsets(self._reading, self._layout.index, settings.index_geometry), log.placeholders):
            return "it led to messages that are lost"
        faults = [each for each in self._errors() if Path(each.path).is_relative_to(self._layout.index)]
        if not faults:
            return ""
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        return f"{faults[0].what}{more}"

    def _find_lost(self, staging: Staging) -> None:
        """Which messages lay in the ranges: what the old units say, and where they say nothing, what was built."""
        ranges = self._report.ranges
        if not ranges:
            return
        bounds = [(each.physical_offset, each.end) for each in ranges]
        told: dict[QueueName, list[tuple[int, int]]] = {}
        for old in staging.old:
            for number, lost in lost_in(old, bounds):
                told.setdefault((old.topic, old.queue_id), []).append((lost.first_offset, lost.last_offset + 1))
                ranges[number].lost.append(lost)
        for built in staging.queues:
            known = sorted(told.get((built.topic, built.queue_id), []))
            for number, lost in lost_in(built, bounds):
                for first, end in without(lost.first_offset, lost.last_offset + 1, known):
                    ranges[number].lost.append(LostMessages(built.topic, built.queue_id, first, end - 1))

    # -- the end ---------------------------------------------------------------------------------------------

    def _start(self, settler: Settler) -> None:
        with self._place.open(self._progress) as store:
            self._report.start += store.report.notes
            levels = len(self._place.settings.delay_levels)
            self._report.changes += settle_offsets(self._io, self._layout, store.queues, levels, settler)

    @property
    def _reading(self) -> Files:
        return self._io if self._io.read_only else OverlayFiles()

    def _errors(self) -> list[Finding]:
        """What an audit calls an error; every CRC has been checked before."""

        def progress(done: int, total: int) -> None:
            self._progress("audit the store", done, total)

        settings = self._place.settings
        return audit(self._layout, settings, self._reading, in_use=False, check_crc=False, progress=progress).errors
