"""Offsets of a stream: as Spark keeps them in its checkpoint, and how far one micro-batch goes.

Spark compares offsets as text, so they are always written in the same order: `{topic: {broker: {queue id: offset}}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.pipeline.ranges import Queue

Offsets = dict[Queue, int]
Size = Callable[[Queue, int, int], int]

_TRIES = 8


def to_json(offsets: Mapping[Queue, int]) -> dict[str, Any]:
    """The offsets as nested dictionaries, sorted by topic, broker and queue id."""
    document: dict[str, Any] = {}
    for (topic, broker, queue_id), offset in sorted(offsets.items()):
        document.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return document


def from_json(document: Mapping[str, Any]) -> Offsets:
    """The offsets that `to_json` wrote."""
    return {
        Queue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in document.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def backlog(first: Mapping[Queue, int], last: Mapping[Queue, int]) -> int:
    """How many offsets lie between."""
    return sum(max(last[queue] - first.get(queue, last[queue]), 0) for queue in last)


def within_count(first: Mapping[Queue, int], last: Mapping[Queue, int], most: int) -> Offsets:
    """The end of a micro-batch of at most `most` offsets: each queue gets its share of them, by what waits in it."""
    waiting = {queue: max(last[queue] - first.get(queue, last[queue]), 0) for queue in sorted(last)}
    total = sum(waiting.values())
    if total <= most:
        return dict(last)
    shares = {queue: count * most // total for queue, count in waiting.items()}
    left = most - sum(shares.values())
    for queue in sorted(waiting, key=lambda each: (-(waiting[each] * most % total), each)):
        if left and shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: last[queue] - waiting[queue] + share for queue, share in shares.items()}


def within_bytes(first: Mapping[Queue, int], last: Mapping[Queue, int], most: int, size: Size) -> Offsets:
    """The end of a micro-batch of at most `most` bytes, as far as sizes are known, and of one message at least."""
    tries = 0
    while (count := backlog(first, last)) > 1:
        total = sum(size(queue, first.get(queue, stop), stop) for queue, stop in last.items())
        if total <= most:
            break
        # What the share of the bytes says is near the truth, unless sizes differ much; halving always gets there.
        fitting = min(count * most // total, count - 1) if tries < _TRIES else count // 2
        last = within_count(first, last, max(fitting, 1))
        tries += 1
    return dict(last)
