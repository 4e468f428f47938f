"""Every fault that an audit knows is gone after a repair, but for those that only a person can put right."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import faults
from support.damage import SETTINGS, SoundStore
from support.disks import UnsyncedFiles

from penstock.errors import BadStore
from penstock.store.audit import audit
from penstock.store.repair import RepairReport, repair

REFUSED = {"a_log_file_with_a_wrong_name", "a_foreign_file_in_the_log", "a_foreign_file_among_the_topics"}
"""Somebody must move these; one sentence says which."""

LEFT = {
    "queue_offsets_that_no_record_has": {"queue-offset-gap"},
    "a_queue_offset_that_two_records_have": {"queue-offset-repeated"},
}
"""Messages that are not in the store, and records of which one too many is."""


def run(store: SoundStore) -> RepairReport:
    return repair(store.folder, SETTINGS, files=UnsyncedFiles())


@pytest.mark.parametrize("name", sorted(faults.ALL))
def test_after_a_repair_an_audit_has_no_error(tmp_path: Path, name: str) -> None:
    store = SoundStore.make(tmp_path / "store")
    faults.ALL[name](store)
    if name in REFUSED:
        with pytest.raises(BadStore, match="move it elsewhere"):
            run(store)
        return
    report = run(store)
    left = {finding.kind for finding in audit(store.folder, SETTINGS).errors}
    assert left == LEFT.get(name, set())
    assert bool(report.problems) == bool(left)
    again = run(store)
    assert (again.ranges, again.changes, again.rebuilt) == ([], [], []), "a second repair finds something"
