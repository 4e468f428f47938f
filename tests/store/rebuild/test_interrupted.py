"""An interrupted rebuild by ranges: the old files stay in place, and the next run resumes where it can."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.damage import NOW, SMALL_SETTINGS, DamagedHome, by_ranges, copy_of, derived
from support.disks import CountedFiles, UnsyncedFiles, run_killed

from penstock.store import Message, MessageStore
from penstock.store.rebuild import rebuild, run_serially
from penstock.store.rebuild.plan import RebuildRange


class Stopped(Exception):
    """What stops a run."""


class Runner:
    """Runs one after the other; stops before a piece, counted over all calls. Remembers the ranges that it built."""

    def __init__(self, stop_before: int = 10**9) -> None:
        self._left = stop_before
        self.ranges: list[int] = []

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        results = []
        for piece in pieces:
            if not self._left:
                raise Stopped
            self._left -= 1
            results.append(work(piece))
            if isinstance(piece, RebuildRange):
                self.ranges.append(piece.number)
        return results


def served(path: Path, home: DamagedHome) -> list[list[bytes]]:
    """By a plain start."""
    copy = DamagedHome(path)
    with MessageStore.open(path, SMALL_SETTINGS, files=UnsyncedFiles(), clock=home.clock) as store:
        return [copy.bodies(store, *name) for name in (("T", 0), ("U", 0), ("U", 1))]


@pytest.mark.parametrize("kills", [10, pytest.param(10**6, marks=[pytest.mark.torture, pytest.mark.timeout(0)])])
def test_killed_anywhere_it_leaves_old_files_or_new_ones(home: DamagedHome, kills: int) -> None:
    home.fill(40)
    due = served(copy_of(home.path), home)
    old = derived(home.path)

    def act(path: Path, files: CountedFiles) -> None:
        rebuild(path, SMALL_SETTINGS, range_size=2000, files=files, clock=lambda: NOW)

    whole = copy_of(home.path)
    counted = CountedFiles()
    act(whole, counted)
    new, calls = derived(whole), counted.calls
    swapped = calls.index("write swap.json.tmp")
    moments = sorted({*range(0, len(calls), len(calls) // kills + 1), *range(swapped - 1, swapped + 3), len(calls) - 1})
    for last in moments:
        path = copy_of(home.path)
        run_killed(functools.partial(act, path), last)
        if not (path / "penstock" / "swap.json").exists():
            assert derived(path) in (old, new), f"killed before {calls[last]}"
        again = copy_of(path)
        assert served(path, home) == due, f"killed before {calls[last]}"
        by_ranges(again, 2000)
        assert derived(again) == new, f"killed before {calls[last]}"
        shutil.rmtree(path)
        shutil.rmtree(again)


@pytest.mark.parametrize("stop_before", [3, 1000])
def test_what_was_built_is_not_built_again(home: DamagedHome, stop_before: int) -> None:
    """Stopped among the ranges, or when all of them were done."""
    home.fill()
    expected = copy_of(home.path)
    ranges = by_ranges(expected, 1000).ranges
    first, second = Runner(min(stop_before, ranges + 1)), Runner()
    before = derived(home.path)
    with pytest.raises(Stopped):
        by_ranges(home.path, 1000, run=first)
    assert derived(home.path) == before
    report = by_ranges(home.path, run=second)
    assert report.resumed == len(first.ranges) == min(stop_before, ranges)
    assert sorted(first.ranges + second.ranges) == list(range(ranges))
    assert derived(home.path) == derived(expected)


@pytest.mark.parametrize("change", ["a message", "a setting", "another selection"])
def test_a_different_log_or_task_starts_over(home: DamagedHome, change: str) -> None:
    home.fill()
    with pytest.raises(Stopped):
        by_ranges(home.path, 1000, run=Runner(5))
    settings, topic = SMALL_SETTINGS, None
    if change == "a message":
        times = {path: path.stat().st_mtime_ns for path in home.log_files()}
        with home.open_small() as store:
            assert store.put(Message("T", b"more")).ok
        for path, moment in times.items():  # a tmpfs does not change them when a file is written through a map
            os.utime(path, ns=(moment, moment))
    elif change == "a setting":
        settings = SMALL_SETTINGS.with_changes(message_delay_level="1s 2s")
    else:
        topic = "U"
    assert by_ranges(home.path, 1000, settings=settings, topic=topic).resumed == 0
    assert home.errors() == []


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize(
    "lost", ["consumequeue/T/0/*", "rebuild/*-000000.keys", "rebuild/*3.keys", "rebuild/*3.json", "rebuild/*.json"]
)
def test_what_a_power_cut_took_from_the_staging_folder_is_noticed(home: DamagedHome, lost: str, has_size: bool) -> None:
    home.fill()
    expected = copy_of(home.path)
    ranges = by_ranges(expected, 1000).ranges
    with pytest.raises(Stopped):
        by_ranges(home.path, 1000, run=Runner(ranges))
    for path in (home.path / "penstock" / "staging").glob(lost):
        path.write_bytes(bytes(path.stat().st_size if has_size else 0))
    by_ranges(home.path, 1000)
    assert derived(home.path) == derived(expected)


def test_a_host_that_does_not_see_the_store_says_so(home: DamagedHome, tmp_path: Path) -> None:
    home.fill()

    def elsewhere(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        (home.path / "penstock" / "staging").rename(tmp_path / "not mounted here")
        return run_serially(work, pieces)

    with pytest.raises(Exception, match="all hosts of the cluster must see the store under one path"):
        by_ranges(home.path, 1000, run=elsewhere)
