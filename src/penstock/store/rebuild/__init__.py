"""Rebuilds queues and index from independent ranges of the log, in one process or on many hosts.

`job.py` has the order of the steps; the runner of the ranges is an argument. The swap, and queues that cannot be built
from ranges alone, are left to `store/repair`.
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
