"""The walk: which records it finds, and why it stops. Each reason has a test."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest
from support.messages import BORN, G1, G2, G3, STORED, as_v2, make_file, make_log, make_record

from penstock.format import kernels
from penstock.format.kernel_row_types import ROW, Reason

pytestmark = pytest.mark.usefixtures("kernels_name")

BODIES = [b"first", b"", b"third" * 20]
ALL = 2**40


def walk(log: kernels.Buffer, base: int = 0, start: int = 0, stop: int = ALL, max_rows: int = ALL, crc: bool = True):
    rows, position, reason = kernels.walk(log, base, start, stop, crc, None, max_rows)
    return rows, position, Reason(reason)


def test_a_row_has_every_field_of_a_record() -> None:
    rows, position, reason = walk(G1)
    assert rows.dtype == ROW
    assert (position, reason) == (180, Reason.STOP)
    assert dict(zip(ROW.names, rows[0].tolist(), strict=True)) == {
        "physical_offset": 0,
        "queue_offset": 0,
        "store_timestamp": STORED,
        "born_timestamp": BORN,
        "prepared_transaction_offset": 0,
        "tags_code": 0,
        "size": 180,
        "body_crc": 0x69C865ED,
        "queue_id": 1,
        "flag": 0,
        "sys_flag": 0,
        "reconsume_times": 0,
        "topic_id": -1,
        "body_at": 88,
        "body_length": 14,
        "topic_at": 103,
        "topic_length": 9,
        "properties_at": 114,
        "properties_length": 66,
        "reserved": 0,
    }


@pytest.mark.parametrize(
    ("data", "places"), [(G2, (88, 89, 100)), (G3, (112, 115, 126)), (as_v2(G1, b"TopicTest"), (88, 104, 115))]
)
def test_other_forms_have_their_parts_elsewhere(data: bytes, places: tuple[int, int, int]) -> None:
    rows, _, reason = walk(data)
    assert reason is Reason.STOP
    assert tuple(rows[["body_at", "topic_at", "properties_at"]][0]) == places


def test_distinct_values_land_in_distinct_columns() -> None:
    record = bytearray(make_record(0, b"x", queue_id=3, queue_offset=4, sys_flag=8, store_timestamp=5))
    record[72:76] = (6).to_bytes(4, "big")
    record[76:84] = (9).to_bytes(8, "big")
    names = ["queue_id", "queue_offset", "sys_flag", "store_timestamp", "flag", "reconsume_times"]
    rows, _, _ = walk(record)
    assert [int(rows[name][0]) for name in [*names, "prepared_transaction_offset"]] == [3, 4, 8, 5, 7, 6, 9]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda log: np.frombuffer(log, np.uint8)])
def test_every_kind_of_buffer_is_walked(make: Callable[[bytes], kernels.Buffer]) -> None:
    assert len(walk(make(bytes(make_log(BODIES))))[0]) == 3


def test_a_map_is_walked_and_can_be_closed_afterwards() -> None:
    log = make_log(BODIES)
    mapped = mmap.mmap(-1, len(log))
    mapped[:] = bytes(log)
    assert len(walk(mapped)[0]) == 3
    mapped.close()


def test_the_walk_stops_where_the_range_ends() -> None:
    log = make_log(BODIES)
    first = len(make_record(0, BODIES[0]))
    for stop in range(1, first + 1):
        rows, position, reason = walk(log, stop=stop)
        assert (len(rows), position, reason) == (1, first, Reason.STOP)
    assert walk(log, start=5, stop=5)[1:] == (5, Reason.STOP)
    assert walk(log, start=len(log))[1:] == (len(log), Reason.STOP)


def test_the_walk_stops_when_it_is_full_and_goes_on_from_there() -> None:
    log = make_log(BODIES)
    rows, position, reason = walk(log, max_rows=2)
    assert (len(rows), reason) == (2, Reason.FULL)
    rest, end, reason = walk(log, start=position, max_rows=1)
    assert (len(rest), end, reason) == (1, len(log), Reason.STOP)
    assert walk(log, max_rows=0)[1:] == (0, Reason.FULL)


def test_more_rows_than_any_first_guess_are_walked() -> None:
    log = make_log([b""] * 40_000)
    rows, position, reason = walk(log)
    assert (position, reason) == (len(log), Reason.STOP)
    assert rows["queue_offset"].tolist() == list(range(40_000))


def test_a_walk_can_start_in_the_middle_of_a_file_at_any_base() -> None:
    base = 1_073_741_824
    log = make_log(BODIES, base)
    second = len(make_record(0, BODIES[0]))
    rows, _, reason = walk(log, base, start=second)
    assert (rows["physical_offset"][0], len(rows), reason) == (base + second, 2, Reason.STOP)
    rows, _, reason = walk(memoryview(log)[second:], base + second)
    assert (rows["physical_offset"][0], len(rows), reason) == (base + second, 2, Reason.STOP)


@pytest.mark.parametrize("blank", [8, 96])
def test_a_filler_ends_a_file(blank: int) -> None:
    log = make_file(BODIES, blank=blank)
    rows, position, reason = walk(log)
    assert (len(rows), position, reason) == (3, len(log) - blank, Reason.BLANK)


def damaged(at: int, data: bytes) -> bytearray:
    """Three records, the second with some bytes replaced."""
    log = make_log(BODIES)
    second = len(make_record(0, BODIES[0]))
    log[second + at : second + at + len(data)] = data
    return log


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (lambda: make_file(BODIES[:1], tail=400), Reason.UNWRITTEN),
        (lambda: make_file(BODIES[:1], tail=7), Reason.UNWRITTEN),
        (lambda: damaged(4, bytes(4)), Reason.UNWRITTEN),
        (lambda: damaged(4, b"\xda\xa3\x20\xa8"), Reason.BAD_MAGIC),
        (lambda: damaged(0, (90).to_bytes(4, "big")), Reason.BAD_SIZE),
        (lambda: damaged(0, (0).to_bytes(4, "big")), Reason.BAD_SIZE),
        (lambda: damaged(0, b"\xff\xff\xff\xff"), Reason.BAD_SIZE),
        (lambda: damaged(0, bytes.fromhex("00000060cbd43194")), Reason.BAD_SIZE),
        (lambda: damaged(0, bytes.fromhex("00000007cbd43194")), Reason.BAD_SIZE),
        (lambda: make_file(BODIES[:1]) + b"\0\0\1", Reason.BAD_SIZE),
        (lambda: damaged(0, (2**31 - 1).to_bytes(4, "big")), Reason.BEYOND_END),
        (lambda: make_log(BODIES[:2])[:-1], Reason.BEYOND_END),
        (lambda: damaged(28, bytes(8)), Reason.BAD_POSITION),
        (lambda: damaged(36, b"\0\0\0\x10"), Reason.BAD_LENGTHS),
        (lambda: damaged(84, b"\0\0\0\1"), Reason.BAD_LENGTHS),
        (lambda: damaged(84, b"\xff\xff\xff\xff"), Reason.BAD_LENGTHS),
        (lambda: damaged(88, b"\x02"), Reason.BAD_LENGTHS),
        (lambda: damaged(88, b"\xff"), Reason.BAD_LENGTHS),
        (lambda: damaged(90, b"\x00\x01"), Reason.BAD_LENGTHS),
        (lambda: damaged(90, b"\xff\xff"), Reason.BAD_LENGTHS),
    ],
)
def test_what_is_no_record_stops_the_walk_with_its_reason(log: Callable[[], bytearray], reason: Reason) -> None:
    data, first = log(), len(make_record(0, BODIES[0]))
    rows, position, found = walk(data)
    assert (len(rows), position, found) == (1, first, reason)
    assert kernels.check_record(data, first, 0, True) == reason


def test_a_body_that_does_not_match_its_crc_is_found_only_when_asked() -> None:
    log = make_log(BODIES)
    log[90] ^= 1
    assert walk(log)[1:] == (0, Reason.BAD_CRC)
    assert len(walk(log, crc=False)[0]) == 3
    assert kernels.check_record(log, 0, 0, True) == Reason.BAD_CRC
    assert kernels.check_record(log, 0, 0, False) == Reason.STOP


def test_a_v2_record_of_v1s_least_size_is_too_small() -> None:
    data = bytearray(make_record(0, b"", topic=""))
    data[4:8] = bytes.fromhex("daa320ab")
    assert len(data) == 91
    assert walk(data)[2] is Reason.BAD_SIZE


def test_there_is_no_record_at_the_end_of_data() -> None:
    assert kernels.check_record(G2, 100, 0, True) == Reason.BEYOND_END
    assert kernels.check_record(b"", 0, 0, True) == Reason.BEYOND_END


def test_positions_are_never_negative() -> None:
    for call in (
        lambda: walk(G2, start=-1),
        lambda: kernels.check_record(G2, -1, 0, True),
        lambda: kernels.find_record(G2, 0, -1, 100, True),
    ):
        with pytest.raises(ValueError, match="-1 is not a position"):
            call()


def test_topics_are_numbered_as_they_appear() -> None:
    log = bytearray()
    for topic in ["a", "b", "a", "c", "b"]:
        log += make_record(len(log), topic=topic)
    topics = kernels.TopicTable()
    rows, _, _ = kernels.walk(log, 0, 0, len(log), True, topics, ALL)
    assert rows["topic_id"].tolist() == [0, 1, 0, 2, 1]
    assert topics.names == ["a", "b", "c"]


class TestFindRecord:
    """From an arbitrary byte to the next record."""

    def test_the_next_record_is_found_from_every_byte(self) -> None:
        base = 4096
        log = make_file(BODIES, base, blank=20)
        starts = [0]
        for body in BODIES:
            starts.append(starts[-1] + len(make_record(0, body)))
        for start in range(len(log) + 1):
            expected = next((place for place in starts if place >= start), -1)
            assert kernels.find_record(log, base, start, len(log), True) == expected

    def test_the_range_bounds_where_a_record_may_start(self) -> None:
        log = make_log(BODIES)
        second = len(make_record(0, BODIES[0]))
        assert kernels.find_record(log, 0, 1, second, True) == -1
        assert kernels.find_record(log, 0, 1, second + 1, True) == second
        assert kernels.find_record(log, 0, second, second, True) == -1

    def test_a_copy_of_a_record_inside_a_body_is_not_taken_for_one(self) -> None:
        inner = make_record(0, b"inner")
        log = make_log([b"before " + inner + b" after", b"next"])
        second = len(make_record(0, b"before " + inner + b" after"))
        assert kernels.find_record(log, 0, 1, len(log), True) == second
        assert kernels.find_record(log, 0, 1, len(log), False) == second

    def test_a_copy_of_a_filler_inside_a_body_is_not_taken_for_one(self) -> None:
        log = make_log([bytes.fromhex("00000060cbd43194"), b"next"])
        assert kernels.find_record(log, 0, 1, len(log), True) == len(make_record(0, bytes(8)))

    def test_a_record_with_a_wrong_crc_is_passed_over_only_when_asked(self) -> None:
        log = make_log(BODIES)
        second = len(make_record(0, BODIES[0]))
        log[90] ^= 1
        assert kernels.find_record(log, 0, 0, len(log), True) == second
        assert kernels.find_record(log, 0, 0, len(log), False) == 0

    @pytest.mark.parametrize("data", [b"", b"\xda", b"\xda\xa3\x20\xa7", bytes(1000), b"\xda\xcb" * 500])
    def test_nothing_is_found_where_there_is_nothing(self, data: bytes) -> None:
        assert kernels.find_record(data, 0, 0, len(data), True) == -1
        assert kernels.find_record(data, 0, len(data) + 5, len(data) + 9, True) == -1
