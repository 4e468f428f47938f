"""The audit of a store: checks that every record is valid, is in its queue and in the index, and that nothing else is.

    from penstock.store.audit import audit
    report = audit(Path("data/store"))

It reads the files as they are on disk, including files that a store would refuse to load, and changes nothing.

    plan.py       what is audited, and up to where
    ranges.py     one range of the log: records, units, keys     (records.py, keys.py, cover.py)
    keys.py       one index file
    log.py, queues.py, index.py, config.py    what the whole log decides
    audit.py      runs all of it in one process
"""

from penstock.store.audit.audit import audit
from penstock.store.audit.findings import AuditReport, Figures, Finding

__all__ = ["AuditReport", "Figures", "Finding", "audit"]
