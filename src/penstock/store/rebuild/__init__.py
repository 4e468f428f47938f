"""Rebuilds queues and index of a store from independent ranges of the log, in one process or on many hosts.

    from penstock.store.rebuild import ThreadRunner, rebuild

    report = rebuild("data/store", run=ThreadRunner())

`staged_build.py` is the one way to build them, for `rebuild` and for `store/repair`.
"""

from penstock.store.rebuild.job import ThreadRunner, is_small_job, rebuild, run_serially
from penstock.store.rebuild.plan import TaskRunner
from penstock.store.rebuild.report import Progress, RebuildReport, Rebuilt

__all__ = [
    "Progress",
    "RebuildReport",
    "Rebuilt",
    "TaskRunner",
    "ThreadRunner",
    "is_small_job",
    "rebuild",
    "run_serially",
]
