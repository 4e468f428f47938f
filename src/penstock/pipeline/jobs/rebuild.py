"""Rebuilds the queues and index of stores from ranges of their logs, in Spark's workers. Needs pyspark.

Workers write units and keys straight into the store's staging folder. All hosts must therefore see the store under the
same path. Workers return only a few numbers per range and queue. `penstock.store.rebuild` splits the work into pieces,
builds and checks the files and swaps them in. This module only runs the pieces on Spark.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadSettings
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.session import gather, parallelism
from penstock.store.damage_and_quarantine import MayExceed, never_exceed
from penstock.store.readonly.store_folder import quiet_log
from penstock.store.rebuild import RebuildReport, ThreadRunner, is_small_job
from penstock.store.rebuild import rebuild as rebuild_store

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
    index_only: bool = False,
    into: str | Path | None = None,
    dry_run: bool = False,
    range_size: int | None = None,
    may_exceed: MayExceed = never_exceed,
) -> list[RebuildReport]:
    """Rebuilds all queues and the index of each store, or only the queues of one `topic` or `queue_id`, or the index.

    No process may have a store open, unless the result goes `into` another folder. Raises BadStore, StoreInUse,
    BadSettings, StoreFailed, or PenstockError if a worker fails. After an error, that store keeps its old files.
    """
    job_input.check(only_stores=True)
    folders = job_input.folders()
    if into is not None and len(folders) > 1:
        raise BadSettings("--into takes one store: name a folder for each, one after the other")
    reports = []
    with quiet_log():
        for folder in folders.values():
            reports.append(
                rebuild_store(
                    folder.layout.root,
                    folder.settings,
                    partial(_run_on_spark, spark),
                    topic=topic,
                    queue_id=queue_id,
                    index_only=index_only,
                    into=into,
                    dry_run=dry_run,
                    range_size=range_size,
                    may_exceed=may_exceed,
                )
            )
    return reports


def _run_on_spark(spark: SparkSession, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """Runs `work` for each piece and returns the results in order.

    A small job runs in this process, because a Spark job costs a tenth of a second. Otherwise each task runs several
    pieces if there are many: a task costs 20 ms, and pieces are small to save memory. Index files take longest and are
    neighbours in `pieces`, so neighbours go to different tasks.
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
