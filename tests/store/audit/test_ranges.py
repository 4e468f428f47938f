"""The log may be audited in ranges of any size, by any process: the outcome is the same."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from support.damage import LOG_SIZE, SETTINGS, SoundStore
from support.effort import in_parts
from support.faults import ALL

from penstock.format import kernels
from penstock.store.audit import AuditReport, audit
from penstock.store.audit.audit import build_report
from penstock.store.audit.config import read_config
from penstock.store.audit.index_keys import audit_index_file
from penstock.store.audit.plan import make_plan, split_log
from penstock.store.audit.ranges import RangeResult, audit_range
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SoundStore.make(tmp_path_factory.mktemp("model") / "store").folder


@pytest.fixture
def store(model: Path, tmp_path: Path) -> SoundStore:
    return SoundStore(Path(shutil.copytree(model, tmp_path / "store")))


def audit_in_pieces(folder: Path, size: int) -> AuditReport:
    """As workers elsewhere would: everything goes there and comes back as bytes."""
    files = OverlayFiles()
    plan = pickle.loads(pickle.dumps(make_plan(files, Layout.of(folder, SETTINGS), SETTINGS, is_live=False)))
    found = [audit_index_file(plan, files, number) for number in range(len(plan.index_files))]
    index = tuple(facts for facts in found if facts is not None)
    results = [audit_range(plan, files, piece, index) for piece in split_log(plan, files, size)]
    joined = RangeResult()
    for result in pickle.loads(pickle.dumps(results)):
        joined.join(result)
    return build_report(plan, files, read_config(files, plan), index, joined)


@pytest.mark.parametrize("name", in_parts(sorted(ALL, key=lambda name: name[::-1]), 10))
def test_a_fault_is_found_alike_in_ranges_that_cut_it(store: SoundStore, name: str) -> None:
    ALL[name](store)
    assert audit_in_pieces(store.folder, 700) == audit(store.folder, SETTINGS)


def test_threads_share_the_ranges(store: SoundStore) -> None:
    ALL["a_body_with_another_crc"](store)
    assert audit(store.folder, SETTINGS, workers=4, piece_size=1000) == audit(store.folder, SETTINGS)


def test_truncated_records_that_rocketmq_left_in_a_filler_are_not_part_of_the_log(store: SoundStore) -> None:
    """It truncates by moving positions only; behind a filler written there, the old records stay whole."""
    spots = [spot for spot in store.records() if spot.offset // LOG_SIZE == 1]
    last, cut = spots[-1], spots[-4:]
    end = last.offset + last.size
    data = store.read_log(cut[0].offset, end - cut[0].offset)
    filler = bytearray(2 * LOG_SIZE - cut[0].offset)
    kernels.write_blank(filler, 0, len(filler))
    store.write_log(cut[0].offset, bytes(filler))
    store.write_log(cut[0].offset + cut[0].size, data[cut[0].size :])
    shutil.rmtree(store.folder / "consumequeue")
    shutil.rmtree(store.folder / "index")
    for size in (LOG_SIZE, 5000, 300, 100):
        report = audit_in_pieces(store.folder, size)
        assert {finding.kind for finding in report.errors} == {
            "unit-missing",
            "index-key-missing",
            "queue-offset-gap",
            "delay-offset-past-end",
        }
        assert report.figures.records == len(store.records())
