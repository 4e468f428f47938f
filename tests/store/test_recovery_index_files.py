"""What a start makes of index files that are not what they should be: each key is found once, and queries end."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.format.index_layout import IndexGeometry, IndexHeader

pytestmark = pytest.mark.usefixtures("kernels_name")

GEOMETRY = IndexGeometry(slots=50, items=100)
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "max_hash_slot_num": GEOMETRY.slots,
    "max_index_num": GEOMETRY.items,
}
COUNT = 350
CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
Harm = Callable[[StoreHome], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StoreHome:
    """Keys in three full index files and one that is half full; closed. Time passes, so a crash walks a part only."""
    home = StoreHome(tmp_path_factory.mktemp("model") / "store")
    with home.open(**SMALL) as store:
        for _ in range(COUNT):
            home.clock.now += 1000
            home.put_numbered(store, 1)
    assert len(home.index_files()) == 4
    return home


@pytest.fixture
def filled(home: StoreHome, model: StoreHome) -> StoreHome:
    """A copy of the model."""
    model.copy_to(home.path)
    home.clock.now = model.clock.now
    return home


def index_items(home: StoreHome) -> int:
    counts = (IndexHeader.unpack(path.read_bytes()[:40]).index_count for path in home.index_files())
    return sum(max(count, 1) - 1 for count in counts)


def change_header(path: Path, **changes: int) -> None:
    header = IndexHeader.unpack(path.read_bytes()[:40])
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    with path.open("r+b") as file:
        file.write(IndexHeader(**{**fields, **changes}).pack())


# -- harm ----------------------------------------------------------------------------------------------------------


def shorten_the_first(home: StoreHome) -> None:
    home.index_files()[0].write_bytes(b"x" * 100)


def empty_the_second(home: StoreHome) -> None:
    home.index_files()[1].write_bytes(b"")


def lengthen_the_last(home: StoreHome) -> None:
    path = home.index_files()[-1]
    path.write_bytes(path.read_bytes() + b"x")


def zero_the_first(home: StoreHome) -> None:
    home.index_files()[0].write_bytes(bytes(GEOMETRY.file_size))


def zero_the_last(home: StoreHome) -> None:
    home.index_files()[-1].write_bytes(bytes(GEOMETRY.file_size))


def garbage_in_the_second(home: StoreHome) -> None:
    home.index_files()[1].write_bytes(b"\x7f" * GEOMETRY.file_size)


def garbage_in_the_last(home: StoreHome) -> None:
    home.index_files()[-1].write_bytes(b"\xff" * GEOMETRY.file_size)


def too_many_items_counted(home: StoreHome) -> None:
    change_header(home.index_files()[-1], index_count=2**31 - 1)


def too_few_items_counted(home: StoreHome) -> None:
    change_header(home.index_files()[1], index_count=20)


def negative_count(home: StoreHome) -> None:
    change_header(home.index_files()[-1], index_count=-7)


def ends_ahead_of_the_log(home: StoreHome) -> None:
    change_header(home.index_files()[-1], end_physical_offset=2**40)


def begins_behind_its_end(home: StoreHome) -> None:
    change_header(home.index_files()[-1], begin_physical_offset=2**40)


def remove_the_last(home: StoreHome) -> None:
    home.index_files()[-1].unlink()


def remove_all(home: StoreHome) -> None:
    shutil.rmtree(home.path / "index")


HARMS: list[Harm] = [
    shorten_the_first,
    empty_the_second,
    lengthen_the_last,
    zero_the_first,
    zero_the_last,
    garbage_in_the_second,
    garbage_in_the_last,
    too_many_items_counted,
    too_few_items_counted,
    negative_count,
    ends_ahead_of_the_log,
    begins_behind_its_end,
    remove_the_last,
    remove_all,
]


@CLEAN_OR_NOT
@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_an_index_that_cannot_be_believed_is_built_again(filled: StoreHome, harm: Harm, crashed: bool) -> None:
    """rocketmq#8007, #3868: the last index file was destroyed at a start, and keys were not found any more."""
    harm(filled)
    if crashed:
        filled.mark_crashed()
    for _ in range(2):
        with filled.open(**SMALL) as store:
            assert [len(store.query("T", f"k{number}")) for number in range(COUNT)] == [1] * COUNT
    assert index_items(filled) == COUNT, "none twice"
    assert store.report.notes == []


def test_the_files_before_the_bad_one_are_kept(filled: StoreHome) -> None:
    before = [path.stat().st_ino for path in filled.index_files()]
    garbage_in_the_second(filled)
    filled.open(**SMALL).close()
    assert filled.index_files()[0].stat().st_ino == before[0]
    assert [path.stat().st_ino for path in filled.kept()] == before[1:]


def test_an_index_ahead_of_the_log_does_not_stop_indexing(filled: StoreHome) -> None:
    """rocketmq#8041: the log was reset, the index seemed complete, and silently stopped growing."""
    for path in filled.log_files()[2:]:
        path.unlink()
    for crashed in (False, True):
        if crashed:
            filled.mark_crashed()
        with filled.open(**SMALL) as store:
            left = store.max_offset("T", 0)
            assert 0 < left < COUNT
            filled.put_numbered(store, 10)
            assert [len(store.query("T", f"k{number}")) for number in range(left + 10)] == [1] * (left + 10)
            assert store.query("T", f"k{COUNT - 1}") == []
        assert index_items(filled) == left + 10


def test_no_start_makes_more_index_files_than_there_are_keys_for(filled: StoreHome) -> None:
    """rocketmq#7539: index files were made without end, 200 GB of them."""
    for number in range(12):
        if number % 2:
            filled.mark_crashed()
        if number % 3 == 0:
            garbage_in_the_last(filled)
        with filled.open(**SMALL) as store:
            assert len(store.query("T", "k0")) == 1
    assert len(filled.index_files()) == 4


@CLEAN_OR_NOT
def test_a_chain_that_runs_in_circles_ends(filled: StoreHome, crashed: bool) -> None:
    path = filled.index_files()[0]
    data = bytearray(path.read_bytes())
    for number in range(1, GEOMETRY.items):
        struct.pack_into(">i", data, GEOMETRY.item_position(number) + 16, number % (GEOMETRY.items - 1) + 1)
    path.write_bytes(data)
    if crashed:
        filled.mark_crashed()
    store = filled.open(**SMALL)
    assert all(len(store.query("T", f"k{number}")) <= 1 for number in range(COUNT))
    assert [len(store.query("T", f"k{number}")) for number in range(100, COUNT)] == [1] * (COUNT - 100)
    assert store.query("T", "unknown") == []


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", [True, False])
def test_files_of_one_other_size_mean_that_the_settings_are_wrong(filled: StoreHome, noted: bool) -> None:
    if not noted:
        (filled.path / "penstock" / "dispatched.json").unlink()
    before = filled.listing()
    with pytest.raises(BadStore, match="set those it was made with") as refused:
        filled.open(**{**SMALL, "max_index_num": 90})
    assert str(filled.index_files()[0]) in str(refused.value)
    assert filled.listing() == before


def test_a_single_file_of_another_size_is_damage_if_a_note_says_so(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 5)
    home.index_files()[0].write_bytes(b"x" * 400)
    with home.open(**SMALL) as store:
        assert [len(store.query("T", f"k{number}")) for number in range(5)] == [1] * 5
    assert [path.read_bytes() for path in home.kept()] == [b"x" * 400]


def test_a_view_shows_what_a_start_would_serve(filled: StoreHome) -> None:
    garbage_in_the_second(filled)
    before = filled.listing()
    with filled.open(read_only=True, **SMALL) as view:
        assert [len(view.query("T", f"k{number}")) for number in range(COUNT)] == [1] * COUNT
    assert filled.listing() == before


@pytest.mark.parametrize("harm", [garbage_in_the_last, too_many_items_counted, zero_the_first])
def test_a_view_of_a_store_in_use_bears_a_garbage_index(filled: StoreHome, harm: Harm) -> None:
    with filled.open(**SMALL):
        harm(filled)
        with filled.open(read_only=True, **SMALL) as view:
            assert [len(view.query("T", f"k{number}")) for number in range(COUNT)] == [1] * COUNT
