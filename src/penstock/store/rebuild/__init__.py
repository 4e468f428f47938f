"""Queues and index built anew from ranges of the log, each by itself: in one process, or by many on many hosts.

`job.py` has the order of it, and takes whoever runs the ranges as an argument. What it puts in place, and how, is what
`store/repair` does for one process; queues that do not come out of ranges alone are left to it.
"""

from penstock.store.rebuild.job import ThreadRunner, RangesReport, TaskRunner, is_small_job, run_serially, rebuild_by_ranges

__all__ = ["ThreadRunner", "RangesReport", "TaskRunner", "is_small_job", "run_serially", "rebuild_by_ranges"]
