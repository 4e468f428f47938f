"""Tables keyed by queue: Java's form takes the fast path, other forms parse to the same values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper, TopicStatsTable

_NAMES = st.text(max_size=12) | st.sampled_from(["broker-a", '{"brokerName":"x"', "a\x01b", "null", "\\u0041", "topic"])
_QUEUES = st.builds(MessageQueue, broker_name=_NAMES, queue_id=st.integers(-(2**31), 2**31 - 1), topic=_NAMES)
_OFFSETS = st.integers(0, 2**63 - 1)
_PLACES = st.builds(OffsetWrapper, broker_offset=_OFFSETS, consumer_offset=_OFFSETS, last_timestamp=_OFFSETS)
_STATS = st.builds(ConsumeStats, offset_table=st.dictionaries(_QUEUES, _PLACES, max_size=4))
_ALL = st.builds(
    ConsumeStatsList,
    broker_addr=st.none() | _NAMES,
    consume_stats_list=st.lists(st.dictionaries(_NAMES, st.lists(_STATS, max_size=3), max_size=3), max_size=3),
)


@given(_ALL)
@settings(max_examples=150, deadline=None)
def test_whatever_was_written_is_read_by_the_fast_way_and_the_slow_one(stats: ConsumeStatsList) -> None:
    data = stats.to_bytes()
    assert ConsumeStatsList.from_bytes(data) == ConsumeStatsList._from_loose(data) == stats


def test_a_table_as_java_writes_it_takes_the_fast_way() -> None:
    data = b'{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"%RETRY%g"}:{"maxOffset":"7","minOffset":0}}}'
    found = TopicStatsTable._from_strict(data)
    assert found is not None
    [(queue, place)] = found.offset_table.items()
    assert (queue, place.max_offset) == (MessageQueue(broker_name="a", queue_id=3, topic="%RETRY%g"), 7)


@pytest.mark.parametrize(
    "data",
    [
        b'{"offsetTable":{{"topic":"t","queueId":3,"brokerName":"a"}:{"maxOffset":7}}}',
        b'{"offsetTable":{ {"brokerName":"a", "queueId":3, "topic":"t"} : {"maxOffset":7, "minOffset":null}}}',
        b'{"offsetTable":{{"brokerName":"\\u0061","queueId":3,"topic":"t"}:{"maxOffset":7}}}',
    ],
)
def test_another_order_spaces_nulls_and_escapes_are_understood_too(data: bytes) -> None:
    [(queue, place)] = TopicStatsTable.from_bytes(data).offset_table.items()
    assert (queue.broker_name, queue.queue_id, queue.topic, place.max_offset) == ("a", 3, "t", 7)


@pytest.mark.parametrize("data", [b"", b"{", b'{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"t"}:[]}}', b"[]"])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        TopicStatsTable.from_bytes(data)


def test_a_text_key_may_hold_what_we_put_between_names() -> None:
    document: Any = '{"consumeStatsList":[{"a\\u0001b":[]}]}'
    assert ConsumeStatsList.from_bytes(document.encode()).consume_stats_list == [{"a\x01b": []}]
