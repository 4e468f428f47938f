"""How ranges are cut into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.offset_ranges import OffsetRange, Queue, TaskLimits, pack_ranges, split_ranges, task_size_for

SPANS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 10**6)), min_size=0, max_size=8
).map(
    lambda drawn: [
        OffsetRange(Queue("t", "b", number), start, start + count, size if count else 0)
        for number, (start, count, size) in enumerate(drawn)
    ]
)
LIMITS = st.builds(TaskLimits, st.integers(1, 10**6), st.none() | st.integers(1, 400), st.none() | st.integers(1, 60))


def offsets(spans: list[OffsetRange]) -> list[tuple[Queue, int]]:
    return [(span.queue, offset) for span in spans for offset in range(span.start, span.stop)]


@given(SPANS, LIMITS)
def test_pieces_hold_everything_once_and_in_order(spans: list[OffsetRange], limits: TaskLimits) -> None:
    pieces = split_ranges(spans, limits)
    assert offsets(pieces) == offsets(spans)
    assert all(piece.count for piece in pieces)
    assert split_ranges(spans, limits) == pieces, "a batch that is run again has the same tasks"


@given(SPANS, LIMITS)
def test_pieces_are_no_larger_than_they_may_be(spans: list[OffsetRange], limits: TaskLimits) -> None:
    by_queue = {span.queue: span for span in spans}
    for piece in split_ranges(spans, limits):
        assert limits.max_records is None or piece.count <= limits.max_records
        whole = by_queue[piece.queue]
        one = -(-whole.size // whole.count)  # sizes are spread evenly: a piece may be off by one message
        assert piece.size <= limits.max_bytes + one or piece.count == 1


@given(SPANS, LIMITS)
def test_there_are_as_many_pieces_as_asked_for_if_there_are_as_many_offsets(
    spans: list[OffsetRange], limits: TaskLimits
) -> None:
    if limits.min_tasks is not None:
        assert len(split_ranges(spans, limits)) >= min(limits.min_tasks, sum(span.count for span in spans))


def test_the_largest_span_is_cut_first() -> None:
    small, large = OffsetRange(Queue("t", "b", 0), 0, 10, 100), OffsetRange(Queue("t", "b", 1), 0, 10, 1000)
    pieces = split_ranges([small, large], TaskLimits(1 << 20, min_tasks=4))
    assert [piece.queue.queue_id for piece in pieces] == [0, 1, 1, 1]
    assert [piece.count for piece in pieces[1:]] == [3, 3, 4]


def test_nothing_makes_no_pieces() -> None:
    empty = OffsetRange(Queue("t", "b", 0), 7, 7)
    assert split_ranges([], TaskLimits(1, min_tasks=5)) == split_ranges([empty], TaskLimits(1, min_tasks=5)) == []
    assert pack_ranges([], 100) == []


@given(SPANS, st.integers(1, 10**6))
def test_packed_spans_stay_in_order_and_within_the_bytes(spans: list[OffsetRange], max_bytes: int) -> None:
    groups = pack_ranges(spans, max_bytes)
    assert [span for group in groups for span in group] == spans
    assert all(groups)
    for group in groups:
        assert len(group) == 1 or sum(span.size for span in group) <= max_bytes


def tasks_for(queues: int, size: int, max_bytes: int = 128 << 20) -> int:
    """The number of tasks that read some queues of this many bytes each."""
    spans = [OffsetRange(Queue("t", "b", number), 0, 1000, size) for number in range(queues)]
    task_size = task_size_for(queues * size, max_bytes)
    return len(pack_ranges(split_ranges(spans, TaskLimits(task_size)), task_size))


def test_a_small_read_is_one_task_however_many_queues_it_has() -> None:
    assert tasks_for(16, 1000) == 1
    assert tasks_for(1000, 8000) == 1
    assert tasks_for(1, 8 << 20) == 1


def test_a_large_read_keeps_many_workers_busy_though_it_is_one_queue() -> None:
    assert tasks_for(1, 256 << 20) == 16
    assert 16 <= tasks_for(1000, 1 << 20) <= 20
    assert tasks_for(1, 64 << 20) == 8
    assert tasks_for(1, 16 << 30) == 128, "no task reads more than its limit"
    assert tasks_for(1, 10 << 20, max_bytes=1 << 20) == 10, "a limit that is given counts"
