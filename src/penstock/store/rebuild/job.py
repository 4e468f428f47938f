"""The order of a rebuild by ranges: plan, build the ranges, combine their notes, complete queues and index, swap.

A `TaskRunner` runs the tasks: serially, on threads (`ThreadRunner`), or on Spark's workers. The new files are in the
staging folder until they are complete, checked and synced; then they are swapped in as by `repair`, and the old files
go to the quarantine. If the process is killed before that, the old files stay in force, and a later run with the same
log and settings resumes with the ranges that are not done. Memory is a few numbers per range and queue.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.clock import now_ms
from penstock.errors import BadStore, StoreFailed
from penstock.store.atomic_files import clear_staging
from penstock.store.damage import MayExceed, never_exceed
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.io import Files
from penstock.store.rebuild.assembly import Assembler, IndexFilePlan, QueueGroup
from penstock.store.rebuild.plan import (
    RebuildPlan,
    RebuildRange,
    RebuildSource,
    RebuildTask,
    cut_log,
    open_in_place,
    open_into_folder,
    read_plan,
)
from penstock.store.rebuild.ranges import RangeNote, build_range, combine_notes, decode_note, read_note
from penstock.store.repair.report import Progress, RebuildReport, no_progress
from penstock.store.settings import Settings

_MAX_THREADS: Final = 4
_MIN_UNITS_FOR_WORKERS: Final = 12_000_000
_WALK: Final = "walk the log"


class TaskRunner(Protocol):
    """Calls `work` for each piece, anywhere; returns the results in the order of the pieces."""

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]: ...


def run_serially(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """A TaskRunner without concurrency."""
    return [work(piece) for piece in pieces]


class ThreadRunner:
    """A TaskRunner with one thread per core, at most four; reports progress in the log.

    Kernels, writes and syncs release the interpreter's lock. A task that fails ends the run once the started tasks have
    ended.
    """

    def __init__(self, progress: Progress = no_progress) -> None:
        self._progress = progress

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        total = sum(piece.stop - piece.start for piece in pieces if isinstance(piece, RebuildRange))
        results: list[bytes] = []
        done = 0
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "penstock-rebuild") as pool:
            for piece, result in zip(pieces, pool.map(work, pieces), strict=True):
                results.append(result)
                if isinstance(piece, RebuildRange):
                    done += piece.stop - piece.start
                    self._progress(_WALK, done, total)
        return results


def is_small_job(pieces: Sequence[Any]) -> bool:
    """Whether completing these takes less time here than sending them to workers."""
    return all(isinstance(piece, IndexFilePlan | QueueGroup) for piece in pieces) and (
        sum(piece.items if isinstance(piece, IndexFilePlan) else piece.units for piece in pieces)
        < _MIN_UNITS_FOR_WORKERS
    )


class RangesReport(RebuildReport, kw_only=True):
    """What a rebuild by ranges did; with `dry_run`, would do."""

    into: str = ""
    """The folder with the new files, if the store itself was not changed."""
    records: int = 0
    ranges: int = 0
    resumed: int = 0
    """Ranges that an earlier run had built."""
    damaged: int = 0
    """Ranges of the log without a valid record, which were skipped."""
    in_log_order: list[str] = msgspec.field(default_factory=list)
    """Queues that one process built in log order, because their offsets go back somewhere."""


def rebuild_by_ranges(
    folder: str | Path,
    settings: Settings | None = None,
    run: TaskRunner = run_serially,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    into: str | Path | None = None,
    dry_run: bool = False,
    range_size: int | None = None,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = no_progress,
    may_exceed: MayExceed = never_exceed,
) -> RangesReport:
    """Rebuilds the queues of one topic or with one queue id, or all queues and the index.

    No process may have the store open, unless the new files go `into` another folder. Raises BadStore, StoreInUse,
    BadSettings or StoreFailed; then the old files are in place.
    """
    settings = settings or Settings()
    common: dict[str, Any] = {"dry_run": dry_run, "files": files, "clock": clock, "may_exceed": may_exceed}
    if into is None:
        opening = open_in_place(Path(folder).absolute(), settings, **common)
    else:
        opening = open_into_folder(Path(folder).absolute(), Path(into), settings, **common)
    with opening as source:
        wants_index = topic is None and queue_id is None
        if wants_index and source.index_problem:
            raise BadStore(source.index_problem)
        task = _task(source, topic, queue_id, wants_index and source.settings.message_index_enable)
        job = _Job(source, task, run, dry_run, range_size, progress)
        report = job.run()
        report.into = "" if into is None else str(into)
        return report


def _task(source: RebuildSource, topic: str | None, queue_id: int | None, with_index: bool) -> RebuildTask:
    settings = source.settings
    geometry = settings.index_geometry
    return RebuildTask(
        source.log,
        str(source.output.staging.absolute()),
        settings.mapped_file_size_consume_queue,
        (geometry.slots, geometry.items) if with_index else None,
        settings.delay_levels,
        topic,
        queue_id,
        read_deleted_topics(source.files, source.layout.deleted_topics),
    )


class _Job:
    def __init__(
        self,
        source: RebuildSource,
        task: RebuildTask,
        run: TaskRunner,
        dry_run: bool,
        range_size: int | None,
        progress: Progress,
    ) -> None:
        self._source = source
        self._io = source.files
        self._task = task
        self._run = run
        self._dry_run = dry_run
        self._range_size = range_size
        self._progress = progress

    def run(self) -> RangesReport:
        plan = self._plan()
        notes = {} if self._dry_run else self._read_notes(plan)
        report, bad = self._attempt(plan, notes)
        if bad and notes:  # a crash of the host took some of what an earlier run left
            clear_staging(self._io, self._source.output)
            report, bad = self._attempt(self._plan(), {})
        if bad:
            raise StoreFailed(
                "the new files read back differently than written; nothing was replaced, check the disk", path=bad
            )
        return report

    def _plan(self) -> RebuildPlan:
        """The plan of an earlier run with the same task, or a new one in an empty staging folder."""
        left = None if self._dry_run else read_plan(self._io, self._source.output.staging)
        if left is not None and left.task == self._task and self._range_size is None:
            return self._resumed(left)
        plan = RebuildPlan(secrets.token_hex(8), self._task, cut_log(self._task.log, self._range_size))
        if left is not None and left.task == self._task and left.ranges == plan.ranges:
            return self._resumed(left)
        if not self._dry_run:
            clear_staging(self._io, self._source.output)
            plan.write(self._io)
        return plan

    def _resumed(self, plan: RebuildPlan) -> RebuildPlan:
        """Removes queue files without their full size, which a power failure can leave."""
        for path, facts in list(self._io.files_below(plan.queues)):
            if facts.st_size != self._task.queue_file_size:
                self._io.unlink(path)
        return plan

    def _read_notes(self, plan: RebuildPlan) -> dict[int, RangeNote]:
        notes = (read_note(plan, self._io, piece) for piece in plan.ranges)
        return {note.number: note for note in notes if note is not None}

    def _attempt(self, plan: RebuildPlan, notes: dict[int, RangeNote]) -> tuple[RangesReport, str]:
        """The report; or the path of a bad file, before anything was replaced."""
        missing = [piece for piece in plan.ranges if piece.number not in notes]
        files = Files() if self._dry_run else self._io
        built = self._run(functools.partial(build_range, plan, files, self._dry_run), missing)
        all_notes = {**notes, **{note.number: note for note in map(decode_note, built)}}
        totals = combine_notes(plan, (all_notes[piece.number] for piece in plan.ranges))
        report = RangesReport(
            str(self._source.layout.root),
            self._dry_run,
            totals.begin,
            totals.end,
            records=totals.records,
            ranges=len(plan.ranges),
            resumed=len(notes),
            damaged=len(totals.damage),
        )
        assembler = Assembler(self._source, plan, totals, self._run, self._progress)
        report.in_log_order = [f"{topic} queue {queue_id}" for topic, queue_id in sorted(assembler.in_log_order)]
        if self._dry_run:
            report.rebuilt = assembler.preview()
            return report, ""
        bad = assembler.assemble()
        if bad:
            return report, bad
        report.rebuilt = assembler.swap_in()
        if self._source.owned is not None:
            with self._source.owned.open(self._progress, bodies_checked=totals.is_sound and not notes) as store:
                report.start = store.report.notes
        else:
            self._remove_scratch()
        return report, ""

    def _remove_scratch(self) -> None:
        """Leaves only queues and index in the output folder."""
        own = self._source.output.root / "penstock"
        for folder in self._io.names(own / "quarantine"):
            self._io.remove_folder(own / "quarantine" / folder)
        for name in ("quarantine", "staging"):
            self._io.remove_folder(own / name)
        with contextlib.suppress(OSError):
            self._io.unlink(own / "lock")
        self._io.remove_folder(own)
