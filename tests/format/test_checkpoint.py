from __future__ import annotations

import pytest

from penstock.errors import CorruptData
from penstock.format.checkpoint import Checkpoint

STORED = 1_600_000_001_234


def test_a_checkpoint_is_written_and_read_to_the_byte() -> None:
    page = Checkpoint(STORED, STORED, 0)
    data = page.pack()
    assert data[:24] == bytes.fromhex("00000174876e84d2 00000174876e84d2 0000000000000000")
    assert len(data) == 4096
    assert not any(data[24:])
    assert Checkpoint.unpack(data) == page


@pytest.mark.parametrize(
    ("page", "least", "least_of_index"),
    [
        (Checkpoint(STORED, STORED, 0), 1_599_999_998_234, 0),
        (Checkpoint(STORED, STORED - 10, STORED), 1_599_999_998_224, 1_599_999_998_224),
        (Checkpoint(STORED, STORED, 5), 1_599_999_998_234, 5),
        (Checkpoint(2_999, STORED, 5), 0, 0),
    ],
)
def test_the_least_timestamp_keeps_three_seconds_of_distance(page: Checkpoint, least: int, least_of_index: int) -> None:
    assert page.min_timestamp == least
    assert page.min_timestamp_index == least_of_index


def test_what_5x_keeps_behind_the_timestamps_is_preserved() -> None:
    data = bytes(range(256)) * 16
    assert Checkpoint.unpack(data).pack() == data


@pytest.mark.parametrize("size", [0, 24, 4095, 4097])
def test_a_page_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(CorruptData, match="expected 4096"):
        Checkpoint.unpack(bytes(size))
