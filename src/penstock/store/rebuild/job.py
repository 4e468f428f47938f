"""The order of a rebuild by ranges: plan, build the ranges, combine their notes, complete queues and index, swap.

Each range has a note: a file that lists the records and the damage in it. A `TaskRunner` runs the tasks: serially, on
threads (`ThreadRunner`), or on Spark's workers. The new files are in the staging folder until they are complete,
checked and synced. Then they are swapped in as in `repair`, and the old files go to the quarantine. If the process is
killed before the swap, the old files stay in use, and a later run with the same log and settings builds the remaining
ranges. Memory is a few numbers per range and queue.
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
from penstock.store.file_io import Files
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
    """Calls `work` for each piece, on any thread or host; returns the results in the order of the pieces.

    A piece is the input of one task: a range of the log, an index file or a group of queues.
    """

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]: ...


def run_serially(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """A TaskRunner without concurrency."""
    return [work(piece) for piece in pieces]


class ThreadRunner:
    """A TaskRunner with one thread per core, at most four threads. Reports how many bytes of the log are done.

    Threads help because kernels, writes and syncs release the interpreter's lock. If a task fails, the run ends when
    the started tasks have ended.
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
    """Whether this process completes these index files and queues faster than it could send them to workers."""
    return all(isinstance(piece, IndexFilePlan | QueueGroup) for piece in pieces) and (
        sum(piece.items if isinstance(piece, IndexFilePlan) else piece.units for piece in pieces)
        < _MIN_UNITS_FOR_WORKERS
    )


class RangesReport(RebuildReport, kw_only=True):
    """The changes that a rebuild by ranges made; with `dry_run`, those that it would make."""

    into: str = ""
    """The folder with the new files; empty if the store was rebuilt in place."""
    records: int = 0
    ranges: int = 0
    resumed: int = 0
    """Number of ranges that an earlier run had built."""
    damaged: int = 0
    """Number of damaged ranges of the log; the rebuild skipped them."""
    in_log_order: list[str] = msgspec.field(default_factory=list)
    """Queues that one process built in log order, because ranges alone could not build them."""


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
    """Rebuilds all queues and the index.

    `topic` and `queue_id` limit it to the queues of that topic, with that id; the index then stays. `run` runs the
    tasks. `into`: a folder for the new files; if it is None, they replace the old files, and no process may have the
    store open. Raises BadStore, StoreInUse, BadSettings or StoreFailed; then the old files are in place, or the next
    start finishes the swap.
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
        """Returns the plan of an earlier run with the same task, or a new plan with an empty staging folder."""
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
        """Removes queue files of a wrong size, which a power failure can leave; returns `plan`."""
        for path, facts in list(self._io.files_below(plan.queues)):
            if facts.st_size != self._task.queue_file_size:
                self._io.unlink(path)
        return plan

    def _read_notes(self, plan: RebuildPlan) -> dict[int, RangeNote]:
        notes = (read_note(plan, self._io, piece) for piece in plan.ranges)
        return {note.number: note for note in notes if note is not None}

    def _attempt(self, plan: RebuildPlan, notes: dict[int, RangeNote]) -> tuple[RangesReport, str]:
        """Builds the ranges without a note, then completes the rebuild. Returns the report and an empty string.

        Instead of the empty string, returns the path of a file whose content is not what a range wrote. Then nothing
        was replaced.
        """
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
        """Removes all files from the output folder except queues and index."""
        own = self._source.output.root / "penstock"
        for folder in self._io.names(own / "quarantine"):
            self._io.remove_folder(own / "quarantine" / folder)
        for name in ("quarantine", "staging"):
            self._io.remove_folder(own / name)
        with contextlib.suppress(OSError):
            self._io.unlink(own / "lock")
        self._io.remove_folder(own)
