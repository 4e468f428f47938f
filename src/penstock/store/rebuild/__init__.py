"""Queues and index built anew from ranges of the log, each by itself: in one process, or by many on many hosts.

`job.py` has the order of it, and takes whoever runs the ranges as an argument. What it puts in place, and how, is what
`store/repair` does for one process; queues that do not come out of ranges alone are left to it.
"""

from penstock.store.rebuild.job import InThreads, RangesReport, TaskRunner, is_soon_done, one_by_one, rebuild_by_ranges

__all__ = ["InThreads", "RangesReport", "TaskRunner", "is_soon_done", "one_by_one", "rebuild_by_ranges"]
