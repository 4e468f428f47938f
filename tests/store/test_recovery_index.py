"""Recovery of a torn index: a query finds every key, and none twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.stores import StoreHome

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry, IndexHeader
from penstock.store import Message

pytestmark = pytest.mark.usefixtures("kernels_name")

GEOMETRY = IndexGeometry(slots=50, items=300)
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "max_hash_slot_num": GEOMETRY.slots,
    "max_index_num": GEOMETRY.items,
}
KEYS = 700
"""Put in all: more than fill two files."""


def put_slowly(home: StoreHome, count: int) -> None:
    """Two messages a second, so that the checkpoint of a clean exit covers almost all of them."""
    with home.open(**SMALL) as store:
        for _ in range(count):
            home.clock.now += 500
            home.put_numbered(store, 1)


def index_items(home: StoreHome) -> int:
    counts = (IndexHeader.unpack(path.read_bytes()[:40]).index_count for path in home.index_files())
    return sum(max(count, 1) - 1 for count in counts)


def assert_every_key_is_found_once(home: StoreHome, count: int) -> None:
    for crashed in (True, False, True):
        if crashed:
            home.mark_crashed()
        with home.open(**SMALL) as store:
            found = [len(store.query("T", f"k{number}")) for number in range(count)]
            assert found == [1] * count
            assert store.query("T", "unknown") == []
        assert index_items(home) == count


@pytest.mark.parametrize("already_in", [1, 2])
def test_a_process_killed_between_two_keys_of_a_record(home: StoreHome, already_in: int) -> None:
    put_slowly(home, 3)
    with home.open(**SMALL) as store:
        store.put(Message("T", b"last", keys=("a", "b", "c")))
        store.catch_up()
    index = home.index_files()[0]
    content = bytearray(index.read_bytes())
    kernels.index_rewind(content, *GEOMETRY, 7, 4 + already_in)
    index.write_bytes(content)
    home.mark_crashed()
    store = home.open(**SMALL)
    assert [len(store.query("T", key)) for key in ("a", "b", "c", "k0", "k2")] == [1] * 5
    assert index_items(home) == 6


# -- after a power cut ---------------------------------------------------------------------------------------


def lose_items(content: bytearray, chance: random.Random) -> None:
    """Some of the new items never reached the disk."""
    begin, lost = GEOMETRY.item_position(chance.randrange(230, 285)), 20 * chance.randrange(1, 6)
    content[begin : begin + lost] = bytes(lost)


def lose_half_an_item(content: bytearray, chance: random.Random) -> None:
    """An item may lie across two pages."""
    begin = GEOMETRY.item_position(chance.randrange(230, 285))
    content[begin + 12 : begin + 20] = bytes(8)


def lose_slots(content: bytearray, chance: random.Random) -> None:
    begin = GEOMETRY.slot_position(0)
    content[begin : begin + 4 * GEOMETRY.slots] = bytes(4 * GEOMETRY.slots)


def lose_the_start_of_an_old_item(content: bytearray, chance: random.Random) -> None:
    """RocketMQ does not sync an index file before it is full, so its checkpoint says nothing of the items."""
    begin = GEOMETRY.item_position(chance.randrange(50, 150))
    content[begin : begin + 11] = bytes(11)


def lose_the_links_of_old_items(content: bytearray, chance: random.Random) -> None:
    for number in range(50, 150):
        begin = GEOMETRY.item_position(number)
        content[begin + 16 : begin + 20] = bytes(4)


LOSSES = [lose_items, lose_half_an_item, lose_slots, lose_the_start_of_an_old_item, lose_the_links_of_old_items]


@pytest.mark.parametrize("lose", LOSSES, ids=[lose.__name__ for lose in LOSSES])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_after_which_parts_of_the_index_are_missing(
    home: StoreHome, lose: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    """The header counts items that never reached the disk: pages are written back in any order."""
    print("seed", seed)
    put_slowly(home, 200)
    checkpoint = (home.path / "checkpoint").read_bytes()
    put_slowly(home, 90)
    (home.path / "checkpoint").write_bytes(checkpoint)
    index = home.index_files()[0]
    content = bytearray(index.read_bytes())
    lose(content, random.Random(seed))
    index.write_bytes(content)
    assert_every_key_is_found_once(home, 290)


def test_a_power_cut_after_which_a_whole_new_index_file_is_empty(home: StoreHome) -> None:
    put_slowly(home, 250)
    checkpoint = (home.path / "checkpoint").read_bytes()
    put_slowly(home, KEYS - 250)
    (home.path / "checkpoint").write_bytes(checkpoint)
    assert len(home.index_files()) == 3
    for path in home.index_files()[1:]:
        path.write_bytes(bytes(GEOMETRY.file_size))
    assert_every_key_is_found_once(home, KEYS)


def test_a_power_cut_after_which_only_the_header_of_a_new_file_is_there(home: StoreHome) -> None:
    put_slowly(home, 250)
    checkpoint = (home.path / "checkpoint").read_bytes()
    put_slowly(home, KEYS - 250)
    (home.path / "checkpoint").write_bytes(checkpoint)
    last = home.index_files()[-1]
    last.write_bytes(last.read_bytes()[:40].ljust(GEOMETRY.file_size, b"\0"))
    assert_every_key_is_found_once(home, KEYS)


def test_items_that_the_header_never_counted_are_zeroed_if_their_records_are_gone(home: StoreHome) -> None:
    """As after a power cut: the page of the items was written, that of the header was not, and the log was cut."""
    with home.open() as store:
        home.put_numbered(store, 5)
    home.mark_crashed()
    (index,) = home.index_files()
    geometry = IndexGeometry(store.settings.max_hash_slot_num, store.settings.max_index_num)
    count = IndexHeader.unpack(index.read_bytes()[:40]).index_count
    home.write(index, geometry.item_position(count), b"\1" * 60)
    with home.open() as store:
        assert [len(store.query("T", f"k{number}")) for number in range(5)] == [1] * 5
    assert not any(index.read_bytes()[geometry.item_position(count) :])
