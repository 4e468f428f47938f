"""The audit of a store: checks that each record is valid, has its unit and its keys, and that no others exist.

    from penstock.store.audit import audit
    report = audit(Path("data/store"))

It reads the files as they are on disk, including files that a store would refuse to load, and changes nothing.

    plan.py       the plan: which files are audited, and up to which log position
    ranges.py     audits one range of the log: records, units, keys     (records.py, keys.py, queue_coverage.py)
    keys.py       audits one index file
    log.py, queues.py, index.py, config.py    checks that need the results of the whole log
    audit.py      runs all of them in one process
"""

from penstock.store.audit.audit import audit
from penstock.store.audit.findings import AuditReport, Figures, Finding

__all__ = ["AuditReport", "Figures", "Finding", "audit"]
