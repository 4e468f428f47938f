"""Repair of a store that no process has open.

    from penstock.store.repair import repair

    report = repair("data/store", dry_run=True)
    for each in report.ranges:
        print(each.file, each.physical_offset, each.size, each.reason, each.lost)

`repair` fixes the whole store, and reports the problems that it cannot fix.
"""

from penstock.store.repair.repair import repair
from penstock.store.repair.report import Change, LostMessages, RepairedRange, RepairReport

__all__ = ["Change", "LostMessages", "RepairReport", "RepairedRange", "repair"]
