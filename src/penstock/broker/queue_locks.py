"""Queue locks for ordered consumption.

A lock gives a queue to one client of a group for 60 seconds. The client renews the lock by locking again. A lock
survives the client's connection on purpose: a client that reconnects may still be processing messages, and no other
client may consume them meanwhile. Locks are not on disk: after a restart of the broker, clients lock again. Their
memory has a budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.operations_as_plain_calls import Client, Operation
from penstock.protocol.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from penstock.protocol.table_memory_limits import Budget, entry_bytes

LOCK_SECONDS = 60.0
MAX_BYTES: Final = 64 << 20
MAX_BYTES_OF_CLIENT: Final = 8 << 20
"""About 12,000 locks."""


class _Lock(NamedTuple):
    client_id: str
    until: float
    """Time of expiry, in seconds of the clock."""
    client: Client
    """The connection that the lock's bytes are charged to."""
    size: int


class QueueLocks:
    """Lock owners by group and queue. Use it from the loop's thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        self.budget = Budget("queue locks", MAX_BYTES, MAX_BYTES_OF_CLIENT)

    def operations(self) -> tuple[Operation, ...]:
        return Operation("lock queues", self._lock), Operation("unlock queues", self._unlock)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Returns the id of the client that holds the lock now; None if there is none."""
        lock = self._locks.get((group, queue))
        return lock.client_id if lock is not None and self._clock() < lock.until else None

    def lock(self, client: Client, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Locks or renews the queues that no other client holds. Returns the queues that the client holds now.

        Raises Refusal if the locks would take too much memory; the queues before that are locked.
        """
        held = [queue for queue in queues if self.owner(group, queue) in (None, client_id)]
        until = self._clock() + LOCK_SECONDS
        for queue in held:
            self._drop((group, queue))
            size = entry_bytes(group, client_id, queue.topic, queue.broker_name)
            self.budget.charge(size, client)
            self._locks[group, queue] = _Lock(client_id, until, client, size)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Releases the given queues that the client holds, and ignores the others."""
        for queue in queues:
            if self.owner(group, queue) == client_id:
                self._drop((group, queue))

    def drop_expired(self) -> None:
        """Drops expired locks, so that the table does not grow."""
        now = self._clock()
        for key in [key for key, lock in self._locks.items() if lock.until <= now]:
            self._drop(key)

    def _drop(self, key: tuple[str, MessageQueue]) -> None:
        lock = self._locks.pop(key, None)
        if lock is not None:
            self.budget.charge(-lock.size, lock.client)

    def _lock(self, client: Client, request: LockBatchRequestBody) -> LockBatchResponseBody:
        return LockBatchResponseBody(
            locked=self.lock(client, request.consumer_group, request.client_id, request.mq_set)
        )

    def _unlock(self, client: Client, request: LockBatchRequestBody) -> None:
        self.unlock(request.consumer_group, request.client_id, request.mq_set)
