"""Runs the pieces of a rebuild in this process, on a thread for each core.

Kernels, writes and syncs let go of the interpreter's lock, so that two threads take little more than half the time of
one. A piece that fails ends the run when those that were begun are done.


The order of a rebuild by ranges: plan, build the ranges, add up, finish queues and index, swap.

Whoever runs the ranges is an argument: one after the other in this process, or Spark's workers. What is built lies in
the staging folder until it is whole, checked and synced; then it is swapped as `repair` does it, and the old files go
to the quarantine. Killed at any moment before that, the old files are in force, and a later run with the same log and
settings goes on with the ranges that are not done. Memory here is a few numbers for each range and queue.
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
from penstock.store.audit.cover import QueueName
from penstock.store.damage import MayExceed, never_exceed
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.io import Files
from penstock.store.rebuild.finish import Finish, IndexFilePlan, QueueGroup
from penstock.store.rebuild.plan import (
    RebuildPlan,
    RebuildRange,
    RebuildSource,
    RebuildTask,
    cut_log,
    in_place,
    into_folder,
    read_plan,
)
from penstock.store.rebuild.ranges import RangeNote, add_up, build_range, decode_note, noted
from penstock.store.repair.report import Progress, RebuildReport, silent
from penstock.store.settings import Settings

_MAX_THREADS: Final = 4
_WORTH_HANDING_OUT: Final = 12_000_000
_WALK: Final = "walk the log"


class InThreads:
    """A `Run`; tells how far it is in the log."""

    def __init__(self, progress: Progress = silent) -> None:
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


def is_soon_done(pieces: Sequence[Any]) -> bool:
    """Whether to finish these takes less time here than to hand them to others."""
    return all(isinstance(piece, IndexFilePlan | QueueGroup) for piece in pieces) and (
        sum(piece.items if isinstance(piece, IndexFilePlan) else piece.units for piece in pieces) < _WORTH_HANDING_OUT
    )


class TaskRunner(Protocol):
    """Does some work for each of some pieces, wherever; returns what came out, in the order of the pieces."""

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]: ...


def one_by_one(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """Runs everything here, without anybody's help."""
    return [work(piece) for piece in pieces]


class RangesReport(RebuildReport, kw_only=True):
    """What a rebuild by ranges did; with `dry_run`, would do."""

    into: str = ""
    """The folder that has the new files, if the store's own were left alone."""
    records: int = 0
    ranges: int = 0
    resumed: int = 0
    """Ranges that an earlier run had built already."""
    damaged: int = 0
    """Ranges of the log without a valid record, which were passed over."""
    in_log_order: list[str] = msgspec.field(default_factory=list)
    """Queues whose offsets go back somewhere, so that they were built by one process."""


def rebuild_by_ranges(
    folder: str | Path,
    settings: Settings | None = None,
    run: TaskRunner = one_by_one,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    into: str | Path | None = None,
    dry_run: bool = False,
    range_size: int | None = None,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = silent,
    may_exceed: MayExceed = never_exceed,
) -> RangesReport:
    """Rebuilds queues, of one topic or with one queue id if that is given, or all of them and the index.

    Nobody may have the store open, unless it goes `into` another folder. Raises BadStore, StoreInUse, BadSettings or
    StoreFailed; then the old files are in their places.
    """
    settings = settings or Settings()
    common: dict[str, Any] = {"dry_run": dry_run, "files": files, "clock": clock, "may_exceed": may_exceed}
    if into is None:
        opening = in_place(Path(folder).absolute(), settings, **common)
    else:
        opening = into_folder(Path(folder).absolute(), Path(into), settings, **common)
    with opening as source:
        wants_index = topic is None and queue_id is None
        if wants_index and source.index_problem:
            raise BadStore(source.index_problem)
        task = _task(source, topic, queue_id, wants_index and source.settings.message_index_enable)
        job = _Job(source, task, run, dry_run, range_size, progress)
        report = job.do()
        report.into = "" if into is None else str(into)
        return report


def _task(source: RebuildSource, topic: str | None, queue_id: int | None, with_index: bool) -> RebuildTask:
    settings = source.settings
    geometry = settings.index_geometry
    return RebuildTask(
        source.log,
        str(source.target.staging.absolute()),
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

    def do(self) -> RangesReport:
        plan = self._plan()
        notes = {} if self._dry_run else self._noted(plan)
        report, bad = self._do(plan, notes)
        if bad and notes:  # what an earlier run left is not all there: a crash of the whole host took some of it
            clear_staging(self._io, self._source.target)
            report, bad = self._do(self._plan(), {})
        if bad:
            raise StoreFailed("what was built reads back differently; nothing was replaced, check the disk", path=bad)
        return report

    def _plan(self) -> RebuildPlan:
        """The one of an earlier run that had the same to do, or a new one in an empty staging folder."""
        left = None if self._dry_run else read_plan(self._io, self._source.target.staging)
        if left is not None and left.task == self._task and self._range_size is None:
            return self._resumed(left)
        plan = RebuildPlan(secrets.token_hex(8), self._task, cut_log(self._task.log, self._range_size))
        if left is not None and left.task == self._task and left.ranges == plan.ranges:
            return self._resumed(left)
        if not self._dry_run:
            clear_staging(self._io, self._source.target)
            plan.write(self._io)
        return plan

    def _resumed(self, plan: RebuildPlan) -> RebuildPlan:
        """Removes what a power cut has left of a queue's file that had its name and not yet its size."""
        for path, facts in list(self._io.files_below(plan.queues)):
            if facts.st_size != self._task.queue_file_size:
                self._io.unlink(path)
        return plan

    def _noted(self, plan: RebuildPlan) -> dict[int, RangeNote]:
        found = (noted(plan, self._io, piece) for piece in plan.ranges)
        return {note.number: note for note in found if note is not None}

    def _do(self, plan: RebuildPlan, notes: dict[int, RangeNote]) -> tuple[RangesReport, str]:
        """The report; and where something that was built is not as it should be, before anything was replaced."""
        missing = [piece for piece in plan.ranges if piece.number not in notes]
        files = Files() if self._dry_run else self._io
        built = self._run(functools.partial(build_range, plan, files, self._dry_run), missing)
        everything = {**notes, **{note.number: note for note in map(decode_note, built)}}
        sums = add_up(plan, (everything[piece.number] for piece in plan.ranges))
        report = RangesReport(
            str(self._source.layout.root),
            self._dry_run,
            sums.begin,
            sums.end,
            records=sums.records,
            ranges=len(plan.ranges),
            resumed=len(notes),
            damaged=len(sums.damage),
        )
        finish = Finish(self._source, plan, sums, self._run, self._progress)
        report.in_log_order = [_name(name) for name in sorted(finish.in_log_order)]
        if self._dry_run:
            report.rebuilt = finish.rehearse()
            return report, ""
        bad = finish.build()
        if bad:
            return report, bad
        report.rebuilt = finish.put_in_place()
        if self._source.place is not None:
            with self._source.place.open(self._progress, were_bodies_checked=sums.is_sound and not notes) as store:
                report.start = store.report.notes
        else:
            self._tidy()
        return report, ""

    def _tidy(self) -> None:
        """Leaves nothing but queues and index in another folder."""
        own = self._source.target.root / "penstock"
        for folder in self._io.names(own / "quarantine"):
            self._io.remove_folder(own / "quarantine" / folder)
        for name in ("quarantine", "staging"):
            self._io.remove_folder(own / name)
        with contextlib.suppress(OSError):
            self._io.unlink(own / "lock")
        self._io.remove_folder(own)


def _name(name: QueueName) -> str:
    return f"{name[0]} queue {name[1]}"
