"""How far Spark is with what a caller waits for: tasks done, of all tasks known so far. Needs pyspark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], object]
"""Called with the tasks that are done, and all of them; by one thread at a time."""

_EVERY_S: Final = 0.25


@contextmanager
def watched(spark: SparkSession, tell: Tell) -> Iterator[None]:
    """Tells now and then how far the jobs are that run inside the block."""
    if hasattr(spark, "registerProgressHandler"):
        watch: Any = _Handler(tell)
        try:
            spark.registerProgressHandler(watch)
        except Exception:  # a classic session has the method and refuses it
            watch = None
        if watch is not None:
            try:
                yield
            finally:
                spark.removeProgressHandler(watch)
            return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(spark, tell, stop), name="penstock progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Handler:
    """Takes what a Connect session tells."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        total = sum(stage.num_tasks for stage in stages or ())
        if total:
            self._tell(sum(stage.num_completed_tasks for stage in stages), total)


def _follow(spark: SparkSession, tell: Tell, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not stop.wait(_EVERY_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        if seen:
            tell(sum(done for done, _ in seen.values()), sum(total for _, total in seen.values()))
