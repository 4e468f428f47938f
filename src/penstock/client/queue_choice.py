"""Which queue a message goes to: the next one in turn, round brokers that failed lately, or always the one of its key.

Pure but for the turn and the memory of failures. Belongs to the loop's thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.format import kernels
from penstock.protocol.bodies.queues import MessageQueue

_FIRST_DETOUR_S: Final = 1.0
_LONGEST_DETOUR_S: Final = 30.0


class QueueChoice:
    """Turns of one producer, by topic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: dict[str, int] = {}
        self._avoided: dict[str, tuple[float, float]] = {}
        """Brokers that failed: until when they are avoided, and how long that was."""

    def next(self, queues: Sequence[MessageQueue], but: str = "") -> MessageQueue:
        """The next queue of a topic, at another broker than `but` and at none that failed lately, if there is one."""
        topic = queues[0].topic
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        self._turns[topic] = turn + 1
        if not but and not self._avoided:
            return queues[turn % len(queues)]
        in_turn = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        elsewhere = [queue for queue in in_turn if queue.broker_name != but] or in_turn
        return next((queue for queue in elsewhere if not self._is_avoided(queue.broker_name)), elsewhere[0])

    def failed(self, broker_name: str) -> None:
        """Has others take the messages for a while: a second, then twice as long each time."""
        _, before = self._avoided.get(broker_name, (0.0, 0.0))
        detour = min(max(_FIRST_DETOUR_S, 2 * before), _LONGEST_DETOUR_S)
        self._avoided[broker_name] = (self._clock() + detour, detour)

    def worked(self, broker_name: str) -> None:
        self._avoided.pop(broker_name, None)

    def _is_avoided(self, broker_name: str) -> bool:
        until, _ = self._avoided.get(broker_name, (0.0, 0.0))
        return self._clock() < until


def queue_of_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a sharding key: the one that Java's SelectMessageQueueByHash chooses for the same text."""
    hashed = kernels.java_hash(key)
    return queues[abs(hashed) % len(queues)]
