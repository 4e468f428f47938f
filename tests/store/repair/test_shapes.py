"""Log files that are missing, too short or too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.damage import SMALL_LOG_SIZE, SMALL_SETTINGS, SMALL_UNITS_PER_FILE, DamagedHome

from penstock.errors import BadStore
from penstock.format.record import Record
from penstock.store import Settings
from penstock.store.repair import LostMessages


def within(home: DamagedHome, begin: int, end: int) -> list[Record]:
    """The messages of which a part lies between two positions."""
    return [
        each
        for each in home.records.values()
        if begin < each.physical_offset + each.size and each.physical_offset < end
    ]


def test_a_file_that_is_gone_is_made_and_everything_behind_it_is_served(home: DamagedHome) -> None:
    home.fill()
    home.log_files()[2].unlink()
    lost = within(home, 2 * SMALL_LOG_SIZE, 3 * SMALL_LOG_SIZE)
    report = home.repair()
    (found,) = report.ranges
    assert (found.physical_offset, found.size, found.reason) == (2 * SMALL_LOG_SIZE, SMALL_LOG_SIZE, "MISSING")
    assert found.saved == []
    assert report.lost_messages == len(lost)
    home.assert_walkable()
    home.assert_whole(*lost)


def test_several_files_that_are_gone(home: DamagedHome) -> None:
    home.fill(100)
    files = home.log_files()
    for number in (1, 2, 4):
        files[number].unlink()
    lost = within(home, SMALL_LOG_SIZE, 3 * SMALL_LOG_SIZE) + within(home, 4 * SMALL_LOG_SIZE, 5 * SMALL_LOG_SIZE)
    report = home.repair()
    assert [each.reason for each in report.ranges] == ["MISSING"] * 3
    home.assert_walkable()
    home.assert_whole(*lost)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("size", [0, 1, 1000, SMALL_LOG_SIZE - 1])
def test_a_short_file_is_lengthened_and_what_it_lost_is_covered(home: DamagedHome, number: int, size: int) -> None:
    home.fill()
    path = home.log_files()[number]
    path.write_bytes(path.read_bytes()[:size])
    lost = within(home, number * SMALL_LOG_SIZE + size, (number + 1) * SMALL_LOG_SIZE)
    report = home.repair()
    assert path.stat().st_size == SMALL_LOG_SIZE
    assert [f"had {size} bytes" in each.what for each in report.changes] == [True]
    assert sum(each.size for each in report.ranges) >= SMALL_LOG_SIZE - size or size > SMALL_LOG_SIZE - 100
    home.assert_walkable()
    home.assert_whole(*lost)


def test_a_short_last_file_is_lengthened_and_its_torn_end_is_cut(home: DamagedHome) -> None:
    home.fill()
    path = home.log_files()[-1]
    last = home.records[max(home.records)]
    path.write_bytes(path.read_bytes()[: last.physical_offset % SMALL_LOG_SIZE + 20])
    report = home.repair()
    assert report.ranges == []
    assert "truncated" in " ".join(report.start)
    assert path.stat().st_size == SMALL_LOG_SIZE
    assert home.errors() == []
    with home.open_small() as store:
        served = home.read_queue(store, last.topic, last.queue_id)
        assert served[-1].queue_offset == last.queue_offset - 1


def test_a_short_file_alone_has_the_size_that_the_store_noted(home: DamagedHome) -> None:
    home.fill(5)
    (path,) = home.log_files()
    used = max(home.records) + home.records[max(home.records)].size
    path.write_bytes(path.read_bytes()[: used + 100])
    home.repair(settings=Settings())
    assert path.stat().st_size == SMALL_LOG_SIZE
    home.assert_whole()


def test_a_short_file_alone_without_a_note_is_refused_if_its_last_record_runs_past_its_end(home: DamagedHome) -> None:
    home.fill(5)
    (path,) = home.log_files()
    path.write_bytes(path.read_bytes()[: max(home.records) + 50])
    (home.path / "penstock" / "dispatched.json").unlink()
    before = home.listing()
    with pytest.raises(BadStore, match="cut short"):
        home.repair(settings=Settings())
    assert home.listing() == before


def test_a_file_that_is_too_long_is_cut_and_the_rest_kept(home: DamagedHome) -> None:
    home.fill()
    path = home.log_files()[1]
    path.write_bytes(path.read_bytes() + b"more than there should be")
    (change,) = home.repair().changes
    assert (home.path / change.saved).read_bytes() == b"more than there should be"
    assert path.stat().st_size == SMALL_LOG_SIZE
    home.assert_whole()


def test_sizes_are_those_that_most_files_have(home: DamagedHome) -> None:
    home.fill()
    (home.path / "penstock" / "dispatched.json").unlink()
    for path, size in zip(home.log_files()[:2], (77, 400), strict=True):
        path.write_bytes(path.read_bytes()[:size])
    only_index = Settings().with_changes(max_hash_slot_num=50, max_index_num=40)
    assert len(home.repair(settings=only_index).changes) == 2
    home.assert_walkable()
    home.assert_whole(*within(home, 77, SMALL_LOG_SIZE), *within(home, SMALL_LOG_SIZE + 400, 2 * SMALL_LOG_SIZE))


@pytest.mark.parametrize(
    ("name", "words"),
    [("notes.txt", "foreign"), ("00000000000000000100", "multiple"), ("00000000000099999744", "files are missing")],
)
def test_a_file_with_an_impossible_name_is_refused_and_nothing_changes(
    home: DamagedHome, name: str, words: str
) -> None:
    home.fill()
    (home.path / "commitlog" / name).write_bytes(bytes(SMALL_LOG_SIZE))
    before = home.listing()
    with pytest.raises(BadStore, match=words) as refused:
        home.repair(settings=SMALL_SETTINGS.with_changes(mapped_file_size_commit_log=SMALL_LOG_SIZE))
    assert name in str(refused.value)
    assert home.listing() == before


def test_a_log_in_another_folder_is_repaired_there(home: DamagedHome, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "log"
    home.fill()
    elsewhere.parent.mkdir()
    (home.path / "commitlog").rename(elsewhere)
    path = sorted(elsewhere.iterdir())[1]
    path.write_bytes(path.read_bytes()[:100])
    report = home.repair(settings=SMALL_SETTINGS.with_changes(store_path_commit_log=elsewhere))
    assert [each.reason for each in report.ranges] != []
    assert path.stat().st_size == SMALL_LOG_SIZE
    assert report.problems == []
    elsewhere.rename(home.path / "commitlog")
    home.assert_whole(*within(home, SMALL_LOG_SIZE + 100, 2 * SMALL_LOG_SIZE))


def test_the_last_messages_of_a_queue_are_known_by_its_units_when_they_are_lost(home: DamagedHome) -> None:
    """No later record shows that they existed; without their units their offsets would be assigned again."""
    home.fill(20)
    with home.open_small() as store:
        for _ in range(40):
            home.put_numbered(store, 1, topic="later")
    broken = [home.record("T", 0, number) for number in (17, 18, 19)]
    home.damage(*broken)
    report = home.repair()
    lost = [lost for each in report.ranges for lost in each.lost]
    assert lost == [LostMessages("T", 0, number, number) for number in (17, 18, 19)]
    home.assert_whole(*broken)


@pytest.fixture
def under_a_filler(home: DamagedHome) -> list[Record]:
    """A log file of zeros, repaired: one record and a long filler; returns the messages that were in it.

    They are the last ones of their queues, from number 25 of topic T on.
    """
    home.fill(30, b"x" * 100)
    with home.open_small() as store:
        for _ in range(30):
            home.put_numbered(store, 1, topic="later")
    path = home.log_files()[-2]
    path.write_bytes(bytes(SMALL_LOG_SIZE))
    lost = within(home, int(path.name), int(path.name) + SMALL_LOG_SIZE)
    assert len(lost) > 12, "they take more room than the record"
    home.repair()
    return lost


def test_the_last_messages_of_a_queue_keep_their_numbers_also_where_only_a_filler_covers_them(
    home: DamagedHome, under_a_filler: list[Record]
) -> None:
    """A message inside the filler has a unit that points to the record before it."""
    (home.path / "penstock" / "dispatched.json").unlink()
    home.assert_whole(*under_a_filler)


def test_a_start_completes_the_units_that_lead_to_the_record_before_a_filler(
    home: DamagedHome, under_a_filler: list[Record]
) -> None:
    """Also if the remaining units begin after that record; the note is useless, so the whole log is dispatched."""
    assert home.record("T", 0, 27) in under_a_filler
    with home.open_small() as store:
        home.put_numbered(store, 3)
        store.catch_up()
    path = home.path / "consumequeue" / "T" / "0" / f"{SMALL_UNITS_PER_FILE * 20:020d}"
    before = path.read_bytes()
    path.write_bytes(before[: (27 - SMALL_UNITS_PER_FILE) * 20].ljust(len(before), b"\0"))
    (home.path / "penstock" / "dispatched.json").write_bytes(b"")
    with home.open_small():
        pass
    assert path.read_bytes() == before
