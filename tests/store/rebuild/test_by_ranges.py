"""Queues and index built from ranges of the log: the same bytes as dispatch, however the log is cut."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.rebuild.test_rebuild import put_all_kinds
from support.damage import DamagedHome, assert_as_dispatched, assert_same, by_ranges, copy_of, derived, times
from support.stores import RANDOM_LOG_SIZE, STORES, Made
from support.stores import RANDOM_SETTINGS as RANDOM

from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.store import Message
from penstock.store.rebuild import run_serially
from penstock.store.rebuild.plan import RebuildRange

SIZES = 300, 4096


def test_everything_comes_out_as_dispatch_built_it(home: DamagedHome) -> None:
    put_all_kinds(home)
    before = derived(home.path)
    report = by_ranges(home.path, 1000)
    assert derived(home.path) == before
    assert len(before[1]) > 2
    assert report.ranges > 10
    assert report.in_log_order == []
    assert all((home.path / each.kept).is_dir() for each in report.rebuilt)
    assert home.errors() == []


def test_however_the_log_is_cut_the_same_is_built(home: DamagedHome) -> None:
    put_all_kinds(home)
    assert_same(home.path, 150, 3000)
    assert_as_dispatched(home.path)
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")
    assert_same(home.path, 700)


def quickly(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
    )


def rebuild_random(folder: Path, made: Made, harm: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made.make(Path(place, "store"))
        files = sorted(Path(place, "store", "commitlog").iterdir())
        for where, change in harm:
            at = int(where * len(files) * RANDOM_LOG_SIZE)
            data = bytearray(files[at // RANDOM_LOG_SIZE].read_bytes())
            data[at % RANDOM_LOG_SIZE] ^= change
            files[at // RANDOM_LOG_SIZE].write_bytes(data)
        assert_same(Path(place, "store"), 150, 1500, settings=RANDOM)
        assert_as_dispatched(Path(place, "store"), RANDOM)


HARM = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6)


@quickly(10)
@given(STORES, HARM)
def test_random_stores_come_out_the_same_also_damaged(
    tmp_path: Path, made: Made, harm: list[tuple[float, int]]
) -> None:
    rebuild_random(tmp_path, made, harm)


@pytest.mark.torture
@pytest.mark.timeout(0)
@quickly(500)
@given(STORES, HARM)
def test_many_random_stores_do_too(tmp_path: Path, made: Made, harm: list[tuple[float, int]]) -> None:
    rebuild_random(tmp_path, made, harm)


def test_after_retention_queues_begin_where_their_records_do(home: DamagedHome) -> None:
    home.fill()
    home.log_files()[0].unlink()
    assert_same(home.path, *SIZES)


def test_files_get_the_times_of_their_messages(home: DamagedHome) -> None:
    """To search by time, RocketMQ opens the first queue file that was modified after that time."""
    home.fill()
    expected = copy_of(home.path)
    by_ranges(expected, 10**9)
    by_ranges(home.path, 700)
    assert times(home.path) == times(expected)
    assert max(times(home.path).values()) <= home.clock.now


def test_damage_is_passed_over(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.record("T", 0, 0), home.record("U", 1, 30), home.record("U", 1, 31), home.record("U", 0, 59))
    report = assert_same(home.path, *SIZES)
    assert report.damaged == 4
    assert report.in_log_order == []


def test_a_repaired_log_gives_the_queues_that_the_repair_left(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.record("T", 0, 0), home.record("U", 1, 30), home.record("U", 1, 31), home.record("U", 0, 59))
    home.log_files()[2].unlink()
    home.repair()
    assert_same(home.path, *SIZES)


def test_a_torn_end_gets_no_units(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.records[max(home.records)])
    home.mark_crashed()
    assert_same(home.path, *SIZES)


def test_a_topic_that_was_deleted_does_not_come_back(home: DamagedHome) -> None:
    home.fill()
    with home.open_small() as store:
        assert store.delete_topic("U")
        assert store.put(Message("U", b"next", queue_id=1)).queue_offset == 0
    assert assert_same(home.path, *SIZES).in_log_order == []


@pytest.mark.parametrize("has_queues", [True, False])
def test_a_queue_that_restarts_is_built_in_log_order(home: DamagedHome, has_queues: bool) -> None:
    """As RocketMQ leaves it, which does not note a topic's deletion."""
    home.fill()
    with home.open_small() as store:
        assert store.delete_topic("U")
        for _ in range(5):
            assert store.put(Message("U", b"next", queue_id=1)).ok
    (home.path / "penstock" / "deleted_topics.json").unlink()
    if not has_queues:
        shutil.rmtree(home.path / "consumequeue")
    assert assert_same(home.path, *SIZES).in_log_order == ["U queue 1"]


def test_one_topic_or_one_queue_leaves_the_rest_alone(home: DamagedHome) -> None:
    home.fill()
    for path in (home.path / "consumequeue").rglob("0" * 20):
        home.flip(path, 59)
    broken = derived(home.path)
    assert_same(home.path, 700, topic="U")
    assert_same(home.path, 700, topic="U", queue_id=1)
    assert [each.what for each in by_ranges(home.path, 700, topic="U", queue_id=1).rebuilt] == ["U queue 1"]
    once = derived(home.path)
    changed = {name for name, data in once[0].items() if broken[0][name] != data}
    assert changed == {f"consumequeue/U/1/{0:020d}"}
    assert once[1] == broken[1]


def test_old_queues_without_records_go(home: DamagedHome) -> None:
    home.fill()
    folder = home.path / "consumequeue" / "stray" / "0"
    shutil.copytree(home.path / "consumequeue" / "T" / "0", folder)
    report = assert_same(home.path, 700)
    assert "stray queue 0" in [each.what for each in report.rebuilt]


def test_no_log_and_an_empty_one(home: DamagedHome) -> None:
    home.fill()
    shutil.rmtree(home.path / "commitlog")
    assert_same(home.path, 700)
    home.path.rename(home.path.with_name("other"))
    with home.open_small():
        pass
    assert_same(home.path, 700)


def test_records_in_a_filler_stay_hidden(home: DamagedHome) -> None:
    """RocketMQ leaves truncated records in its fillers."""
    home.fill()
    record = next(each for each in home.records.values() if 1000 < each.physical_offset % 4096 < 2000)
    rest = 4096 - record.physical_offset % 4096
    home.write_log(record.physical_offset, rest.to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    assert_same(home.path, *SIZES)


def test_a_log_that_lacks_a_size_is_left_to_repair(home: DamagedHome) -> None:
    home.fill()
    path = home.log_files()[1]
    path.write_bytes(path.read_bytes()[:100])
    before = home.listing()
    with pytest.raises(BadStore):
        by_ranges(home.path, 700)
    assert home.listing() == before


def test_a_store_in_use_is_only_built_into_another_folder(home: DamagedHome, tmp_path: Path) -> None:
    home.fill()
    with home.open_small() as store:
        assert store.put(Message("T", b"more", keys=("k",))).ok
        store.catch_up()
        with pytest.raises(StoreInUse, match="--into DIR"):
            by_ranges(home.path, 700)
        report = by_ranges(home.path, 700, into=tmp_path / "new")
        assert report.into == str(tmp_path / "new")
    assert derived(tmp_path / "new") == derived(home.path)
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["consumequeue", "index"]


def test_only_a_folder_without_queues_is_built_into(home: DamagedHome, tmp_path: Path) -> None:
    home.fill()
    by_ranges(home.path, 700, into=tmp_path / "new")
    with pytest.raises(BadSettings, match="already"):
        by_ranges(home.path, 700, into=tmp_path / "new")
    with pytest.raises(BadSettings, match="the store itself"):
        by_ranges(home.path, 700, into=home.path / "new")


def test_a_dry_run_says_the_same_and_changes_nothing(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.record("U", 1, 30))
    with home.open_small() as store:
        assert store.delete_topic("T")
        assert store.put_many([Message("T", b"next")] * 2).ok
    (home.path / "penstock" / "deleted_topics.json").unlink()
    before = home.listing()
    said = by_ranges(home.path, 700, dry_run=True)
    assert home.listing() == before
    done = by_ranges(home.path, 700)
    assert [(each.what, each.units) for each in said.rebuilt] == [(each.what, each.units) for each in done.rebuilt]
    assert said.in_log_order == done.in_log_order == ["T queue 0"]


def test_if_ranges_do_not_fit_together_the_log_is_cut_into_files(home: DamagedHome) -> None:
    """A message may hold a record with the very offset at which it lies."""
    home.fill()
    expected = derived(home.path)
    attempts = []

    def garbled(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        notes = run_serially(work, pieces)
        if pieces and isinstance(pieces[0], RebuildRange):
            attempts.append(len(pieces))
            note = json.loads(notes[1])
            note["survey"]["started"] += 1
            notes[1] = json.dumps(note).encode()
        return notes

    report = by_ranges(home.path, 700, run=garbled)
    assert report.ranges == attempts[1] == len(home.log_files()) < attempts[0]
    assert report.in_log_order == []
    assert derived(home.path) == expected
    assert home.errors() == []


def test_the_index_alone_is_built_by_ranges_and_resumed(home: DamagedHome) -> None:
    home.fill()
    expected = derived(home.path)
    for path in home.index_files():
        path.write_bytes(b"\xff" * path.stat().st_size)
    report = by_ranges(home.path, 700, index_only=True)
    assert [each.what for each in report.rebuilt] == ["index"]
    assert report.ranges > 10
    assert derived(home.path) == expected
