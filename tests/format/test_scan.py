"""The scan: every record once, damage as data, whatever the ranges are."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages import make_file, make_log, make_record

from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.scan import (
    Blank,
    Damage,
    Scan,
    ScanBatch,
    hidden_record,
    next_valid,
    nonzero_end,
    row_at,
    scan,
    valid_rows,
)

BASE = 4096
BODIES = [b"first", b"", b"third" * 8, b"fourth"]
each_kernel = pytest.mark.usefixtures("kernels_name")


@dataclass
class Found:
    """The items of a scan."""

    offsets: list[int] = field(default_factory=list)
    blanks: list[Blank] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    end: int = 0

    def take(self, pass_over: Scan) -> Found:
        for item in pass_over:
            if isinstance(item, ScanBatch):
                self.offsets += item.rows["physical_offset"].tolist()
            elif isinstance(item, Blank):
                self.blanks.append(item)
            else:
                self.damage.append(item)
        self.end = pass_over.end
        return self


def run(log: kernels.Buffer, start: int = 0, stop: int = 2**40, *, check_crc: bool = True, **how: object) -> Found:
    return Found().take(scan(log, BASE, start, stop, check_crc=check_crc, **how))


def starts_of(bodies: list[bytes]) -> list[int]:
    """Physical offsets of the records, and of what follows them."""
    starts = [BASE]
    for body in bodies:
        starts.append(starts[-1] + len(make_record(0, body)))
    return starts


STARTS = starts_of(BODIES)


@each_kernel
def test_records_and_the_filler_come_in_log_order() -> None:
    log = make_file(BODIES, BASE, blank=30)
    items = list(scan(log, BASE, 0, len(log), check_crc=True))
    assert [type(item) for item in items] == [ScanBatch, Blank]
    assert items[0].rows["physical_offset"].tolist() == STARTS[:-1]
    assert items[1] == Blank(STARTS[-1], 30)


@each_kernel
def test_batches_are_as_small_as_asked() -> None:
    batches = list(scan(make_log(BODIES, BASE), BASE, 0, 2**40, check_crc=True, rows_per_batch=3))
    assert [len(batch.rows) for batch in batches] == [3, 1]


@each_kernel
def test_topics_are_numbered_across_batches() -> None:
    topics = kernels.TopicTable()
    log = make_log(BODIES, BASE, topic="orders")
    rows = [batch.rows for batch in scan(log, BASE, 0, 2**40, check_crc=True, topics=topics, rows_per_batch=1)]
    assert [int(row["topic_id"][0]) for row in rows] == [0, 0, 0, 0]
    assert topics.names == ["orders"]


@each_kernel
@pytest.mark.parametrize("tail", [1, 7, 8, 500])
def test_what_was_never_written_ends_the_scan_quietly(tail: int) -> None:
    found = run(make_file(BODIES, BASE, tail=tail))
    assert (found.offsets, found.damage, found.end) == (STARTS[:-1], [], STARTS[-1])


@each_kernel
def test_a_record_that_is_not_published_ends_the_scan_quietly() -> None:
    log = make_file(BODIES, BASE, tail=300)
    record = make_record(STARTS[-1], b"soon")
    at = STARTS[-1] - BASE + 8
    log[at : at + len(record) - 8] = record[8:]
    found = run(log)
    assert (found.offsets, found.damage, found.end) == (STARTS[:-1], [], STARTS[-1])


@each_kernel
@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (4, b"\xee", Reason.BAD_MAGIC),
        (4, bytes(4), Reason.UNWRITTEN),
        (0, bytes(91), Reason.UNWRITTEN),
        (0, b"\x7f", Reason.BEYOND_END),
        (0, bytes(4), Reason.BAD_SIZE),
        (35, b"\xee", Reason.BAD_POSITION),
        (87, b"\x01", Reason.BAD_LENGTHS),
    ],
)
def test_damage_in_the_middle_is_reported_with_its_exact_range(at: int, data: bytes, reason: Reason) -> None:
    log = make_file(BODIES, BASE, blank=20)
    place = STARTS[1] - BASE + at
    log[place : place + len(data)] = data
    found = run(log)
    assert found.offsets == [STARTS[0], STARTS[2], STARTS[3]]
    assert found.damage == [Damage(STARTS[1], STARTS[2] - STARTS[1], reason)]
    assert found.blanks == [Blank(STARTS[-1], 20)]
    assert found.end == BASE + len(log)


@each_kernel
def test_damage_in_the_first_record_is_reported_from_the_files_first_byte() -> None:
    log = make_log(BODIES, BASE)
    log[90] ^= 1
    assert run(log).damage == [Damage(BASE, STARTS[1] - BASE, Reason.BAD_CRC)]


@each_kernel
def test_damage_over_several_records_is_one_range() -> None:
    log = make_log(BODIES, BASE)
    log[STARTS[1] - BASE + 4] ^= 1
    log[STARTS[2] - BASE + 90] ^= 1
    found = run(log)
    assert found.offsets == [STARTS[0], STARTS[3]]
    assert found.damage == [Damage(STARTS[1], STARTS[3] - STARTS[1], Reason.BAD_MAGIC)]


@each_kernel
def test_a_torn_record_at_the_end_is_damage_up_to_the_last_byte_written() -> None:
    log = make_file(BODIES, BASE, tail=300)
    log[STARTS[3] - BASE + 90] ^= 1
    found = run(log)
    assert found.damage == [Damage(STARTS[3], len(make_record(0, BODIES[3]).rstrip(b"\0")), Reason.BAD_CRC)]


@each_kernel
def test_garbage_after_the_last_record_is_damage() -> None:
    log = make_file(BODIES, BASE, tail=3_000_000)
    place = STARTS[-1] - BASE
    log[place : place + 9] = b"garbage!!"
    found = run(log)
    assert found.damage == [Damage(STARTS[-1], 9, Reason.BAD_MAGIC)]
    assert found.end == STARTS[-1] + 9


@each_kernel
def test_a_copy_of_a_record_in_a_body_is_not_served_as_one_when_its_holder_is_damaged() -> None:
    inner = make_record(BASE, b"inner")
    bodies = [b"one", b"copy: " + inner, b"three"]
    log = make_log(bodies, BASE)
    starts = starts_of(bodies)
    log[starts[1] - BASE + 4] ^= 1
    found = run(log)
    assert found.offsets == [starts[0], starts[2]]
    assert found.damage == [Damage(starts[1], starts[2] - starts[1], Reason.BAD_MAGIC)]


@each_kernel
def test_a_body_damaged_where_no_crc_is_checked_is_served() -> None:
    log = make_log(BODIES, BASE)
    log[90] ^= 1
    assert run(log, check_crc=False).offsets == STARTS[:-1]


class Completing:
    """A scan during which a writer completes a record that the scan found incomplete."""

    def __init__(self, log: bytearray, at: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        search = kernels.find_record

        def complete_then_search(*arguments: object) -> int:
            log[at : at + len(data)] = data
            return search(*arguments)

        monkeypatch.setattr(kernels, "find_record", complete_then_search)


@each_kernel
def test_a_record_that_a_writer_completes_meanwhile_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(BODIES, BASE)
    place = STARTS[1] - BASE + 4
    whole = bytes(log[place : place + 4])
    log[place + 2 : place + 4] = bytes(2)
    Completing(log, place, whole, monkeypatch)
    found = run(log)
    assert (found.offsets, found.damage) == (STARTS[:-1], [])


@each_kernel
def test_a_last_record_that_a_writer_completes_meanwhile_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_file(BODIES, BASE, tail=200)
    place = STARTS[3] - BASE + 4
    whole = bytes(log[place : place + 4])
    log[place + 1 : place + 4] = bytes(3)
    Completing(log, place, whole, monkeypatch)
    found = run(log)
    assert (found.offsets, found.damage) == (STARTS[:-1], [])


@each_kernel
def test_a_batch_whose_first_record_is_not_published_is_not_seen_by_a_tail() -> None:
    log = make_file(BODIES, BASE, tail=200)
    place = STARTS[2] - BASE
    log[place : place + 8] = bytes(8)
    found = run(log, live=True)
    assert (found.offsets, found.damage, found.end) == (STARTS[:2], [], STARTS[2])


@each_kernel
def test_a_hole_in_a_log_is_damage_for_a_tail_too() -> None:
    log = make_file(BODIES, BASE, tail=200)
    log[STARTS[2] - BASE : STARTS[3] - BASE] = bytes(STARTS[3] - STARTS[2])
    found = run(log, live=True)
    assert found.offsets == [STARTS[0], STARTS[1], STARTS[3]]
    assert found.damage == [Damage(STARTS[2], STARTS[3] - STARTS[2], Reason.UNWRITTEN)]


@each_kernel
def test_a_scan_from_an_arbitrary_byte_begins_at_the_next_record() -> None:
    log = make_log(BODIES, BASE)
    assert run(log, 1, resync=True).offsets == STARTS[1:-1]
    nothing = run(log, 1, 5, resync=True)
    assert (nothing.offsets, nothing.damage, nothing.end) == ([], [], BASE + 5)


def split_in_two(log: kernels.Buffer, at: int, check_crc: bool) -> Found:
    found = Found().take(scan(log, BASE, 0, at, check_crc=check_crc, overrun=True))
    return found.take(scan(log, BASE, at, len(log), check_crc=check_crc, resync=True))


@each_kernel
@pytest.mark.parametrize("check_crc", [True, False])
def test_two_ranges_give_every_record_and_all_damage_once_wherever_they_meet(check_crc: bool) -> None:
    log = make_file([*BODIES, b"last"], BASE, blank=20)
    log[STARTS[1] - BASE + 4] ^= 1  # the second record is invalid
    log[STARTS[2] - BASE + 90] ^= 1  # the third has a wrong CRC
    whole = run(log, check_crc=check_crc)
    assert len(whole.offsets) == 3
    assert len(whole.damage) == 1
    for at in range(1, len(log)):
        assert split_in_two(log, at, check_crc) == whole, f"split at {at}"


@each_kernel
def test_two_ranges_of_a_sound_log_own_the_records_that_start_in_them() -> None:
    log = make_file(BODIES, BASE, blank=20)
    for at in range(1, len(log)):
        first = run(log, 0, at).offsets
        second = run(log, at, resync=True).offsets
        assert first == [start for start in STARTS[:-1] if start - BASE < at]
        assert first + second == STARTS[:-1]


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=4),
    st.lists(st.integers(1, 1000), max_size=3),
    st.booleans(),
)
def test_any_ranges_of_any_damaged_log_give_what_one_range_gives(
    bodies: list[bytes], flips: list[tuple[int, int]], cuts: list[int], check_crc: bool
) -> None:
    log = make_file(bodies, BASE, blank=10)
    for at, bits in flips:
        log[at % len(log)] ^= bits
    whole = run(log, check_crc=check_crc)
    bounds = [0, *sorted({cut for cut in cuts if cut < len(log)}), len(log)]
    found = Found()
    for number, start in enumerate(bounds[:-1]):
        last = number == len(bounds) - 2
        found.take(
            scan(
                *(log, BASE, start, bounds[number + 1]),
                check_crc=check_crc,
                resync=number > 0,
                overrun=not last,
            )
        )
    assert (found.offsets, found.damage, found.blanks) == (whole.offsets, whole.damage, whole.blanks)


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_records_damage_and_filler_cover_the_log_without_gaps(
    bodies: list[bytes], flips: list[tuple[int, int]]
) -> None:
    log = make_file(bodies, BASE, blank=10)
    for at, bits in flips:
        log[at % len(log)] ^= bits
    at = BASE
    for item in scan(log, BASE, 0, len(log), check_crc=True):
        if isinstance(item, ScanBatch):
            for row in item.rows:
                assert row["physical_offset"] == at
                at += int(row["size"])
        else:
            assert item.position == at
            at += item.size
    rest = bytes(log[at - BASE :])
    assert not any(rest[4:8])


# -- the records alone, one record, the next one -------------------------------------------------------------------


@each_kernel
def test_valid_rows_are_the_records_without_damage_and_fillers() -> None:
    log = bytearray(make_file(BODIES, BASE, blank=30))
    log[STARTS[1] - BASE + 4] ^= 1
    found = [offset for rows in valid_rows(log, BASE, 0, len(log)) for offset in rows["physical_offset"].tolist()]
    assert found == [STARTS[0], STARTS[2], STARTS[3]]


@each_kernel
def test_row_at_reads_one_record_or_none() -> None:
    log = make_file(BODIES, BASE, blank=30)
    topics = kernels.TopicTable()
    rows = row_at(log, BASE, STARTS[2] - BASE, check_crc=True, topics=topics)
    assert rows["physical_offset"].tolist() == [STARTS[2]]
    assert len(topics) == 1
    for at in (1, STARTS[4] - BASE, len(log)):  # inside a record, at the filler, after the file
        assert not len(row_at(log, BASE, at))


@each_kernel
@pytest.mark.parametrize("zeros_of_size", [0, 2])
def test_the_search_for_the_next_record_skips_holes(zeros_of_size: int) -> None:
    log = bytes(100) + make_file(BODIES, BASE + 100)
    asked: list[int] = []

    def written(start: int) -> list[tuple[int, int]]:
        asked.append(start)
        return [(100 + zeros_of_size, len(log))]

    assert next_valid(log, BASE, 1, len(log), written) == 100
    assert next_valid(log, BASE, 1, 100, written) == -1
    assert next_valid(log, BASE, 1, len(log), lambda start: []) == -1
    assert asked == [1, 1]


@each_kernel
def test_a_scan_that_knows_the_written_ranges_finds_what_one_without_them_finds() -> None:
    log = bytearray(make_file(BODIES, BASE) + bytes(5000))
    log[STARTS[1] - BASE + 4] ^= 1
    log[STARTS[4] - BASE : STARTS[4] - BASE + 9] = b"not a rec"
    written = {"written": lambda start: [(start, STARTS[4] - BASE + 500)]}
    assert run(log, **written) == run(log)


def test_the_last_nonzero_byte_is_found_across_chunks() -> None:
    view = memoryview(bytearray(3 << 20))
    assert nonzero_end(view, [(0, len(view))], 7) == 7
    view[5] = 1
    assert nonzero_end(view, [(0, len(view))], 0) == 6
    assert nonzero_end(view, [(6, len(view))], 6) == 6
    view[2 << 20] = 1
    assert nonzero_end(view, [(0, 100), (200, 2**40)], 0) == (2 << 20) + 1


@each_kernel
def test_a_record_inside_a_filler_is_found() -> None:
    log = bytearray(make_file(BODIES, BASE, blank=400))
    filler = Blank(STARTS[4], len(log) - (STARTS[4] - BASE))
    assert hidden_record(log, BASE, filler) == -1
    at = STARTS[4] - BASE + 40
    record = make_record(BASE + at, b"hidden")
    log[at : at + len(record)] = record
    assert hidden_record(log, BASE, filler) == at
