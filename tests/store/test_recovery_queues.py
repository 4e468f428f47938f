"""Recovery of invalid queues: little is rebuilt, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.format.queue_unit import PRE_BLANK, UNIT_SIZE, pack_unit
from penstock.store import GetStatus, Message
from penstock.store.files.file_io import FileMap

pytestmark = pytest.mark.usefixtures("kernels_name")

UNITS = 20
"""In one queue file."""
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": UNITS * UNIT_SIZE,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
Harm = Callable[[StoreHome], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreHome, dict[str, object]]:
    """Two queues of six files each, with time passing, so that a crash need not walk all of the log; closed."""
    home = StoreHome(tmp_path_factory.mktemp("model") / "store")
    with home.open(**SMALL) as store:
        for _ in range(110):
            home.clock.now += 1000
            home.put_numbered(store, 1)
            home.put_numbered(store, 1, topic="U")
        assert len(home.queue_files("T")) == 6
        return home, home.state(store)


@pytest.fixture
def before(home: StoreHome, model: tuple[StoreHome, dict[str, object]]) -> dict[str, object]:
    """The home is a copy of the model; what could be seen of that."""
    made, state = model
    made.copy_to(home.path)
    home.clock.now = made.clock.now
    return state


# -- files ---------------------------------------------------------------------------------------------------------


def shorten_the_second(home: StoreHome) -> None:
    path = home.queue_files("T")[1]
    path.write_bytes(path.read_bytes()[:130])


def lengthen_the_last(home: StoreHome) -> None:
    path = home.queue_files("T")[-1]
    path.write_bytes(path.read_bytes() + b"x")


def empty_the_first(home: StoreHome) -> None:
    home.queue_files("T")[0].write_bytes(b"")


def remove_the_first(home: StoreHome) -> None:
    home.queue_files("T")[0].unlink()


def remove_the_third(home: StoreHome) -> None:
    home.queue_files("T")[2].unlink()


def remove_the_last(home: StoreHome) -> None:
    home.queue_files("T")[-1].unlink()


def remove_all(home: StoreHome) -> None:
    shutil.rmtree(home.path / "consumequeue" / "T")


def misname_the_second(home: StoreHome) -> None:
    path = home.queue_files("T")[1]
    path.rename(path.with_name(f"{UNITS * UNIT_SIZE + 20:020d}"))


def zero_the_second(home: StoreHome) -> None:
    home.queue_files("T")[1].write_bytes(bytes(UNITS * UNIT_SIZE))


def zero_the_last(home: StoreHome) -> None:
    home.queue_files("T")[-1].write_bytes(bytes(UNITS * UNIT_SIZE))


def garbage_in_the_last(home: StoreHome) -> None:
    home.queue_files("T")[-1].write_bytes(bytes(range(200)) * 2)


def garbage_everywhere(home: StoreHome) -> None:
    for path in home.queue_files("T"):
        path.write_bytes(b"\x7f" * UNITS * UNIT_SIZE)


def add_a_file_of_garbage(home: StoreHome) -> None:
    path = home.path / "consumequeue" / "T" / "0" / f"{6 * UNITS * UNIT_SIZE:020d}"
    path.write_bytes(b"\x01" * UNITS * UNIT_SIZE)


def swap_two_queues(home: StoreHome) -> None:
    folder = home.path / "consumequeue"
    (folder / "T").rename(home.path / "other")
    (folder / "U").rename(folder / "T")
    (home.path / "other").rename(folder / "U")


HARMS: list[Harm] = [
    shorten_the_second,
    lengthen_the_last,
    empty_the_first,
    remove_the_third,
    remove_the_last,
    remove_all,
    misname_the_second,
    zero_the_second,
    zero_the_last,
    garbage_in_the_last,
    garbage_everywhere,
    add_a_file_of_garbage,
    swap_two_queues,
]


@CLEAN_OR_NOT
@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_an_invalid_queue_is_rebuilt(home: StoreHome, before: dict[str, object], harm: Harm, crashed: bool) -> None:
    """rocketmq#7355: "logic queue order maybe wrong", and the cure was to delete all queues."""
    whole = {path: path.read_bytes() for path in home.queue_files("T")}
    harm(home)
    left = {} if harm is remove_all else {path: path.read_bytes() for path in home.queue_files("T")}
    harmed = [content for path, content in left.items() if whole.get(path) != content and any(content)]
    if crashed:
        home.mark_crashed()
    with home.open(**SMALL) as store:
        assert home.state(store) == before
    assert {path: path.read_bytes() for path in home.queue_files("T")} == whole, "to the byte"
    kept = [path.read_bytes().rstrip(b"\0") for path in home.kept()]
    assert all(any(some and content.rstrip(b"\0").endswith(some) for some in kept) for content in harmed), "kept aside"
    with home.open(**SMALL) as store:
        assert (store.report.notes, home.state(store)) == ([], before), "once is enough"


def test_other_queues_are_left_alone(home: StoreHome, before: dict[str, object]) -> None:
    facts = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.queue_files("U")}
    shorten_the_second(home)
    home.open(**SMALL).close()
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.queue_files("U")} == facts
    assert all("/U/" not in str(path) for path in home.kept())


def test_the_files_before_the_bad_one_are_kept(home: StoreHome, before: dict[str, object]) -> None:
    first = home.queue_files("T")[0].stat().st_ino
    remove_the_third(home)
    with home.open(**SMALL) as store:
        assert store.report.units_added == 110 - 2 * UNITS
    assert home.queue_files("T")[0].stat().st_ino == first
    assert len(home.kept()) == 3


def test_only_the_log_behind_the_cut_is_dispatched_again(home: StoreHome, before: dict[str, object]) -> None:
    remove_the_last(home)
    with home.open(**SMALL) as store:
        last = store.get("T", 0, 99, 1).messages[0]
        assert store.report.dispatched_from == last.physical_offset + last.size


def test_a_last_file_without_content_does_not_stop_the_start(home: StoreHome, before: dict[str, object]) -> None:
    """rocketmq#9728, #10108: an empty last queue file ended the start with an IllegalArgumentException."""
    path = home.path / "consumequeue" / "T" / "0" / f"{6 * UNITS * UNIT_SIZE:020d}"
    for content in (b"", bytes(100), bytes(UNITS * UNIT_SIZE)):
        path.write_bytes(content)
        with home.open(**SMALL) as store:
            assert (home.state(store), store.report.notes) == (before, [])
        assert not path.exists()
    assert home.kept() == []


# -- units ---------------------------------------------------------------------------------------------------------


def test_units_of_another_queue_at_the_end_are_noticed(home: StoreHome, before: dict[str, object]) -> None:
    """alibaba/rocketmq#358, and stale bytes that Java leaves behind a cut: units of records that are others'."""
    with home.open(**SMALL) as store:
        theirs = [store.queues.find("U", 0).unit(number) for number in range(100, 110)]  # type: ignore[union-attr]
    last = home.queue_files("T")[-1]
    home.write(last, 10 * UNIT_SIZE, b"".join(pack_unit(*unit) for unit in theirs[-1:]))
    with home.open(**SMALL) as store:
        assert home.state(store) == before
        assert store.max_offset("T", 0) == 110
    assert not any(last.read_bytes()[10 * UNIT_SIZE :])


@CLEAN_OR_NOT
@pytest.mark.parametrize("number", [0, 1, 50, 95, 108, 109])
@pytest.mark.parametrize(
    "unit",
    [(2**40, 100, 0), (-5, 100, 0), (0, 100, 0), (104, 0, 0), (104, -1, 0), (2**63 - 1, 2**31 - 2, -1)],
    ids=["far_ahead", "negative", "of_the_first_record", "no_size", "negative_size", "largest"],
)
def test_one_unit_of_nonsense_costs_at_most_that_message(
    home: StoreHome, before: dict[str, object], number: int, unit: tuple[int, int, int], crashed: bool
) -> None:
    """Where a start does not check each unit, a get detects the bad one; the others are served."""
    path = home.queue_files("T")[number // UNITS]
    home.write(path, number % UNITS * UNIT_SIZE, pack_unit(*unit))
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    found = [record.queue_offset for record in home.read_queue(store, "T")]
    assert set(range(110)) - set(found) <= {number}
    assert found == sorted(found)
    assert store.max_offset("T", 0) == 110
    if number >= 3 * UNITS:
        assert len(found) == 110, "of the last three files each unit is checked"
    assert store.put(Message("T", b"next")).queue_offset == 110


@CLEAN_OR_NOT
def test_a_unit_that_points_too_far_ahead_hides_none_behind_it(
    home: StoreHome, before: dict[str, object], crashed: bool
) -> None:
    """The next unit is nonsense, so the queue is rebuilt from here on: from a place in the log that is certain."""
    with home.open(**SMALL) as store:
        ahead, size, _ = store.queues.find("T", 0).unit(66)  # type: ignore[union-attr]
    path = home.queue_files("T")[3]
    home.write(path, UNIT_SIZE, pack_unit(ahead + 1, size, 0) + pack_unit(2**59, size, 0))
    if crashed:
        home.mark_crashed()
    with home.open(**SMALL) as store:
        assert home.state(store) == before


def test_places_that_are_kept_for_no_record_are_in_order(home: StoreHome) -> None:
    """A log whose first file is gone, and queues built from it: units that point to no record come first."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 100)
    home.log_files()[0].unlink()
    shutil.rmtree(home.path / "consumequeue")
    with home.open(**SMALL) as store:
        lowest = store.min_offset("T", 0)
        before = home.state(store)
    assert home.queue_files("T")[0].read_bytes()[:UNIT_SIZE] in (PRE_BLANK, pack_unit(0, 0, 0))
    with home.open(**SMALL) as store:
        assert (home.state(store), store.report.notes) == (before, [])
        assert store.min_offset("T", 0) == lowest > 0


# -- removed by hand -----------------------------------------------------------------------------------------------


@CLEAN_OR_NOT
@pytest.mark.parametrize("old", [True, False], ids=["long_ago", "lately"])
def test_a_queue_folder_removed_by_hand_is_noticed(home: StoreHome, crashed: bool, old: bool) -> None:
    """rocketmq#1434, #405: records before the file at which recovery began were never dispatched again."""
    with home.open(**SMALL) as store:
        for number in range(200):
            home.clock.now += 1000
            home.put_numbered(store, 1, topic="old" if (number < 30) is old else "T")
        before = home.state(store)
    with home.open(**SMALL) as store:
        home.clock.now += 60_000
        home.put_numbered(store, 30)
        before = home.state(store)
    shutil.rmtree(home.path / "consumequeue" / "old")
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert home.state(store) == before
    if crashed and old:
        assert store.report.walked_from > 0


def test_all_queues_removed_by_hand_are_built_again(home: StoreHome, before: dict[str, object]) -> None:
    """rocketmq#8032: a start wiped `consumequeue`."""
    for crashed in (False, True):
        shutil.rmtree(home.path / "consumequeue")
        if crashed:
            home.mark_crashed()
        with home.open(**SMALL) as store:
            assert home.state(store) == before


def test_a_topic_that_was_deleted_does_not_come_back(home: StoreHome, before: dict[str, object]) -> None:
    """rocketmq#1852: its records are still in the log, and the note of the last close names its queue."""
    note = (home.path / "penstock" / "dispatched.json").read_bytes()
    with home.open(**SMALL) as store:
        assert store.delete_topic("U") == 1
    (home.path / "penstock" / "dispatched.json").write_bytes(note)
    for crashed in (False, True):
        if crashed:
            home.mark_crashed()
        with home.open(**SMALL) as store:
            assert store.topics() == ["T"]


@CLEAN_OR_NOT
@pytest.mark.parametrize("lost", [True, False], ids=["folder_lost", "folder_there"])
def test_a_queue_whose_data_is_all_gone_goes_on_with_its_numbers(home: StoreHome, crashed: bool, lost: bool) -> None:
    """Its minimum is its maximum, and the next message gets the next number: a consumer is past the others."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 30, topic="old")
        home.put_numbered(store, 200)
        last = home.read_queue(store, "old")[-1].physical_offset
    for path in home.log_files():
        if int(path.name) <= last:
            path.unlink()
    if lost:
        shutil.rmtree(home.path / "consumequeue" / "old")
    if crashed:
        home.mark_crashed()
    for _ in range(2):
        with home.open(**SMALL) as store:
            assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (30, 30)
            assert store.get("old", 0, 30).status is GetStatus.OFFSET_OVERFLOW_ONE
            assert store.get("old", 0, 3).next_begin_offset == 30
    store = home.open(**SMALL)
    assert store.put(Message("old", b"next")).queue_offset == 30
    assert home.bodies(store, "old") == [b"next"]


# -- what is refused -----------------------------------------------------------------------------------------------


def test_files_of_one_other_size_mean_that_the_setting_is_wrong(home: StoreHome, before: dict[str, object]) -> None:
    listing = home.listing()
    for note in (True, False):
        if not note:
            (home.path / "penstock" / "dispatched.json").unlink()
            listing = home.listing()
        with pytest.raises(BadStore, match=r"expected 800 bytes, found 400 bytes"):
            home.open(**{**SMALL, "mapped_file_size_consume_queue": 800})
        assert home.listing() == listing


def test_a_single_file_of_another_size_is_damage_if_a_note_says_so(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 5)
        before = home.state(store)
    path = home.queue_files("T")[0]
    path.write_bytes(path.read_bytes()[:100])
    with home.open(**SMALL) as store:
        assert home.state(store) == before
    (kept,) = home.kept()
    assert kept.stat().st_size == 100


@pytest.mark.parametrize("name", ["notes.txt", "T/0/notes.txt", "T/7"])
def test_a_foreign_file_among_the_queues_is_refused(home: StoreHome, before: dict[str, object], name: str) -> None:
    path: Path = home.path / "consumequeue" / name
    path.write_text("mine")
    listing = home.listing()
    with pytest.raises(BadStore, match="foreign") as refused:
        home.open(**SMALL)
    assert str(path) in str(refused.value)
    assert home.listing() == listing


def test_a_delayed_message_whose_topic_is_damaged_stays_out_of_other_topics(home: StoreHome) -> None:
    """Its unit has the time of delivery where others have a tag's hash: that the two differ does not make it torn."""
    store = home.open()
    store.put(Message("T", b"first"))
    place = store.put(Message("T", b"later", delay_level=3)).physical_offset
    store.catch_up()
    copy = home.copy_to(home.path.with_name("killed"))
    path = copy.log_files()[0]
    copy.flip(path, path.read_bytes().index(b"SCHEDULE_TOPIC_XXXX", place) + len("SCHEDULE_T"))
    with copy.open() as damaged:
        assert damaged.topics() == ["SCHEDULE_TOPIC_XXXX", "T"]
        assert copy.bodies(damaged, "SCHEDULE_TOPIC_XXXX", 2) == []
        assert copy.bodies(damaged, "T") == [b"first"]


@pytest.mark.usefixtures("before")
def test_what_a_start_has_built_is_on_its_way_to_the_disk_before_the_start_waits_for_it(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(home.path / folder)
    events: list[tuple[str, str]] = []
    sync, start_writing = FileMap.sync, FileMap.start_writing

    def noted_sync(file: FileMap, *range_: int) -> None:
        events.append(("sync", file.path.relative_to(home.path).parts[0]))
        sync(file, *range_)

    def noted_start(file: FileMap) -> None:
        events.append(("start", file.path.relative_to(home.path).parts[0]))
        start_writing(file)

    monkeypatch.setattr(FileMap, "sync", noted_sync)
    monkeypatch.setattr(FileMap, "start_writing", noted_start)
    with home.open(**SMALL) as store:
        assert store.report.units_added == 220
        for folder in ("consumequeue", "index"):
            assert events.index(("start", folder)) < events.index(("sync", folder))
