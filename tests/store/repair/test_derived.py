"""Queues and index that differ from the log are rebuilt beside the old ones and swapped in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.damage import QUEUES, DamagedHome
from support.stores import PER_FILE, AgedStore, StoreHome

from penstock.format.queue_unit import PRE_BLANK, pack_unit
from penstock.store import Message
from penstock.store.rebuild import run_serially
from penstock.store.rebuild.plan import RebuildRange
from penstock.store.repair import repair


def units(home: DamagedHome, topic: str, queue_id: int) -> Path:
    return home.queue_files(topic, queue_id)[1]


def garbage_in_a_unit(home: DamagedHome) -> None:
    home.write(units(home, "U", 1), 100, b"\xff" * 20)


def another_records_unit(home: DamagedHome) -> None:
    other = home.record("T", 0, 25)
    home.write(units(home, "U", 1), 100, pack_unit(other.physical_offset, other.size, 0))


def another_tag(home: DamagedHome) -> None:
    home.flip(units(home, "U", 1), 119)


def zeros_in_the_middle(home: DamagedHome) -> None:
    home.write(units(home, "U", 1), 0, bytes(60))


def the_last_file_gone(home: DamagedHome) -> None:
    home.queue_files("U", 1)[-1].unlink()


def a_file_in_the_middle_gone(home: DamagedHome) -> None:
    units(home, "U", 1).unlink()


def a_short_file(home: DamagedHome) -> None:
    units(home, "U", 1).write_bytes(bytes(77))


def a_long_file(home: DamagedHome) -> None:
    path = units(home, "U", 1)
    path.write_bytes(path.read_bytes() + b"x")


def a_foreign_file(home: DamagedHome) -> None:
    (units(home, "U", 1).parent / "notes").write_text("mine")


def units_behind_its_end(home: DamagedHome) -> None:
    with home.open_small() as store:
        assert store.put(Message("U", b"one more", keys=("more",), queue_id=1)).ok
        home.remember(store)
    files = home.queue_files("U", 1)
    last = home.records[max(home.records)]
    home.write(files[-1], 20, pack_unit(last.physical_offset + last.size, 100, 7))


def others(home: DamagedHome) -> list[bytes]:
    """The files of the other queues and of the index; a start may give index files new names."""
    queues = sorted(path for path in (home.path / "consumequeue").rglob("0" * 20) if path.parts[-3:-1] != ("U", "1"))
    return [path.read_bytes() for path in (*queues, *home.index_files())]


HARMS = [
    garbage_in_a_unit,
    another_records_unit,
    another_tag,
    zeros_in_the_middle,
    the_last_file_gone,
    a_file_in_the_middle_gone,
    a_short_file,
    a_long_file,
    a_foreign_file,
    units_behind_its_end,
]


@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_one_wrong_queue_is_rebuilt_and_only_that_one(home: DamagedHome, harm: Callable[[DamagedHome], None]) -> None:
    home.fill()
    harm(home)
    wrong = {path.name: path.read_bytes() for path in home.queue_files("U", 1)}
    before = others(home)
    report = home.repair()
    assert [each.what for each in report.rebuilt] == ["U queue 1"]
    assert report.ranges == []
    kept = home.path / report.rebuilt[0].kept
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == wrong
    assert others(home) == before
    home.assert_whole()


def test_all_queues_and_the_index_are_built_when_they_are_gone(home: DamagedHome) -> None:
    home.fill()
    before = home.listing()
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")
    (home.path / "penstock" / "dispatched.json").unlink()
    report = home.repair()
    assert [each.what for each in report.rebuilt] == [*(f"{topic} queue {number}" for topic, number in QUEUES), "index"]
    assert all(each.kept == "" for each in report.rebuilt)
    after = home.listing()
    assert {k: v for k, v in after.items() if k.startswith("consumequeue")} == {
        k: v for k, v in before.items() if k.startswith("consumequeue")
    }
    home.assert_whole()


def test_a_queue_whose_records_are_all_gone_is_left_alone(home: DamagedHome) -> None:
    """Retention deletes the log first; that is not a fault."""
    home.fill(60)
    with home.open_small() as store:
        home.put_numbered(store, 100, topic="later")
    for path in home.log_files()[:6]:
        path.unlink()
    report = home.repair()
    assert report.rebuilt == []
    assert report.found_nothing
    assert home.queue_files("U", 1)


def test_a_queue_of_which_no_record_is_there_nor_was_goes_to_the_quarantine(home: DamagedHome) -> None:
    home.fill(20)
    folder = home.path / "consumequeue" / "ghost" / "0"
    folder.mkdir(parents=True)
    record = home.record("T", 0, 3)
    (folder / ("0" * 20)).write_bytes(pack_unit(record.physical_offset, record.size, 0).ljust(400, b"\0"))
    (rebuilt,) = home.repair().rebuilt
    assert rebuilt.what == "ghost queue 0"
    assert rebuilt.units == 0
    assert (home.path / rebuilt.kept).is_dir()
    assert not folder.parent.exists()
    home.assert_whole()


def test_the_first_messages_of_a_queue_keep_their_places_when_they_are_lost(home: DamagedHome) -> None:
    """Also when the queue is gone with them: the log begins at 0, so they were in it."""
    home.fill(20)
    broken = [home.record("U", 0, number) for number in range(3)]
    home.damage(*broken)
    shutil.rmtree(home.path / "consumequeue" / "U" / "0")
    report = home.repair()
    assert report.lost_messages == 3
    with home.open_small() as store:
        assert store.min_offset("U", 0) == 0
        assert [each.queue_offset for each in home.read_queue(store, "U", 0)] == list(range(3, 20))
    assert home.errors() == []


def test_a_queue_whose_messages_are_all_lost_goes_on_behind_them(home: DamagedHome) -> None:
    home.fill(20)
    broken = [home.record("U", 0, number) for number in range(20)]
    home.damage(*broken)
    assert home.repair().lost_messages == 20
    home.assert_whole(*broken)


def test_places_that_a_start_kept_for_lost_messages_stay_kept(home: DamagedHome) -> None:
    home.fill(20)
    with home.open_small() as store:
        home.put_numbered(store, 10, topic="later")
    broken = [home.record("T", 0, number) for number in (18, 19)]
    home.damage(*broken)
    shutil.rmtree(home.path / "consumequeue" / "T")
    with home.open_small() as store:
        assert store.max_offset("T", 0) == 20
    assert PRE_BLANK in home.queue_files("T")[0].read_bytes()
    (home.path / "penstock" / "dispatched.json").unlink()
    report = home.repair()
    assert report.lost_messages == 2
    home.assert_whole(*broken)


@pytest.mark.parametrize("position", [0, 24, 36, 41, 40 + 4 * 50 + 25, 40 + 4 * 50 + 20 * 39 + 3])
def test_an_index_with_a_wrong_byte_is_rebuilt(home: DamagedHome, position: int) -> None:
    home.fill()
    home.flip(home.index_files()[1], position)
    report = home.repair()
    assert [each.what for each in report.rebuilt] == ["index"]
    home.assert_whole()


def test_index_files_that_are_cut_or_foreign_go_aside_with_the_rest(home: DamagedHome) -> None:
    home.fill()
    home.index_files()[0].write_bytes(b"short")
    (home.path / "index" / "notes.txt").write_text("mine")
    (rebuilt,) = home.repair().rebuilt
    assert (home.path / rebuilt.kept / "notes.txt").read_text() == "mine"
    home.assert_whole()


def test_an_index_of_unknown_geometry_is_left_alone_and_said_so(home: DamagedHome) -> None:
    home.fill()
    (home.path / "penstock" / "dispatched.json").unlink()
    before = [path.read_bytes() for path in home.index_files()]
    home.damage(home.record("T", 0, 5))
    report = home.repair(settings=None)
    assert len(report.ranges) == 1
    assert any("maxHashSlotNum" in problem for problem in report.problems)
    assert [path.read_bytes() for path in home.index_files()] == before


def test_rebuilt_queue_files_have_the_times_of_their_messages(home: DamagedHome) -> None:
    """To search by time, RocketMQ opens the first queue file that was modified after that time."""
    home.fill()
    garbage_in_a_unit(home)
    home.repair()
    for path in home.queue_files("U", 1):
        last = home.record("U", 1, int(path.name) // 20 + 19)
        assert path.stat().st_mtime_ns // 1_000_000 == last.store_timestamp


def test_a_repaired_log_file_keeps_its_time(home: DamagedHome) -> None:
    """RocketMQ deletes log files by it."""
    home.fill()
    broken = home.record("T", 0, 3)
    home.damage(broken)
    path = home.log_file(broken.physical_offset)
    before = path.stat().st_mtime_ns // 1_000_000
    home.repair()
    assert path.stat().st_mtime_ns // 1_000_000 == before


def test_what_an_interrupted_rebuild_left_is_not_used_after_the_log_has_changed(home: DamagedHome) -> None:
    """A repair keeps the times of the log files, so that they look unchanged."""
    home.fill()
    broken = home.record("U", 1, 30)
    home.damage(broken)
    home.flip(home.index_files()[0], 41)

    def ranges_only(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        if not isinstance(pieces[0], RebuildRange):
            raise KeyboardInterrupt
        return run_serially(work, pieces)

    with pytest.raises(KeyboardInterrupt):
        home.rebuild(run=ranges_only)
    home.repair()
    home.assert_whole(broken)


def test_a_queue_whose_messages_have_expired_keeps_its_next_offset_beside_a_covered_range(tmp_path: Path) -> None:
    """Units that never had a message, at the begin of its file, are not taken for lost messages."""
    aged = AgedStore(StoreHome(tmp_path / "store"))
    for topic in "AABBB":
        aged.fill(1, topic)
    aged.age(80, files=1)
    assert len(aged.run_on_request()) == 1
    aged.store.close()
    shutil.rmtree(aged.home.path / "consumequeue")
    aged.open()
    assert (aged.store.min_offset("A", 0), aged.store.max_offset("A", 0)) == (PER_FILE, 2 * PER_FILE)
    aged.age(80, files=1)
    assert len(aged.run_on_request()) == 1
    aged.store.close()
    aged.home.flip(aged.home.log_files()[1], 200)
    settings = aged.store.settings
    for _ in range(2):
        repair(aged.home.path, settings, clock=aged.home.clock)
        aged.open()
        assert aged.numbers("A") == []
        assert aged.store.max_offset("A", 0) == 2 * PER_FILE
        assert len(aged.numbers("B")) == 3 * PER_FILE - 1
        aged.store.close()
