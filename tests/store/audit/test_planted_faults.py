"""Each fault that is planted in a sound store is found, nothing else is, and a repair removes it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from support.damage import SETTINGS, SoundStore
from support.disks import UnsyncedFiles
from support.faults import ALL

from penstock.errors import BadStore
from penstock.store.audit import audit
from penstock.store.audit.finding_kinds import KINDS
from penstock.store.repair import RepairReport, repair

REFUSED = {"a_log_file_with_a_wrong_name", "a_foreign_file_in_the_log", "a_foreign_file_among_the_topics"}
"""A person must move these files; one sentence says which."""
LEFT = {
    "queue_offsets_that_no_record_has": {"queue-offset-gap"},
    "a_queue_offset_that_two_records_have": {"queue-offset-repeated"},
}
"""Messages that are not in the store, and records of which there is one too many."""


def repaired(store: SoundStore) -> RepairReport:
    return repair(store.folder, SETTINGS, files=UnsyncedFiles())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SoundStore.make(tmp_path_factory.mktemp("model") / "store").folder


@pytest.fixture
def store(model: Path, tmp_path: Path) -> SoundStore:
    return SoundStore(Path(shutil.copytree(model, tmp_path / "store")))


def test_the_sound_store_gives_nothing(store: SoundStore) -> None:
    report = audit(store.folder, SETTINGS)
    assert report.findings == []
    assert report.damage == []
    assert report.figures.records == len(store.records())
    assert report.figures.keys == report.figures.index_items > 200
    assert report.figures.log_end == store.end()
    assert len(store.log_files()) >= 4
    assert len(store.queue_files()) >= 3
    assert len(store.index_files()) >= 3


def test_every_kind_of_finding_is_planted(tmp_path: Path, model: Path) -> None:
    due: set[str] = {"unsettled"}  # of a store in use only
    for name, plant in ALL.items():
        due |= plant(SoundStore(Path(shutil.copytree(model, tmp_path / name))))
    assert due == set(KINDS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.rest] * (number % 2)) for number, name in enumerate(ALL)]
)
def test_a_planted_fault_gives_its_findings_and_no_others_and_a_repair_leaves_none(
    store: SoundStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.store")
    expected = ALL[name](store)
    report = audit(store.folder, SETTINGS)
    assert {finding.kind for finding in report.findings} == expected, report.findings
    assert {KINDS[kind].severity for kind in expected} == {finding.severity for finding in report.findings}
    if name in REFUSED:
        with pytest.raises(BadStore, match="move it elsewhere"):
            repaired(store)
        return
    repair_report = repaired(store)
    left = {finding.kind for finding in audit(store.folder, SETTINGS).errors}
    assert left == LEFT.get(name, set())
    assert bool(repair_report.problems) == bool(left)
    again = repaired(store)
    assert (again.ranges, again.changes, again.rebuilt) == ([], [], []), "a second repair finds something"
