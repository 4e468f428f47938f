"""A rebuild on threads of one process, and which parts of it are worth sending to workers."""

from __future__ import annotations

import threading

import pytest
from store.rebuild.test_rebuild import put_all_kinds
from support.damage import DamagedHome, by_ranges, copy_of, derived

from penstock.format import kernels
from penstock.store.audit.queue_coverage import CoveredRun
from penstock.store.rebuild import ThreadRunner, is_small_job
from penstock.store.rebuild.combine_ranges import IndexFilePlan, KeySpan, QueueGroup
from penstock.store.rebuild.plan import RebuildRange
from penstock.store.rebuild.ranges import QueuePlan


def test_threads_build_the_same_as_a_serial_run(home: DamagedHome) -> None:
    put_all_kinds(home)
    other = copy_of(home.path)
    reported: list[tuple[str, int, int]] = []
    report = by_ranges(home.path, 1000, run=ThreadRunner(lambda *progress: reported.append(progress)))
    by_ranges(other, 1000)
    assert derived(home.path) == derived(other)
    assert len(reported) == report.ranges
    assert reported[-1] == ("walk the log", reported[-1][2], reported[-1][2])
    assert [done for _, done, _ in reported] == sorted(done for _, done, _ in reported)


def test_pieces_run_side_by_side_and_answers_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=60)

    def work(piece: int) -> bytes:
        both.wait()
        return bytes([piece])

    assert ThreadRunner()(work, [3, 1, 2, 0]) == [b"\x03", b"\x01", b"\x02", b"\x00"]


def test_the_error_of_a_piece_is_raised() -> None:
    def work(piece: int) -> bytes:
        raise LookupError(piece)

    with pytest.raises(LookupError):
        ThreadRunner()(work, [1, 2])


def test_only_ranges_and_large_jobs_go_to_workers() -> None:
    few, many = KeySpan(0, 0, 10), KeySpan(0, 0, 12_000_000)
    queue = QueuePlan("T", 0, 0, [CoveredRun(0, 11_999_995, 0, 10**9)], [])
    assert is_small_job([])
    assert is_small_job([IndexFilePlan("a", [few], None), QueueGroup([])])
    assert is_small_job([QueueGroup([queue])])
    assert not is_small_job([QueueGroup([queue]), IndexFilePlan("a", [few], None)])
    assert not is_small_job([IndexFilePlan("a", [many], None)])
    assert not is_small_job([RebuildRange(0, 0, 0, 10, False, False)])


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("is_torn", [False, True])
def test_the_start_at_the_end_checks_bodies_only_if_the_log_is_damaged_or_its_end_torn(
    home: DamagedHome, is_damaged: bool, is_torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.fill()
    if is_damaged:
        home.damage(home.record("U", 1, 30))
    if is_torn:
        home.damage(home.records[max(home.records)])
    checks: set[bool] = set()
    find_valid_end = kernels.find_valid_end

    def watched(
        data: kernels.Buffer, base: int, start: int, stop: int, check_crc: bool, *doubt: int
    ) -> tuple[int, int, int]:
        checks.add(check_crc)
        return find_valid_end(data, base, start, stop, check_crc, *doubt)

    monkeypatch.setattr(kernels, "find_valid_end", watched)
    by_ranges(home.path, 1000)
    assert (False in checks) is not (is_damaged or is_torn)
    assert home.errors() == [] or is_damaged
