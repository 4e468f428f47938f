"""Damage in the middle of the log is remembered, warned of at each start and passed over, until it is repaired."""

from __future__ import annotations

import json
import shutil

import pytest
from support.stores import StoreHome

from penstock.format.record import Record
from penstock.store import Message
from penstock.store.damage_and_quarantine import DamagedRange, merged, merged_by_file, read_damage, write_damage
from penstock.store.files.file_io import Files

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}


def damage(home: StoreHome, record: Record) -> bytes:
    """Breaks a record's body; returns the byte that was there."""
    path, position = home.log_files()[record.physical_offset // 4096], record.physical_offset % 4096 + 90
    before = path.read_bytes()[position : position + 1]
    home.flip(path, position)
    return before


def restore(home: StoreHome, record: Record, byte: bytes) -> None:
    home.write(home.log_files()[record.physical_offset // 4096], record.physical_offset % 4096 + 90, byte)


def range_of(record: Record, reason: str = "BAD_CRC") -> DamagedRange:
    return DamagedRange(record.physical_offset, record.size, reason)


@pytest.fixture
def records(home: StoreHome) -> list[Record]:
    """A store of several log files, closed."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 200)
        found = home.read_queue(store, "T")
        assert len(store.log.queue.files) > 5
    return found


def known(home: StoreHome) -> list[DamagedRange]:
    return read_damage(Files(), home.path / "penstock" / "damaged.json")


# -- remembering ---------------------------------------------------------------------------------------------------


def test_damage_is_remembered_and_warned_of_at_each_start_until_it_is_repaired(
    home: StoreHome, records: list[Record]
) -> None:
    """After a clean exit only the last files are walked: an old range is known from the file alone."""
    bad = records[20]
    byte = damage(home, bad)
    (home.path / "checkpoint").unlink()
    (home.path / "penstock" / "dispatched.json").unlink()
    home.mark_crashed()
    for clean in (False, True, True):
        with home.open(**SMALL) as store:
            assert store.report.clean_exit is clean
            assert (store.report.walked_from > bad.physical_offset) is clean
            assert store.report.damage == known(home) == [range_of(bad)]
            assert home.read_queue(store, "T") == records[:20] + records[21:]
            assert store.max_offset("T", 0) == 200
        (warning,) = [note for note in store.report.notes if "no valid record" in note]
        assert f"{bad.size} bytes at {bad.physical_offset}" in warning
        assert "RocketMQ would truncate the log here" in warning
        assert f"`penstock store repair {home.path}`" in warning
    restore(home, bad, byte)
    with home.open(**SMALL) as store:
        assert (store.report.damage, store.report.repaired, store.report.notes) == ([], [range_of(bad)], [])
        assert home.read_queue(store, "T") == records
    assert known(home) == []


def test_what_a_walk_finds_is_added_to_what_is_known(home: StoreHome, records: list[Record]) -> None:
    old, new = records[5], records[-3]
    damage(home, old)
    write_damage(Files(), home.path / "penstock" / "damaged.json", [range_of(old)])
    damage(home, new)
    home.open(**SMALL).close()
    assert known(home) == [range_of(old), range_of(new)]


def test_a_range_of_which_a_part_is_valid_again_gets_smaller(home: StoreHome, records: list[Record]) -> None:
    first, second = records[20], records[21]
    assert second.physical_offset == first.physical_offset + first.size
    damage(home, second)
    both = DamagedRange(first.physical_offset, first.size + second.size, "BAD_MAGIC")
    write_damage(Files(), home.path / "penstock" / "damaged.json", [both])
    home.open(**SMALL).close()
    assert known(home) == [range_of(second, "BAD_MAGIC")]


def test_ranges_that_were_deleted_with_their_files_are_forgotten(home: StoreHome, records: list[Record]) -> None:
    bad = records[5]
    write_damage(Files(), home.path / "penstock" / "damaged.json", [range_of(bad)])
    home.log_files()[0].unlink()
    store = home.open(**SMALL)
    assert (store.report.damage, store.report.repaired) == ([], [])
    assert known(home) == []


def test_a_file_of_known_damage_that_is_garbage_is_kept_aside_and_the_whole_log_is_walked(
    home: StoreHome, records: list[Record]
) -> None:
    bad = records[5]
    damage(home, bad)
    path = home.path / "penstock" / "damaged.json"
    for garbage in (bytes(100), b"{", b'{"crc32": 1, "content": {"ranges": []}}', b"\xff" * 20):
        path.write_bytes(garbage)
        with home.open(**SMALL) as store:
            assert store.report.clean_exit
            assert store.report.walked_from == 0
            assert store.report.damage == known(home) == [range_of(bad)]
            assert any(str(path) in note for note in store.report.notes)
    assert sorted(kept.read_bytes() for kept in home.kept())[0] == bytes(100)
    assert len(home.kept()) == 4


def test_a_flipped_digit_in_the_file_of_known_damage_is_noticed(home: StoreHome, records: list[Record]) -> None:
    path = home.path / "penstock" / "damaged.json"
    write_damage(Files(), path, [range_of(records[5])])
    document = json.loads(path.read_bytes())
    document["content"]["ranges"][0]["physical_offset"] += 8
    path.write_text(json.dumps(document))
    with home.open(**SMALL) as store:
        assert store.report.damage == []
        assert home.read_queue(store, "T") == records


def test_damage_that_only_dispatch_meets_is_noted_too(home: StoreHome, records: list[Record]) -> None:
    """After a clean exit the first files are not walked; but queues that are lost are built from all of the log."""
    bad = records[20]
    home.write(home.log_files()[bad.physical_offset // 4096], bad.physical_offset % 4096 + 4, b"\1\2\3\4")
    shutil.rmtree(home.path / "consumequeue")
    for _ in range(2):
        with home.open(**SMALL) as store:
            assert store.report.walked_from > bad.physical_offset
            assert store.report.damage == known(home) == [range_of(bad, "BAD_MAGIC")]
            assert any("RocketMQ would truncate the log here" in note for note in store.report.notes)
            assert home.read_queue(store, "T") == records[:20] + records[21:]


# -- passing over --------------------------------------------------------------------------------------------------


def test_dispatch_goes_on_exactly_behind_known_damage(home: StoreHome, records: list[Record]) -> None:
    """The damaged bytes look like a record: only the noted range shows that they are not one."""
    bad, after = records[20], records[21]
    path, position = home.log_files()[bad.physical_offset // 4096], bad.physical_offset % 4096
    home.write(path, position + 4, b"\0\0\0\0")
    for folder in ("consumequeue", "index"):
        shutil.rmtree(home.path / folder)
    home.mark_crashed()
    store = home.open(**SMALL)
    assert home.read_queue(store, "T") == records[:20] + records[21:]
    assert store.get("T", 0, 20).messages[0].physical_offset == after.physical_offset
    assert store.dispatcher.skipped_bytes == store.figures().dispatch_skipped_bytes == bad.size
    assert store.query("T", "k20") == []
    assert [record.body for record in store.query("T", "k21")] == [b"0021"]


def test_a_get_passes_over_exactly_the_units_inside_a_damaged_range(home: StoreHome, records: list[Record]) -> None:
    """RocketMQ would pass over the rest of the log file, too (rocketmq#2141)."""
    for number in (20, 21, 23):
        damage(home, records[number])
    home.mark_crashed()
    store = home.open(**SMALL)
    page = store.get("T", 0, 20)
    assert page.damaged == (20, 21, 23)
    assert [message.queue_offset for message in page.messages][:3] == [22, 24, 25]


def test_the_numbers_of_messages_that_are_damaged_are_not_given_again(home: StoreHome) -> None:
    """A queue's last message is damaged and its unit lost: a consumer that has read it is past its number."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 10)
        home.put_numbered(store, 10, topic="U")
        records = home.read_queue(store, "T")
    damage(home, records[-1])
    shutil.rmtree(home.path / "consumequeue")
    with home.open(**SMALL) as store:
        assert store.max_offset("T", 0) == 10
        assert home.read_queue(store, "T") == records[:-1]
        assert store.put(Message("T", b"next")).queue_offset == 10


# -- views ---------------------------------------------------------------------------------------------------------


def test_a_view_knows_the_damage_and_writes_nothing(home: StoreHome, records: list[Record]) -> None:
    damage(home, records[5])
    write_damage(Files(), home.path / "penstock" / "damaged.json", [range_of(records[5])])
    damage(home, records[-3])
    before = home.listing()
    with home.open(read_only=True, **SMALL) as view:
        assert view.report.damage == [range_of(records[5]), range_of(records[-3])]
        assert len(home.read_queue(view, "T")) == 198
    assert home.listing() == before


def test_a_view_of_a_store_in_use_knows_the_damage_too(home: StoreHome, records: list[Record]) -> None:
    damage(home, records[5])
    write_damage(Files(), home.path / "penstock" / "damaged.json", [range_of(records[5])])
    with home.open(**SMALL) as owner:
        home.put_numbered(owner, 5)
        with home.open(read_only=True, **SMALL) as view:
            assert view.report.damage == [range_of(records[5])]
            assert len(view.report.notes) == 1
            assert view.max_offset("T", 0) == 205


# -- ranges --------------------------------------------------------------------------------------------------------


def test_ranges_that_touch_become_one_and_files_divide_them() -> None:
    some = [DamagedRange(*each) for each in ((100, 50, "b"), (0, 100, "a"), (120, 10, "c"), (300, 900, "d"))]
    assert merged(some) == [DamagedRange(0, 150, "a"), DamagedRange(300, 900, "d")]
    assert merged_by_file([*some, DamagedRange(500, 500, "e")], 500) == [
        DamagedRange(0, 150, "a"),
        DamagedRange(300, 200, "d"),
        DamagedRange(500, 500, "d"),
        DamagedRange(1000, 200, "d"),
    ]
