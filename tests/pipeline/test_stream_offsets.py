"""Offsets of a stream: their text, and how far a micro-batch goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.offset_ranges import Queue
from penstock.pipeline.stream_source import Offsets, backlog, from_json, to_json, within_bytes, within_count

QUEUES = st.builds(Queue, st.sampled_from("abAB"), st.sampled_from(["", "x", "y"]), st.integers(0, 12))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=12)
RANGES = st.dictionaries(QUEUES, st.tuples(st.integers(0, 10**6), st.integers(0, 200)), min_size=1, max_size=8).map(
    lambda drawn: (
        {queue: start for queue, (start, _) in drawn.items()},
        {queue: start + count for queue, (start, count) in drawn.items()},
    )
)


def shuffled(offsets: Offsets) -> Offsets:
    """The same in the opposite order."""
    return dict(reversed(offsets.items()))


@given(OFFSETS)
def test_offsets_come_back_from_their_text_and_have_one_text_only(offsets: Offsets) -> None:
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(shuffled(offsets))) == text
    keys = [tuple(queue) for queue in from_json(json.loads(text))]
    assert keys == sorted(keys), "queue 2 comes before queue 10"


@given(RANGES, st.integers(1, 500))
def test_a_batch_by_count_takes_as_many_as_it_may_and_no_more(ranges: tuple[Offsets, Offsets], most: int) -> None:
    first, last = ranges
    end = within_count(first, last, most)
    assert end.keys() == last.keys()
    assert all(first[queue] <= end[queue] <= last[queue] for queue in last)
    assert backlog(first, end) == min(most, backlog(first, last))
    assert within_count(shuffled(first), shuffled(last), most) == end


@given(RANGES, st.integers(1, 100))
def test_batches_by_count_get_to_the_end(ranges: tuple[Offsets, Offsets], most: int) -> None:
    first, last = ranges
    rounds = 0
    while first != last:
        first = within_count(first, last, most)
        rounds += 1
    assert rounds == -(-backlog(*ranges) // most)


@given(RANGES, st.integers(1, 3000), st.integers(0, 2**32 - 1))
def test_a_batch_by_bytes_stays_within_them_or_is_one_message(
    ranges: tuple[Offsets, Offsets], most: int, seed: int
) -> None:
    """Sizes as uneven as they come: most messages are small, some are larger than the limit."""
    first, last = ranges

    def one(queue: Queue, number: int) -> int:
        drawn = hash((queue.queue_id, number, seed)) % 1000
        return 5000 if drawn > 990 else drawn % 100 + 1

    def size(queue: Queue, start: int, stop: int) -> int:
        return sum(one(queue, number) for number in range(start, stop))

    end = within_bytes(first, last, most, size)
    assert end.keys() == last.keys()
    assert all(first[queue] <= end[queue] <= last[queue] for queue in last)
    taken = sum(size(queue, first[queue], stop) for queue, stop in end.items())
    assert taken <= most or backlog(first, end) == 1
    assert backlog(first, end) > 0 or not backlog(first, last), "it goes on"
    assert within_bytes(shuffled(first), shuffled(last), most, size) == end


def test_a_queue_that_is_new_counts_from_where_it_is_said_to_begin() -> None:
    old, new = Queue("a", "", 0), Queue("a", "", 1)
    assert backlog({old: 5}, {old: 8, new: 3}) == 3
    assert backlog({old: 5, new: 0}, {old: 8, new: 3}) == 6
    assert backlog({old: 9}, {old: 8}) == 0, "a queue that was cut off has nothing waiting"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_quiet_queue_is_not_forgotten_beside_a_busy_one(most: int) -> None:
    busy, quiet = Queue("a", "", 0), Queue("b", "", 0)
    first, last = {busy: 0, quiet: 0}, {busy: 1000, quiet: 1}
    for _ in range(1001):
        first = within_count(first, last, most)
    assert first == last


@pytest.mark.parametrize("most", [2, 1000])
def test_a_quiet_queue_does_not_wait_for_one_that_always_has_more(most: int) -> None:
    busy, quiet = Queue("a", "", 0), Queue("b", "", 0)
    first, end = {busy: 0, quiet: 0}, 10_000_000
    for number in range(3):
        first = within_count(first, {busy: end, quiet: 3}, most)
        end += most
        assert first[quiet] == number + 1, "one a batch, as few as there are"
