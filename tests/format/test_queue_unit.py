from __future__ import annotations

import numpy as np
import pytest

from penstock.format.queue_unit import PRE_BLANK, UNIT, UNIT_SIZE, is_ext_address, pack_unit, unpack_unit

UNITS = [
    ("0000000000000000 000000b4 000000000027a807", (0, 180, 2_598_919)),
    ("00000000000000be 0000007c ffffffff80000000", (190, 124, -2_147_483_648)),
    ("0000000000000000 00000064 00000174876eabe2", (0, 100, 1_600_000_011_234)),
]


@pytest.mark.parametrize(("data", "unit"), UNITS)
def test_a_unit_is_written_and_read(data: str, unit: tuple[int, int, int]) -> None:
    assert pack_unit(*unit) == bytes.fromhex(data)
    assert unpack_unit(b"xx" + bytes.fromhex(data), 2) == unit


def test_units_are_read_as_columns() -> None:
    data = b"".join(bytes.fromhex(text) for text, _ in UNITS)
    columns = np.frombuffer(data, dtype=UNIT)
    assert [tuple(unit) for unit in columns.tolist()] == [unit for _, unit in UNITS]
    assert UNIT.itemsize == UNIT_SIZE == 20


def test_the_pre_blank_unit_is_javas() -> None:
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == PRE_BLANK


@pytest.mark.parametrize(
    ("code", "is_address"), [(-(2**63), True), (-(2**31) - 1, True), (-(2**31), False), (0, False), (2**62, False)]
)
def test_a_tags_code_below_every_hash_is_an_address(code: int, is_address: bool) -> None:
    assert is_ext_address(code) is is_address
