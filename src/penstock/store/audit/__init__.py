"""The audit of a store: is every record sound, in its queue and in the index, and is nothing else there?

    from penstock.store.audit import audit
    report = audit(Path("data/store"))

Files are read as they lie on disk, also those that a store would refuse to load. Nothing is changed.

    plan.py         what there is and how far it is settled     (listing.py, sizes.py, live.py)
    range_audit.py  one range of the log                        (record_checks.py, unit_check.py, key_check.py, harm.py)
    index_files.py  one index file
    log_audit.py, queue_audit.py, index_audit.py, config_audit.py   what follows once the log is known
    looks.py        how often a store is looked at
    auditor.py      all of it, on one machine
"""

from penstock.store.audit.audit import audit
from penstock.store.audit.findings import AuditReport, Figures, Finding

__all__ = ["AuditReport", "Figures", "Finding", "audit"]
