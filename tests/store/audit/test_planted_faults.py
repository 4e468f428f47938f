"""Each fault that is planted in a sound store is found, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.damage import SETTINGS, SoundStore
from support.faults import ALL

from penstock.store.audit import audit
from penstock.store.audit.kinds import KINDS


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


@pytest.mark.parametrize("name", ALL)
def test_a_planted_fault_gives_its_findings_and_no_others(store: SoundStore, name: str) -> None:
    expected = ALL[name](store)
    report = audit(store.folder, SETTINGS)
    assert {finding.kind for finding in report.findings} == expected, report.findings
    assert {KINDS[kind].severity for kind in expected} == {finding.severity for finding in report.findings}
