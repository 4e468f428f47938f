"""From options to offsets, by Kafka's rules, over queues whose bounds, times and groups are given."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.stores import is_one_sentence

from penstock.errors import BadSettings, DataLost, PenstockError
from penstock.pipeline.offset_ranges import OffsetRange, Queue, ReadTask
from penstock.pipeline.options import EARLIEST, LATEST, Options
from penstock.pipeline.scan_plan import Offsets, check_range, choose_queues, end_offsets, spans_between, start_offsets
from penstock.pipeline.store_source import log_queue

A0, A1 = Queue("orders", "a", 0), Queue("orders", "a", 1)
B0 = Queue("orders", "b", 0)
X0 = Queue("other", "a", 0)


class Given:
    """A place of which everything is said beforehand. A message is stored each second, from 0 on."""

    name = "/somewhere"

    def __init__(self, bounds: dict[Queue, tuple[int, int]]) -> None:
        self._bounds = bounds
        self.groups: dict[tuple[str, Queue], int] = {}

    def refresh(self) -> None: ...

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self._bounds})

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        return sorted(queue for queue in self._bounds if queue.topic in topics or not queue.topic)

    def bounds(self, queue: Queue) -> tuple[int, int]:
        return self._bounds.get(queue, (0, 0))

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        low, high = self.bounds(queue)
        return min(max(-(-timestamp // 1000), low), high)

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self.groups.get((group, queue))

    def size(self, queue: Queue, start: int, stop: int) -> int:
        return 10 * (stop - start)

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        return []

    def close(self) -> None: ...


@pytest.fixture
def source() -> Given:
    return Given({A0: (10, 20), A1: (0, 5), B0: (0, 0), X0: (3, 9)})


def options(**given: str) -> Options:
    return Options.read({"path": "/somewhere", **given})


def refused(kind: type[PenstockError], act: object) -> str:
    with pytest.raises(kind) as caught:
        act()  # type: ignore[operator]
    assert is_one_sentence(str(caught.value))
    return str(caught.value)


# -- which queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "queues"),
    [
        ({"subscribe": "orders"}, [A0, A1, B0]),
        ({"subscribe": "other,orders"}, [A0, A1, B0, X0]),
        ({"topic": "other"}, [X0]),
        ({"subscribePattern": "o.*"}, [A0, A1, B0, X0]),
        ({"subscribePattern": "order"}, []),
        ({"assign": '{"orders": [0]}'}, [A0, B0]),
        ({"assign": '{"orders": {"a": [1, 0]}, "other": [0]}'}, [A0, A1, X0]),
    ],
)
def test_queues_are_chosen_by_topic_pattern_or_one_by_one(
    source: Given, given: dict[str, str], queues: list[Queue]
) -> None:
    assert choose_queues(source, options(**given)) == queues


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topic": "order"}, "there is no topic 'order' in /somewhere; it has orders, other"),
        ({"assign": '{"nothing": [0]}'}, "there is no topic 'nothing' in /somewhere"),
        ({"assign": '{"orders": [2]}'}, "assign: there is no queue 2 of topic 'orders'"),
        ({"assign": '{"orders": {"b": [1]}}'}, "assign: there is no queue 1 of topic 'orders' of broker b"),
    ],
)
def test_what_is_not_there_is_said_unless_a_stream_may_wait_for_it(
    source: Given, given: dict[str, str], sentence: str
) -> None:
    assert sentence in refused(BadSettings, lambda: choose_queues(source, options(**given)))
    assert choose_queues(source, options(**given), must_exist=False) == []


def test_a_long_list_of_topics_is_cut_short_in_the_sentence() -> None:
    source = Given({Queue(f"t{number:02d}", "a", 0): (0, 0) for number in range(50)})
    said = refused(BadSettings, lambda: choose_queues(source, options(topic="x")))
    assert "t19 and 30 more" in said
    assert "it has none" in refused(BadSettings, lambda: choose_queues(Given({}), options(topic="x")))


# -- from where, to where ------------------------------------------------------------------------------------------


def begin(source: Given, otherwise: int = EARLIEST, queues: Sequence[Queue] = (A0, A1), **given: str) -> Offsets:
    return start_offsets(source, queues, options(topic="orders", **given), otherwise=otherwise)


def end(source: Given, queues: Sequence[Queue] = (A0, A1), **given: str) -> Offsets:
    return end_offsets(source, queues, options(topic="orders", **given))


def test_a_batch_begins_at_the_earliest_and_a_stream_at_the_latest(source: Given) -> None:
    assert begin(source) == {A0: 10, A1: 0}
    assert begin(source, LATEST) == {A0: 20, A1: 5}
    assert begin(source, startingOffsets="latest") == {A0: 20, A1: 5}
    assert end(source) == end(source, endingOffsets="latest") == {A0: 20, A1: 5}


def test_offsets_by_queue_may_be_words_too(source: Given) -> None:
    assert begin(source, startingOffsets='{"orders": {"0": 12, "1": -2}}') == {A0: 12, A1: 0}
    assert begin(source, startingOffsets='{"orders": {"a": {"0": -1, "1": 3}}}') == {A0: 20, A1: 3}
    assert end(source, endingOffsets='{"orders": {"0": 15, "1": -1}}') == {A0: 15, A1: 5}


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_by_queue_must_name_every_queue_and_no_other(source: Given, name: str) -> None:
    resolve = begin if name == "startingOffsets" else end
    few = {name: '{"orders": {"0": 12}}'}
    assert f"{name} has no entry for topic orders queue 1 (broker a); it must name every queue" in refused(
        BadSettings, lambda: resolve(source, **few)
    )
    more = {name: '{"orders": {"0": 12, "1": 1, "2": 1}}'}
    assert f"{name} names topic orders queue 2, which is not read here" in refused(
        BadSettings, lambda: resolve(source, **more)
    )


def test_a_time_is_the_first_message_at_or_after_it(source: Given) -> None:
    assert begin(source, startingTimestamp="4000") == {A0: 10, A1: 4}
    assert begin(source, startingTimestamp="3001") == {A0: 10, A1: 4}
    assert end(source, endingTimestamp="15000") == {A0: 15, A1: 5}
    by_queue = '{"orders": {"0": 15000, "1": 2000}}'
    assert begin(source, startingOffsetsByTimestamp=by_queue) == {A0: 15, A1: 2}
    assert end(source, endingOffsetsByTimestamp=by_queue) == {A0: 15, A1: 2}


def test_a_time_goes_before_offsets(source: Given) -> None:
    assert begin(source, startingTimestamp="4000", startingOffsets="latest") == {A0: 10, A1: 4}
    assert end(source, endingTimestamp="4000", endingOffsets="latest") == {A0: 10, A1: 4}


def test_a_time_behind_all_messages_is_an_error_or_the_end(source: Given) -> None:
    for given in ({"startingTimestamp": "6000"}, {"startingOffsetsByTimestamp": '{"orders": {"0": 1, "1": 6000}}'}):
        said = refused(BadSettings, lambda given=given: begin(source, **given))
        assert "topic orders queue 1 (broker a) has no message stored at or after 6000" in said
        assert "set startingOffsetsByTimestampStrategy=latest" in said
        assert begin(source, startingOffsetsByTimestampStrategy="latest", **given) == {A0: 10, A1: 5}


def test_a_group_goes_on_where_it_was_and_at_the_beginning_of_what_it_never_read(source: Given) -> None:
    source.groups["billing", A0] = 17
    assert begin(source, startingOffsets="group:billing") == {A0: 17, A1: 0}
    said = refused(BadSettings, lambda: begin(source, startingOffsets="group:idle"))
    assert "group 'idle' has no committed offsets here" in said


@pytest.mark.parametrize(
    ("given", "starting"),
    [
        ({"startingOffsets": '{"orders": {"0": 1}}'}, True),
        ({"startingOffsets": "group:g"}, True),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 1}}'}, True),
        ({"endingOffsets": '{"orders": {"0": 1}}'}, False),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 1}}'}, False),
    ],
)
def test_the_log_goes_by_words_and_times_only(given: dict[str, str], starting: bool) -> None:
    log = log_queue("a")
    source, asked = Given({log: (4096, 9000)}), options(order="log", **given)
    said = refused(
        BadSettings,
        lambda: (
            start_offsets(source, [log], asked, otherwise=EARLIEST) if starting else end_offsets(source, [log], asked)
        ),
    )
    assert "works by queue and cannot be combined with order=log; use earliest, latest or a time" in said


# -- what is gone --------------------------------------------------------------------------------------------------

GOES_ON = {"failOnDataLoss": "false"}


@pytest.mark.parametrize(
    ("asked", "there", "gone"),
    [
        ((5, 15), (10, 15), "messages 5 to 9 are gone (deleted by retention; 10 to 19 are there)"),
        ((0, 4), (10, 10), "messages 0 to 3 are gone (deleted by retention"),
        ((12, 25), (12, 20), "messages 20 to 24 are gone (truncated, or this is a different store"),
        ((30, 40), (20, 20), "messages 30 to 39 are gone (truncated"),
        ((30, 20), (20, 20), "messages 20 to 29 are gone (truncated"),
        ((30, 30), (20, 20), "messages 20 to 29 are gone (truncated"),
        ((5, 25), (10, 20), "messages 5 to 9 are gone (deleted by retention"),
    ],
)
def test_what_is_gone_is_an_error_that_names_the_range_and_the_option(
    source: Given, asked: tuple[int, int], there: tuple[int, int], gone: str
) -> None:
    said = refused(DataLost, lambda: check_range(source, A0, *asked, options(topic="orders")))
    assert said.startswith("topic orders queue 0 (broker a): ")
    assert gone in said
    assert "set failOnDataLoss=false to continue with what is left" in said
    assert check_range(source, A0, *asked, options(topic="orders", **GOES_ON)) == there


@pytest.mark.parametrize("asked", [(10, 20), (15, 15), (3, 3), (20, 20), (15, 12)])
def test_a_range_that_is_there_or_empty_is_no_loss(source: Given, asked: tuple[int, int]) -> None:
    start, stop = check_range(source, A0, *asked, options(topic="orders"))
    assert (start, stop) == (asked[0], max(asked))


def test_bytes_of_a_log_are_called_bytes() -> None:
    log = log_queue("a")
    said = refused(DataLost, lambda: check_range(Given({log: (4096, 9000)}), log, 0, 9000, options(order="log")))
    assert said.startswith("the log of a: bytes 0 to 4095 are gone")


def test_spans_leave_out_what_is_empty_and_know_their_sizes(source: Given) -> None:
    first, last = {A0: 12, A1: 5, X0: 9}, {X0: 9, A0: 20, A1: 5, B0: 0}
    assert spans_between(source, first, last, options(topic="orders")) == [OffsetRange(A0, 12, 20, 80)]


def test_a_queue_that_is_gone_altogether_is_a_loss(source: Given) -> None:
    gone = Queue("deleted", "a", 0)
    said = refused(DataLost, lambda: spans_between(source, {gone: 5}, {gone: 9}, options(topic="orders")))
    assert said.startswith("topic deleted queue 0 (broker a): messages 5 to 8 are gone")
    assert "nothing is there" in said
    assert spans_between(source, {gone: 5}, {gone: 9}, options(topic="orders", **GOES_ON)) == []
