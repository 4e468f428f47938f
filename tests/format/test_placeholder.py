"""The record that covers damage: valid at every size, and recognised."""

from __future__ import annotations

import pytest

from penstock.format import kernels
from penstock.format.damage_placeholder import (
    MIN_PLACEHOLDER_SIZE,
    find_placeholders,
    is_placeholder,
    placeholder_text,
    saved_paths,
    write_placeholder,
)
from penstock.format.hosts import encode_host
from penstock.format.kernel_row_types import Reason
from penstock.format.record import decode_record

pytestmark = pytest.mark.usefixtures("kernels_name")

HOST = encode_host("10.1.2.3:10911")


def walk(data: bytes | bytearray, base: int) -> tuple[kernels.Rows, int, kernels.TopicTable]:
    topics = kernels.TopicTable()
    rows, _, reason = kernels.walk(data, base, 0, len(data), True, topics, 100)
    return rows, reason, topics


@pytest.mark.parametrize("size", [*range(92, 130), 500, 4096])
def test_it_is_valid_at_every_size_and_known_again(size: int) -> None:
    out = bytearray(size)
    write_placeholder(out, 0, 777, size, 1_600_000_000_000, HOST, "text\n")
    rows, reason, topics = walk(out, 777)
    assert (len(rows), reason) == (1, Reason.STOP)
    assert find_placeholders(rows, topics.name) == [(777, size)]
    record = decode_record(out)
    assert record.store_host == record.born_host == "10.1.2.3:10911"
    assert kernels.group_rows(rows) == []
    builder = kernels.RangeBuilder(kernels.TopicTable(), (), True, None, 2**40, 2**40)
    builder.take(out, 777, 0, size)
    assert (builder.records, len(builder.key_table()), builder.queues()) == (1, 0, [])


def test_a_range_below_its_least_size_is_refused() -> None:
    with pytest.raises(ValueError, match="91"):
        write_placeholder(bytearray(91), 0, 0, MIN_PLACEHOLDER_SIZE - 1, 0, HOST, "")


def test_its_text_names_what_was_saved_as_far_as_there_is_room() -> None:
    text = placeholder_text(777, 600, "BAD_CRC", "2026-01-01T00:00:00+00:00", ["a/b", "c/d"])
    out = bytearray(600)
    write_placeholder(out, 0, 777, 600, 1, HOST, text)
    body = decode_record(out).body
    assert body.startswith(b"PENSTOCK_DAMAGED\nrange: 600 bytes at 777\nreason: BAD_CRC\n")
    assert saved_paths(bytes(out)) == ["a/b", "c/d"]
    named: set[int] = set()
    for size in range(92, 240):
        cut = bytearray(size)
        write_placeholder(cut, 0, 777, size, 1, HOST, text)
        paths = saved_paths(bytes(cut))
        assert paths == ["a/b", "c/d"][: len(paths)]
        named.add(len(paths))
    assert named == {0, 1, 2}


def test_other_records_that_were_rolled_back_are_none() -> None:
    assert is_placeholder("PENSTOCK_DAMAGED", 4000)
    assert is_placeholder("PENSTOCK", 99)
    assert not is_placeholder("PENSTOCK", 100)
    assert not is_placeholder("", 91)
    assert not is_placeholder("orders", 97)
