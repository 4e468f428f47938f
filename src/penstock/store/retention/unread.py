"""Who has not read what would go: exact, from the queues' units and the groups' offsets.

RocketMQ deletes without asking consumers. A group that has an offset for any queue of a topic counts as a reader of all
of its queues; where it has none for a queue, it has read nothing there. Delayed messages that are not delivered yet
have the delivery for a reader.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.format.constants import SCHEDULE_TOPIC
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues

DELIVERY = "(delivery of delayed messages)"
"""Stands for a group: no group may be called so."""
_UNITS_AT_ONCE = 65_536

GroupOffsets = Mapping[tuple[str, str], Mapping[int, int]]
"""By (topic, group), by queue id: the next queue offset that the group will read."""


class Unread(msgspec.Struct, frozen=True):
    """Messages of one queue that would go before a group has read them."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    """Where the group will go on, -1 if it has no offset for this queue."""
    messages: int
    size: int
    """Bytes of their records."""


def with_delivery(offsets: GroupOffsets, delay_offsets: Mapping[int, int]) -> GroupOffsets:
    """The groups' offsets, and those of the delivery: level n reads queue n - 1 of the schedule topic."""
    levels = {level - 1: offset for level, offset in delay_offsets.items()}
    return {**offsets, (SCHEDULE_TOPIC, DELIVERY): levels} if levels else offsets


def find_unread(queues: ConsumeQueues, offsets: GroupOffsets, log_offset: int) -> list[Unread]:
    """What each group has not read of the messages before a physical offset, the most bytes first."""
    by_topic: dict[str, list[tuple[str, Mapping[int, int]]]] = {}
    for (topic, group), by_queue in offsets.items():
        by_topic.setdefault(topic, []).append((group, by_queue))
    found: list[Unread] = []
    for queue in queues:
        for group, by_queue in by_topic.get(queue.topic, ()):
            offset = by_queue.get(queue.queue_id, -1)
            messages, size = count_before(queue, offset, log_offset)
            if messages:
                found.append(Unread(group, queue.topic, queue.queue_id, offset, messages, size))
    return sorted(found, key=lambda each: (-each.size, each.group, each.topic, each.queue_id))


def count_before(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> tuple[int, int]:
    """(messages, bytes) from a queue offset on whose records lie before a physical offset."""
    place, messages, size = max(queue_offset, queue.min_offset), 0, 0
    while (units := queue.page(place, _UNITS_AT_ONCE)) is not None:
        real = units[units["size"] != NO_RECORD_SIZE]
        before = real[real["offset"] < log_offset]
        messages += len(before)
        size += int(before["size"].sum(dtype="i8"))
        if len(before) < len(real):
            break
        place += len(units)
    return messages, size
