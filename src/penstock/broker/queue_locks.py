"""Queue locks for ordered consumption.

A lock gives a queue to one client of a group for 60 seconds. The client renews the lock by locking again. A lock
survives the client's connection on purpose: a client that reconnects may still be processing messages, and no other
client may consume them meanwhile. Locks are not on disk: after a restart of the broker, clients lock again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.broker.core import Client, Operation
from penstock.protocol.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue

LOCK_SECONDS = 60.0


class QueueLocks:
    """Lock owners by group and queue. Use it from the loop's thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owners: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
        """For each lock, the owner's client id and the time of expiry, in seconds of the clock."""

    def operations(self) -> tuple[Operation, ...]:
        return Operation("lock queues", self._lock), Operation("unlock queues", self._unlock)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Returns the id of the client that holds the lock now; None if there is none."""
        client_id, until = self._owners.get((group, queue), ("", 0.0))
        return client_id if self._clock() < until else None

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Locks or renews the queues that no other client holds. Returns the queues that the client holds now."""
        held = [queue for queue in queues if self.owner(group, queue) in (None, client_id)]
        until = self._clock() + LOCK_SECONDS
        self._owners.update({(group, queue): (client_id, until) for queue in held})
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Releases the given queues that the client holds, and ignores the others."""
        for queue in queues:
            if self.owner(group, queue) == client_id:
                del self._owners[group, queue]

    def drop_expired(self) -> None:
        """Drops expired locks, so that the table does not grow."""
        now = self._clock()
        self._owners = {key: owner for key, owner in self._owners.items() if owner[1] > now}

    def _lock(self, client: Client, request: LockBatchRequestBody) -> LockBatchResponseBody:
        return LockBatchResponseBody(locked=self.lock(request.consumer_group, request.client_id, request.mq_set))

    def _unlock(self, client: Client, request: LockBatchRequestBody) -> None:
        self.unlock(request.consumer_group, request.client_id, request.mq_set)
