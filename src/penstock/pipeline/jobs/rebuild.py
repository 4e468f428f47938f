"""Rebuilds queues and index of stores from their logs, by ranges, in Spark's workers. Needs pyspark.

Workers write units and keys straight into the store's staging folder, so all hosts must see the store under one path;
only a few numbers per range and queue come back. `penstock.store.rebuild` builds, checks and swaps in the files; this
module runs its pieces.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadSettings
from penstock.pipeline.jobs.framework import JobInput
from penstock.pipeline.session import gather, parallelism
from penstock.store.damage import MayExceed, never_exceed
from penstock.store.readonly.store_folder import quiet_log
from penstock.store.rebuild import RangesReport, ThreadRunner, is_small_job, rebuild_by_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
_TASKS_PER_WORKER: Final = 2
_MAX_TASK_PIECES: Final = 16


def rebuild(
    spark: SparkSession,
    job_input: JobInput,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    into: str | Path | None = None,
    dry_run: bool = False,
    range_size: int | None = None,
    may_exceed: MayExceed = never_exceed,
) -> list[RangesReport]:
    """Rebuilds each store's queues, optionally of one topic or queue id; without these, all queues and the index.

    No process may have a store open, unless the result goes `into` another folder. Raises BadStore, StoreInUse,
    BadSettings, StoreFailed, or PenstockError for a worker's failure; then that store's old files are in place.
    """
    job_input.check(only_stores=True)
    folders = job_input.folders()
    if into is not None and len(folders) > 1:
        raise BadSettings("--into takes one store: name a folder for each, one after the other")
    reports = []
    with quiet_log():
        for folder in folders.values():
            reports.append(
                rebuild_by_ranges(
                    folder.layout.root,
                    folder.settings,
                    partial(_run_on_spark, spark),
                    topic=topic,
                    queue_id=queue_id,
                    into=into,
                    dry_run=dry_run,
                    range_size=range_size,
                    may_exceed=may_exceed,
                )
            )
    return reports


def _run_on_spark(spark: SparkSession, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """Runs pieces, several per task if there are many: a task costs 20 ms, and ranges are small to save memory.

    Neighbours go to different tasks, because the index files, which take longest, are neighbours. A job costs a tenth
    of a second, so pieces that take no longer run in this process.
    """
    if is_small_job(pieces):
        return ThreadRunner()(work, pieces)
    pieces_per_task = max(min(len(pieces) // (_TASKS_PER_WORKER * parallelism(spark)), _MAX_TASK_PIECES), 1)
    count = -(-len(pieces) // pieces_per_task)
    answers = gather(spark, [pieces[number::count] for number in range(count)], partial(_run_pieces, work))
    results = [b""] * len(pieces)
    for number, some in enumerate(answers):
        results[number::count] = pickle.loads(some)
    return results


def _run_pieces(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> bytes:
    return pickle.dumps([work(piece) for piece in pieces])
