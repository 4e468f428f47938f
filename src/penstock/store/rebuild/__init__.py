"""Rebuilds queues and index from independent ranges of the log, in one process or on many hosts.

`job.py` runs the steps in order; an argument decides where the ranges are built (serially, on threads, on Spark).
`store/repair` swaps the new files in, and builds queues that ranges alone cannot build.
"""

from penstock.store.rebuild.job import (
    RangesReport,
    TaskRunner,
    ThreadRunner,
    is_small_job,
    rebuild_by_ranges,
    run_serially,
)

__all__ = ["RangesReport", "TaskRunner", "ThreadRunner", "is_small_job", "rebuild_by_ranges", "run_serially"]
