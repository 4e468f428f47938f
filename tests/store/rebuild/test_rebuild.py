"""Queues and index rebuilt from the log are what dispatch built, to the byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.damage import DamagedHome
from support.disks import CountedFiles, UnsyncedFiles

from penstock.errors import BadStore, StoreInUse
from penstock.store import Message


def derived(home: DamagedHome) -> tuple[dict[str, bytes], list[bytes]]:
    """The queue files by name, the index files without."""
    queues = {name: data for name, data in home.listing().items() if name.startswith("consumequeue")}
    return queues, [path.read_bytes() for path in home.index_files()]


def put_all_kinds(home: DamagedHome) -> None:
    home.fill()
    with home.open_small() as store:
        for number in range(20):
            home.clock.now += 1500
            kind = (0x4, 0xC, 0x8, 0)[number % 4]
            assert store.put(Message("kinds", b"%d" % number, keys=(f"a{number}", "b"), sys_flag=kind)).ok
            assert store.put(Message("late", b"%d" % number, tags="x", delay_level=1 + number % 3)).ok
        assert store.put_many([Message("batch", b"%d" % number, keys=("c",)) for number in range(10)]).ok


def test_everything_comes_out_as_dispatch_built_it(home: DamagedHome) -> None:
    put_all_kinds(home)
    before = derived(home)
    report = home.rebuild()
    assert derived(home) == before
    assert [each.what for each in report.rebuilt][-1] == "index"
    assert len(report.rebuilt) == len({name.rpartition("/")[0] for name in before[0]}) + 1
    assert all((home.path / each.kept).is_dir() for each in report.rebuilt)
    assert home.errors() == []


def test_everything_comes_out_again_when_nothing_was_left(home: DamagedHome) -> None:
    put_all_kinds(home)
    before = derived(home)
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")
    home.rebuild()
    assert derived(home) == before


def test_one_topic_or_one_queue_leaves_the_others_alone(home: DamagedHome) -> None:
    home.fill()
    for path in (home.path / "consumequeue").rglob("0" * 20):
        home.flip(path, 59)  # a tags code, which no start looks at
    broken = derived(home)
    assert [each.what for each in home.rebuild(topic="U", queue_id=1).rebuilt] == ["U queue 1"]
    once = derived(home)
    assert {name for name, data in once[0].items() if broken[0][name] != data} == {f"consumequeue/U/1/{0:020d}"}
    assert [each.what for each in home.rebuild(topic="U").rebuilt] == ["U queue 0", "U queue 1"]
    assert once[1] == broken[1]
    assert [each.what for each in home.rebuild(queue_id=0).rebuilt] == ["T queue 0", "U queue 0"]
    home.assert_whole()


def test_the_index_alone(home: DamagedHome) -> None:
    home.fill()
    before = derived(home)
    for path in home.index_files():
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert [each.what for each in home.rebuild(index_only=True).rebuilt] == ["index"]
    assert derived(home) == before
    home.assert_whole()


def test_a_queue_after_retention_begins_where_its_records_do(home: DamagedHome) -> None:
    home.fill()
    home.log_files()[0].unlink()
    home.rebuild()
    with home.open_small() as store:
        first = store.min_offset("U", 1)
        assert 0 < first < 20
        assert [each.queue_offset for each in home.read_queue(store, "U", 1)] == list(range(first, 60))
    assert home.errors() == []


def test_a_repaired_log_gives_the_queues_that_the_repair_left(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.record("T", 0, 0), home.record("U", 1, 30), home.record("U", 1, 31), home.record("U", 0, 59))
    home.log_files()[2].unlink()
    home.repair()
    before = derived(home)
    home.rebuild()
    assert derived(home) == before


def test_damage_that_is_not_repaired_stays_passed_over(home: DamagedHome) -> None:
    home.fill()
    broken = home.record("U", 0, 30), home.record("U", 0, 59)
    home.damage(*broken)
    home.rebuild()
    with home.open_small() as store:
        served = [each.queue_offset for each in home.read_queue(store, "U", 0)]
        assert served == [number for number in range(60) if number not in (30, 59)]
        assert store.put(Message("U", b"next")).queue_offset == 60


def test_a_topic_that_was_deleted_does_not_come_back(home: DamagedHome) -> None:
    home.fill()
    with home.open_small() as store:
        assert store.delete_topic("U")
        assert store.put(Message("U", b"next", queue_id=1)).queue_offset == 0
    home.rebuild()
    with home.open_small() as store:
        assert home.bodies(store, "U", 1) == [b"next"]
        assert store.max_offset("U", 0) == 0


def test_a_torn_end_of_the_log_gets_no_units(home: DamagedHome) -> None:
    home.fill()
    last = home.records[max(home.records)]
    home.damage(last)
    home.mark_crashed()
    home.rebuild()
    assert home.errors() == []
    with home.open_small() as store:
        assert store.max_offset(last.topic, last.queue_id) == 59


@pytest.mark.parametrize("index_only", [False, True])
def test_a_dry_run_says_the_same_and_changes_nothing(home: DamagedHome, index_only: bool) -> None:
    home.fill()
    home.write(home.queue_files("T")[0], 0, b"\xff" * 100)
    before = home.listing()
    said = home.rebuild(dry_run=True, index_only=index_only)
    assert home.listing() == before
    assert said.rebuilt == home.rebuild(index_only=index_only).rebuilt
    assert all(each.kept for each in said.rebuilt)


def test_nothing_is_rebuilt_for_an_unknown_topic(home: DamagedHome) -> None:
    home.fill()
    before = derived(home)
    assert home.rebuild(topic="nobody").rebuilt == []
    assert derived(home) == before


def test_a_log_that_lacks_a_size_is_left_to_repair(home: DamagedHome) -> None:
    home.fill()
    path = home.log_files()[1]
    path.write_bytes(path.read_bytes()[:100])
    before = home.listing()
    with pytest.raises(BadStore):
        home.rebuild()
    assert home.listing() == before


def test_a_store_in_use_is_not_touched(home: DamagedHome) -> None:
    home.fill()
    with home.open_small(), pytest.raises(StoreInUse):
        home.rebuild()


def test_all_that_was_built_is_synced_before_the_first_old_file_moves(home: DamagedHome) -> None:
    home.fill()
    files = CountedFiles()
    home.rebuild(files=files)
    before = files.calls[: files.calls.index("write swap.json.tmp")]
    made = sorted(call.removeprefix("create ") for call in before if call.startswith("create "))
    synced = sorted(call.removeprefix("sync ") for call in before if call.startswith("sync "))
    assert len(made) > 10
    assert synced == made
    assert not [call for call in before if call.startswith("rename") and "quarantine" in call]


class _TwoDisks(UnsyncedFiles):
    def partition(self, folder: Path) -> int:
        return int(folder.name == "consumequeue")


def test_queues_on_another_disk_are_refused_and_stay_where_they_are(home: DamagedHome) -> None:
    """A folder cannot be renamed to another disk, and no start could finish such a swap."""
    home.fill()
    before = derived(home)
    with pytest.raises(BadStore, match="another disk"):
        home.rebuild(files=_TwoDisks())
    assert derived(home) == before
    assert not (home.path / "penstock" / "swap.json").exists()
    home.assert_whole()
