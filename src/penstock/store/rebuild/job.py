"""The rebuild of a store: all queues and the index, or some of them, are built from the log and replace the old ones.

A `TaskRunner` runs the tasks of the build: serially, on threads (`ThreadRunner`), or on Spark's workers. The new files
are in the staging folder until they are complete, checked and synced. Then they are swapped in, and the old files go to
the quarantine. If the process is killed before the swap, the old files stay in use, and a later run with the same log
and settings derives only the remaining ranges. Memory is a few numbers per range and queue. Damage is skipped, as by
dispatch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from penstock.clock import now_ms
from penstock.errors import BadStore
from penstock.store.damage_and_quarantine import MayExceed, never_exceed
from penstock.store.files.file_io import Files
from penstock.store.rebuild.combine_ranges import IndexFilePlan, QueueGroup
from penstock.store.rebuild.plan import RebuildRange, RebuildSource, TaskRunner, open_in_place, open_into_folder
from penstock.store.rebuild.report import Progress, RebuildReport, Rebuilt, no_progress
from penstock.store.rebuild.staged_build import StagedBuild
from penstock.store.rebuild.target_store import TargetStore
from penstock.store.settings import Settings

_MAX_THREADS: Final = 4
_MIN_UNITS_FOR_WORKERS: Final = 12_000_000


def run_serially(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """A TaskRunner without concurrency."""
    return [work(piece) for piece in pieces]


class ThreadRunner:
    """A TaskRunner with one thread per core, at most four threads. Reports how many bytes of the log are done.

    Threads help because kernels, writes and syncs release the interpreter's lock. If a task fails, the run ends when
    the started tasks have ended.
    """

    def __init__(self, progress: Progress = no_progress, step: str = "walk the log") -> None:
        """`step`: the name under which the progress is reported."""
        self._progress = progress
        self._step = step

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        total = sum(piece.stop - piece.start for piece in pieces if isinstance(piece, RebuildRange))
        results: list[bytes] = []
        done = 0
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "penstock-rebuild") as pool:
            for piece, result in zip(pieces, pool.map(work, pieces), strict=True):
                results.append(result)
                if isinstance(piece, RebuildRange):
                    done += piece.stop - piece.start
                    self._progress(self._step, done, total)
        return results


def is_small_job(pieces: Sequence[Any]) -> bool:
    """Whether this process completes these index files and queues faster than it could send them to workers."""
    return all(isinstance(piece, IndexFilePlan | QueueGroup) for piece in pieces) and (
        sum(piece.items if isinstance(piece, IndexFilePlan) else piece.units for piece in pieces)
        < _MIN_UNITS_FOR_WORKERS
    )


def rebuild(
    folder: str | Path,
    settings: Settings | None = None,
    run: TaskRunner = run_serially,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    index_only: bool = False,
    into: str | Path | None = None,
    dry_run: bool = False,
    range_size: int | None = None,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
    progress: Progress = no_progress,
    may_exceed: MayExceed = never_exceed,
) -> RebuildReport:
    """Rebuilds all queues and the index; with `index_only`, the index alone.

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
        wants_index = index_only or (topic is None and queue_id is None)
        if wants_index and source.index_problem:
            raise BadStore(source.index_problem)
        with_index = wants_index and source.settings.message_index_enable
        task = source.task(with_index=with_index, topic=topic, queue_id=queue_id, index_only=index_only)
        build = StagedBuild(source, task, run, dry_run=dry_run, range_size=range_size)
        build.build()
        totals = build.totals
        report = RebuildReport(
            str(source.layout.root),
            dry_run,
            totals.begin,
            totals.end,
            into="" if into is None else str(into),
            records=totals.records,
            ranges=len(build.plan.ranges),
            resumed=build.resumed,
            damaged=len(totals.damage),
            in_log_order=[f"{name} queue {number}" for name, number in sorted(totals.in_log_order)],
        )
        if dry_run:
            report.rebuilt = build.preview()
        elif source.owned is None:
            report.rebuilt = build.swap_in(*build.replacements())
            _remove_scratch(source)
        else:
            report.rebuilt, report.start = _replace(source.owned, build, progress)
        return report


def _replace(owned: TargetStore, build: StagedBuild, progress: Progress) -> tuple[list[Rebuilt], list[str]]:
    """Swaps the new files into the store and starts it; returns them, and the notes of the start."""
    totals, queues_and_index = build.totals, build.replacements()
    is_sound = owned.closed_cleanly and not totals.damage and not totals.in_log_order
    owned.mark_unclean()
    rebuilt = build.swap_in(*queues_and_index)
    if is_sound:  # every record was just checked, so a start need not do it again
        owned.mark_clean()
    with owned.open(progress, bodies_checked=totals.is_sound and not build.resumed) as store:
        return rebuilt, store.report.notes


def _remove_scratch(source: RebuildSource) -> None:
    """Removes all files from the output folder except queues and index."""
    files, own = source.files, source.output.root / "penstock"
    for folder in files.names(own / "quarantine"):
        files.remove_folder(own / "quarantine" / folder)
    for name in ("quarantine", "staging"):
        files.remove_folder(own / name)
    with contextlib.suppress(OSError):
        files.unlink(own / "lock")
    files.remove_folder(own)
