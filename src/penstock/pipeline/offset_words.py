"""The texts of `startingOffsets`, `endingOffsets` and their siblings by time, with Kafka's words and numbers.

    earliest, latest                     everywhere
    group:NAME                           where a consumer group goes on (starting only)
    {"orders": {"0": 12, "1": -2}}       by topic and queue; -2 is earliest, -1 is latest
    {"orders": {"broker-a": {"0": 12}}}  by topic, broker and queue, where there are several brokers or stores

This module reads the texts; what they mean for the queues that are there is decided in `ranges`.
"""

from __future__ import annotations

from typing import Any

import msgspec

EARLIEST = -2
LATEST = -1

ANY_BROKER = ""
"""Stands for whichever broker has the queue."""


class Wish(msgspec.Struct, frozen=True):
    """What was asked for, before it is known what is there."""

    everywhere: int | None = None
    """EARLIEST or LATEST for all queues."""
    group: str = ""
    by_queue: dict[tuple[str, str, int], int] = {}


def parse_offsets(value: str, *, starting: bool) -> Wish:
    """Raises ValueError with what is allowed."""
    lowered = value.lower()
    if lowered == "earliest" and starting:
        return Wish(EARLIEST)
    if lowered == "latest":
        return Wish(LATEST)
    if lowered.startswith("group:") and starting:
        if not value[6:].strip():
            raise ValueError("the name of the group is missing behind 'group:'")
        return Wish(group=value[6:].strip())
    if value.startswith("{"):
        numbers = _by_queue(value)
        for (topic, _, queue_id), number in numbers.items():
            if number < (EARLIEST if starting else LATEST) or (not starting and number == EARLIEST):
                raise ValueError(f"{topic} queue {queue_id}: {number} is no offset; -2 is earliest, -1 is latest")
        return Wish(by_queue=numbers)
    allowed = "earliest, latest, group:NAME" if starting else "latest"
    raise ValueError(f'it must be {allowed}, or JSON such as {{"orders": {{"0": 12}}}}')


def parse_times(value: str) -> Wish:
    """Milliseconds by topic, broker and queue."""
    if not value.startswith("{"):
        raise ValueError('it must be JSON such as {"orders": {"0": 1700000000000}}')
    numbers = _by_queue(value)
    for (topic, _, queue_id), number in numbers.items():
        if number < 0:
            raise ValueError(f"{topic} queue {queue_id}: {number} is no time in milliseconds")
    return Wish(by_queue=numbers)


def parse_assign(value: str) -> tuple[tuple[str, str, int], ...]:
    """`{"orders": [0, 1]}`, or `{"orders": {"broker-a": [0, 1]}}`."""
    found: list[tuple[str, str, int]] = []
    for topic, inner in _object(value).items():
        by_broker = inner if isinstance(inner, dict) else {ANY_BROKER: inner}
        for broker, queues in by_broker.items():
            if not isinstance(queues, list) or not all(type(each) is int and each >= 0 for each in queues):
                raise ValueError('it must be JSON such as {"orders": [0, 1]}')
            found += [(topic, broker, queue_id) for queue_id in queues]
    if not found:
        raise ValueError("it must name at least one queue")
    if len(set(found)) != len(found):
        raise ValueError("a queue is there twice")
    return tuple(found)


def _by_queue(value: str) -> dict[tuple[str, str, int], int]:
    found: dict[tuple[str, str, int], int] = {}
    for topic, inner in _object(value).items():
        if not isinstance(inner, dict) or not inner:
            raise ValueError(f'topic {topic}: it must have numbers by queue, as in {{"{topic}": {{"0": 12}}}}')
        by_broker = inner if any(isinstance(each, dict) for each in inner.values()) else {ANY_BROKER: inner}
        for broker, queues in by_broker.items():
            if not isinstance(queues, dict):
                raise ValueError(f"topic {topic}: brokers and queues are mixed")
            for queue_id, number in queues.items():
                found[topic, broker, _queue_id(topic, queue_id)] = _number(topic, queue_id, number)
    if not found:
        raise ValueError("it must name at least one queue")
    return found


def _object(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"it is no JSON object ({error})") from None


def _queue_id(topic: str, queue_id: str) -> int:
    if not (queue_id.isascii() and queue_id.isdecimal()):
        raise ValueError(f"topic {topic}: '{queue_id}' is no queue id")
    return int(queue_id)


def _number(topic: str, queue_id: str, number: Any) -> int:
    if type(number) is not int or number >= 1 << 63:
        raise ValueError(f"topic {topic} queue {queue_id}: {number!r} is no whole number")
    return number
