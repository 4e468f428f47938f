"""Repair and rebuild of a store that no process has open.

    from penstock.store.repair import rebuild, repair

    report = repair("data/store", dry_run=True)
    for each in report.ranges:
        print(each.file, each.physical_offset, each.size, each.reason, each.lost)

`repair` fixes the whole store, and reports the problems that it cannot fix. `rebuild` builds all or some queues, or the
index, again from the log.
"""

from penstock.store.repair.repair import rebuild, repair
from penstock.store.repair.report import (
    Change,
    LostMessages,
    Progress,
    RebuildReport,
    Rebuilt,
    RepairedRange,
    RepairReport,
)

__all__ = [
    "Change",
    "LostMessages",
    "Progress",
    "RebuildReport",
    "Rebuilt",
    "RepairReport",
    "RepairedRange",
    "rebuild",
    "repair",
]
