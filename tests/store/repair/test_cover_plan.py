"""How a range is covered: exactly, by records long enough and not too long, and never to a file's last byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.repair.log import CoverRecord, plan_cover

FILE = 1 << 20
LEAST = 92


@given(st.integers(0, FILE - 1), st.integers(1, FILE), st.integers(1, FILE))
def test_the_pieces_cover_the_range_and_nothing_else(position: int, size: int, most: int) -> None:
    size = min(size, FILE - position)
    at_the_end = position + size == FILE
    pieces = plan_cover(position, size, FILE, most)
    if not pieces:
        assert size < (8 if at_the_end else LEAST)
        return
    for piece in pieces:
        assert piece.position == position
        position += piece.size
    assert position == pieces[0].position + size
    records = [piece for piece in pieces if not piece.is_filler]
    assert all(LEAST <= piece.size <= max(most, 4096) for piece in records)
    assert [piece.is_filler for piece in pieces] == [False] * len(records) + [True] * at_the_end


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, []),
        (8, [CoverRecord(FILE - 8, 8, True)]),
        (99, [CoverRecord(FILE - 99, 99, True)]),
        (100, [CoverRecord(FILE - 100, 92), CoverRecord(FILE - 8, 8, True)]),
        (FILE, [CoverRecord(0, 1024), CoverRecord(1024, FILE - 1024, True)]),
    ],
)
def test_at_a_files_end_there_is_always_a_filler(size: int, expected: list[CoverRecord]) -> None:
    assert plan_cover(FILE - size, size, FILE, 4096) == expected


def test_a_rest_too_short_for_a_record_of_its_own_is_avoided() -> None:
    assert plan_cover(0, 4096 + 91, FILE, 4096) == [CoverRecord(0, 4095), CoverRecord(4095, 92)]
