"""OFFSET_MOVED_EVENT: a record of each time a consumer was sent to another offset than the one it asked for.

Whoever watches that topic learns that a group lost its place: its messages were deleted, or its offset was never
right. The record is RocketMQ's: JSON with the group, the queue and both offsets, its tag and key the group's name. A
consumer that asks again and again would fill the log with them, so there is one a minute for a queue of a group, and
so many for all. What was told is not on disk, and after a restart may be told again. Belongs to the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.settings import SettingsInForce
from penstock.broker.system_topics import OFFSET_MOVED_TOPIC
from penstock.errors import PenstockError
from penstock.protocol.bodies.queues import MessageQueue, OffsetMovedEvent
from penstock.store.message import Message
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

SPAN_MS: Final = 60_000
MOST_IN_A_SPAN: Final = 1_000


class MovedOffsets:
    """Writes the records."""

    def __init__(self, store: MessageStore, settings: SettingsInForce, clock: Callable[[], int]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._told: set[tuple[str, str, int]] = set()
        self._told_since = 0

    def tell(self, group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
        """Notes that a group asked for one offset of a queue and was given another."""
        now = self._clock()
        if not 0 <= now - self._told_since < SPAN_MS:
            self._told.clear()
            self._told_since = now
        key = (group, topic, queue_id)
        if key in self._told or len(self._told) >= MOST_IN_A_SPAN or not self._settings.now.is_writable:
            return
        self._told.add(key)
        log.warning("%s asked for offset %d of %s queue %d, and was sent to %d", group, asked, topic, queue_id, given)
        queue = MessageQueue(broker_name=self._settings.now.broker_name, queue_id=queue_id, topic=topic)
        event = OffsetMovedEvent(consumer_group=group, message_queue=queue, offset_request=asked, offset_new=given)
        message = Message(
            OFFSET_MOVED_TOPIC,
            event.to_bytes(),
            keys=(group,),
            tags=group,
            queue_id=0,
            born_timestamp=now,
            born_host=self._store.settings.store_host,
        )
        try:
            result = self._store.append(message)
        except PenstockError as error:  # the pull is answered whatever becomes of its record
            log.warning("that is not in %s: %s", OFFSET_MOVED_TOPIC, error)
            return
        if not result.stored:
            log.warning("that is not in %s: %s", OFFSET_MOVED_TOPIC, result.reason or result.status.value)
