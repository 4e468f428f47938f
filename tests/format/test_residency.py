"""Which pages of a map are in memory, and what a page of a queue needs of the log: alike in both twins."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
from support.messages import make_record

from penstock.format.kernels import _compiled, plain
from penstock.format.queue_unit import pack_unit

PAGE = mmap.PAGESIZE
CHUNK = 64 * PAGE
twins = pytest.mark.parametrize("twin", [_compiled, plain], ids=["compiled", "plain"])


@twins
def test_pages_are_in_memory_once_they_were_touched(twin: Any) -> None:
    data = mmap.mmap(-1, 3 * CHUNK + 100)
    residency = twin.Residency(data)
    assert not residency.check(0, 1)
    data[0] = data[PAGE] = data[CHUNK - 1] = data[CHUNK] = data[3 * CHUNK] = 1
    assert residency.check(0, 2 * PAGE)
    assert not residency.check(PAGE, 2 * PAGE + 1)
    assert residency.check(CHUNK - PAGE, CHUNK + PAGE), "across a chunk"
    assert not residency.check(CHUNK - PAGE, CHUNK + PAGE + 1)
    assert residency.check(3 * CHUNK, 3 * CHUNK + 100)
    data[CHUNK + PAGE] = 1
    assert residency.check(CHUNK - PAGE, CHUNK + PAGE + 1), "that a page is missing is not remembered"
    assert residency.check(5 * PAGE, 5 * PAGE), "nothing is always there"


@twins
def test_a_range_outside_of_the_map_is_not_in_memory(twin: Any) -> None:
    data = mmap.mmap(-1, PAGE)
    data[0] = 1
    residency = twin.Residency(data)
    assert residency.check(0, PAGE)
    assert not residency.check(-1, 1)
    assert not residency.check(0, PAGE + 1)


class Queue:
    """A log with records of two queues in turns, their units, and a residency in which nothing is in memory."""

    def __init__(self, count: int, body: int) -> None:
        log, units = bytearray(), bytearray()
        for number in range(2 * count):
            record = make_record(len(log), bytes(body), topic="T", queue_offset=number // 2, queue_id=number % 2)
            if number % 2 == 0:
                units += pack_unit(len(log), len(record), 0)
            log += record
        self.log, self.units = bytes(log), bytes(units)
        self.shadow = mmap.mmap(-1, len(log))

    def read(self, twin: Any, at: int = 0, most: int = 32, **more: int) -> tuple[object, ...]:
        log, units = self.log, self.units
        residency = twin.Residency(self.shadow)
        reader = twin.PageReader(1 << 30, 32, 1 << 22, 8, 1 << 16, True)
        result: tuple[object, ...] = reader.read(
            units,
            at,
            len(units),
            at // 20,
            b"T",
            0,
            log,
            0,
            len(log),
            1 << 30,
            0,
            len(log),
            most,
            0,
            0,
            None,
            (),
            residency,
            more.get("written_from", len(log)),
            more.get("loaded", 0),
        )
        return result


@twins
def test_records_that_are_close_are_one_range(twin: Any) -> None:
    queue = Queue(8, 1000)
    _, at, offset, count, total, status, _, _, needed, cold = queue.read(twin, most=4)
    assert (at, offset, count, total, status, needed) == (0, 0, 0, 0, -1, 0)
    end = int.from_bytes(queue.units[60:68], "big") + int.from_bytes(queue.units[68:72], "big")
    assert cold == (4 * 20, [(0, end, 0)])


@twins
def test_records_that_are_far_from_each_other_are_ranges_of_their_own(twin: Any) -> None:
    queue = Queue(3, 300_000)
    cold = queue.read(twin)[-1]
    places = [int.from_bytes(queue.units[at : at + 8], "big") for at in (0, 20, 40)]
    size = int.from_bytes(queue.units[8:12], "big")
    assert cold == (60, [(place, place + size, 20 * number) for number, place in enumerate(places)])


@twins
def test_a_page_is_read_as_far_as_it_was_loaded_and_then_continues(twin: Any) -> None:
    queue = Queue(8, 1000)
    records, at, offset, count, total, status, _, _, needed, cold = queue.read(twin, loaded=3 * 20)
    assert (at, offset, count, status, cold) == (3 * 20, 3, 3, 0, None)
    assert isinstance(records, bytes)
    assert total == len(records)
    assert needed == int.from_bytes(queue.units[60:68], "big")
    for page in range(0, len(queue.shadow), PAGE):
        queue.shadow[page] = 1
    assert queue.read(twin)[1:5] == (8 * 20, 8, 8, len(queue.log) // 2), "all of it is in memory"


@twins
def test_what_this_process_wrote_last_is_taken_to_be_in_memory(twin: Any) -> None:
    queue = Queue(8, 1000)
    assert queue.read(twin, written_from=0)[3] == 8
    assert queue.read(twin, written_from=1)[3] == 0
