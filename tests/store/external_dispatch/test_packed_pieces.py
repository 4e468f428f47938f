"""Pieces on their way from workers to the driver: the same afterwards, and small."""

from __future__ import annotations

import random

import numpy as np
from support.effort import chosen_seed
from support.stores import StoreHome, put_mixed

from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import pack_unit
from penstock.store import Message
from penstock.store.external_dispatch.packed_units_and_keys import pack, unpack
from penstock.store.queue_units_and_keys import KEY, DerivedPiece, LogRange, scan


def pieces(home: StoreHome) -> list[DerivedPiece]:
    with home.open(read_only=True) as view:
        end, size, levels = view.log.max_offset, view.log.queue.file_size, view.settings.delay_levels
    return list(scan(LogRange(home.path / "commitlog", size, 0, end, True, levels)))


def test_a_piece_is_the_same_after_its_way(home: StoreHome) -> None:
    with home.open() as store:
        put_mixed(home, store, 700)
        store.put(Message("T", b"x", keys=("a", "b", "a"), properties={"DELAY": "3"}))
    found = pieces(home)
    assert sum(len(piece.queues) for piece in found) > 10
    assert [unpack(pack(piece)) for piece in found] == found


def test_any_values_survive() -> None:
    chance = random.Random(chosen_seed())
    ends = (-(2**63), 2**63 - 1, 0, -1, 255, 256, 2**32, 2**40)
    for _ in range(50):
        units = b"".join(
            pack_unit(chance.choice(ends), chance.randrange(2**31), chance.choice(ends))
            for _ in range(chance.randrange(5))
        )
        keys = b"".join(
            np.array((chance.randrange(-(2**31), 2**31), chance.randrange(2**50), chance.choice(ends)), KEY).tobytes()
            for _ in range(chance.randrange(5))
        )
        queue = ("topic\udcff", 3, [(0, len(units) // 20, 5, 9)], memoryview(units))
        piece = DerivedPiece(1, 2, 3, int(Reason.FULL), 5, [queue], memoryview(keys), [(7, 8)])
        assert unpack(pack(piece)) == piece


def test_a_message_with_two_keys_takes_less_than_40_bytes(home: StoreHome) -> None:
    with home.open() as store:
        for number in range(5000):
            keys = (f"order {number}", f"customer {number % 70}")
            store.put(Message("T", bytes(100), keys=keys, tags=f"t{number % 5}", queue_id=number % 4))
    found = pieces(home)
    assert sum(len(pack(piece)) for piece in found) / 5000 < 40
