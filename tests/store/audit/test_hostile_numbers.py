"""Numbers at the ends of their range, anywhere in a store: verify finds them, repair ends, nothing is a traceback."""

from __future__ import annotations

import pytest
from support.stores import StoreHome

from penstock.store import Message, Settings
from penstock.store.audit.audit import audit
from penstock.store.repair.repair import repair

COUNT = 20
ITEMS_AT = 40 + 4 * Settings.dev().max_hash_slot_num
HIGHEST, MINUS_ONE, LOWEST = b"\x7f" + b"\xff" * 7, b"\xff" * 8, b"\x80" + bytes(7)
PLACES = {
    "a record's queue offset": ("commitlog", 20),
    "a record's store time": ("commitlog", 56),
    "a unit's offset": ("consumequeue", 0),
    "a unit's tags code": ("consumequeue", 12),
    "an item's offset": ("index", ITEMS_AT + 20 + 4),
    "an item's time": ("index", ITEMS_AT + 20 + 12),
    "the index's first offset": ("index", 16),
    "the index's last offset": ("index", 24),
    "the checkpoint's times": ("checkpoint", 0),
}


@pytest.mark.parametrize("value", [HIGHEST, MINUS_ONE, LOWEST], ids=["highest", "-1", "lowest"])
def test_a_record_whose_queue_offset_cannot_be_is_named(home: StoreHome, value: bytes) -> None:
    with home.open() as store:
        puts = [store.put(Message("T", b"%d" % each)) for each in range(COUNT)]
    home.write(home.log_files()[0], puts[5].physical_offset + 20, value)
    (named,) = [each for each in audit(home.path, Settings.dev()).errors if each.kind == "record-queue"]
    assert (named.offset, named.messages) == (puts[5].physical_offset, 1)


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
@pytest.mark.parametrize("value", [HIGHEST, MINUS_ONE, LOWEST], ids=["highest", "-1", "lowest"])
@pytest.mark.parametrize("place", PLACES)
def test_verify_and_repair_end_without_a_traceback(home: StoreHome, place: str, value: bytes, number: int) -> None:
    with home.open() as store:
        puts = [store.put(Message("T", b"%d" % each, keys=f"k{each}")) for each in range(COUNT)]
    kind, position = PLACES[place]
    path = {
        "commitlog": home.log_files()[0],
        "consumequeue": home.queue_files("T")[0],
        "index": home.index_files()[0],
        "checkpoint": home.path / "checkpoint",
    }[kind]
    if kind == "commitlog":
        position += puts[number].physical_offset
    elif position >= ITEMS_AT or kind == "consumequeue":
        position += 20 * number
    home.write(path, position, value)
    report = audit(home.path, Settings.dev())
    assert kind == "checkpoint" or report.findings
    repair(home.path, Settings.dev())
    with home.open() as store:
        assert len(home.bodies(store, "T")) >= COUNT - 1
