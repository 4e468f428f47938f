from __future__ import annotations

import struct

import pytest

from penstock.errors import CorruptData
from penstock.format.queue_ext import ExtUnit, decode_ext_unit, ext_offset

UNIT = struct.pack(">hqqh", 22, -5, 1_600_000_001_234, 2) + b"\x81\x01"


def test_a_unit_is_read_where_it_lies() -> None:
    assert decode_ext_unit(b"before" + UNIT + b"after", 6) == ExtUnit(22, -5, 1_600_000_001_234, b"\x81\x01")


def test_an_address_stands_for_an_offset() -> None:
    assert ext_offset(-(2**63)) == 0
    assert ext_offset(-(2**63) + 42) == 42


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xff\x00\x00", bytes(40)])
def test_there_is_no_unit_where_a_file_has_ended(data: bytes) -> None:
    assert decode_ext_unit(data) is None


@pytest.mark.parametrize(
    "data", [UNIT[:21], struct.pack(">hqqh", 19, 0, 0, -1), struct.pack(">hqqh", 20, 0, 0, 1), b"\x80\x00" + bytes(30)]
)
def test_a_unit_that_does_not_fit_is_reported(data: bytes) -> None:
    with pytest.raises(CorruptData, match="extension unit"):
        decode_ext_unit(data)
