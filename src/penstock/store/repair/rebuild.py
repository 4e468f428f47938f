"""Makes queues and index anew from the log: all of them, those of one topic, one queue, or the index alone.

The old files go to the quarantine when the new ones are complete. What comes out is what dispatch builds, and what it
passes over in the log stays passed over: for damage there is `repair`. A crash leaves the old ones or the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.clock import now_ms
from penstock.errors import BadStore
from penstock.store.damage import DamagedRange
from penstock.store.file_queue import FileQueue
from penstock.store.files import Files
from penstock.store.overlay_files import OverlayFiles
from penstock.store.quarantine import MayExceed, never
from penstock.store.repair.derived import Derived, what_differs
from penstock.store.repair.headers import Sequences, restarts
from penstock.store.repair.old_queues import OldQueues, QueueName
from penstock.store.repair.place import Place, own
from penstock.store.repair.report import Progress, RebuildReport, silent
from penstock.store.repair.staging import Staging
from penstock.store.repair.survey import Survey, survey
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
    may_exceed: MayExceed = never,
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


def _rebuild(place: Place, selects: Callable[[str, int], bool], wants_index: bool, progress: Progress) -> RebuildReport:
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


def _walk(place: Place, progress: Progress) -> tuple[Survey, dict[QueueName, int]]:
    """Only looks; also where queues begin anew. A log that a start could not load is left to `repair`."""
    reading = place.files if place.dry_run else OverlayFiles()
    log = FileQueue(reading, place.layout.commit_log, place.settings.mapped_file_size_commit_log)
    sequences = Sequences()
    queues = OldQueues(place.files, place.layout, place.settings.mapped_file_size_consume_queue)
    log.load()
    try:
        found = survey(log.files, topics=sequences.topics, watch=sequences.watch, progress=progress)
    finally:
        log.close()
    return found, restarts(sequences, queues)
