"""Audits several stores: finds them, and audits one after the other in this process.

A folder that is no store, or a store that cannot be audited, does not end the audit of the others: its result has the
problem instead of a report. The audit on Spark finds its stores here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.errors import BadStore, PenstockError
from penstock.store.audit.audit import audit
from penstock.store.audit.findings import AuditReport
from penstock.store.readonly.store_folder import StoreFolder, find_paths, name_stores, quiet_log


class Verified(msgspec.Struct, frozen=True):
    """The result for one store: its report, or the problem if there is no report."""

    path: str
    report: AuditReport | None = None
    problem: str = ""


class Stores(msgspec.Struct, frozen=True):
    """The stores to audit by name, and the problems of folders that are not stores, by name."""

    folders: dict[str, StoreFolder]
    others: dict[str, Verified]

    @classmethod
    def find(cls, paths: Sequence[str], config: Path | None = None, pairs: Sequence[str] | None = None) -> Stores:
        """Finds the stores of paths and globs. Raises BadSettings, or BadStore if no folder is a store."""
        found = cls({}, {})
        problem: BadStore | None = None
        for name, path in name_stores(find_paths(paths)).items():
            try:
                found.folders[name] = StoreFolder.find(path, config, pairs)
            except BadStore as error:
                problem = error
                found.others[name] = Verified(str(path), problem=str(error))
        if problem is not None and not found.folders:
            raise problem
        return found


def audit_in_turn(
    stores: Stores,
    *,
    check_crc: bool = True,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Verified]:
    """Audits stores in this process, with `workers` threads, and returns the results by store name."""
    results = dict(stores.others)
    with quiet_log():
        for name, folder in stores.folders.items():
            path, report, problem = str(folder.layout.root), None, ""
            try:
                report = audit(
                    folder.layout,
                    folder.settings,
                    folder.files,
                    check_crc=check_crc,
                    workers=workers,
                    progress=progress,
                )
            except PenstockError as error:
                problem = str(error)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror or error}"
            results[name] = Verified(path, report, problem)
    return dict(sorted(results.items()))
