"""Repair and rebuild of a store that nobody has open.

    from penstock.store.repair import rebuild, repair

    report = repair("data/store", dry_run=True)
    for found in report.ranges:
        print(found.file, found.physical_offset, found.size, found.reason, found.lost)

`repair` puts everything right that can be; `rebuild` makes queues and index anew from the log, all or some.
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
