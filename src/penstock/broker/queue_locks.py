"""Which client of a group may consume a queue in order: codes 41 and 42.

A lock lives for 60 seconds and is renewed by locking again. It outlives its client's connection on purpose: a client
that only reconnects still has messages in its hands, and nobody else may go on before they are done. After a restart
of the broker nobody holds a lock until the next round of locking.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.protocol.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

LOCK_SECONDS = 60.0


class QueueLocks:
    """Owners by group and queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owners: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
        """The client that holds a lock, and until when."""

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self._handle_lock, RequestCode.UNLOCK_BATCH_MQ: self._handle_unlock}

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that may consume the queue now."""
        client_id, until = self._owners.get((group, queue), ("", 0.0))
        return client_id if self._clock() < until else None

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that the client holds from now on."""
        held = [queue for queue in queues if self.owner(group, queue) in (None, client_id)]
        until = self._clock() + LOCK_SECONDS
        self._owners.update({(group, queue): (client_id, until) for queue in held})
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Gives up those of the queues that the client holds."""
        for queue in queues:
            if self.owner(group, queue) == client_id:
                del self._owners[group, queue]

    def forget_expired(self) -> None:
        """Keeps the table from growing; who holds what does not change."""
        now = self._clock()
        self._owners = {key: owner for key, owner in self._owners.items() if owner[1] > now}

    def _handle_lock(self, connection: Connection, command: Command) -> Command:
        asked = LockBatchRequestBody.from_bytes(command.body)
        held = self.lock(asked.consumer_group, asked.client_id, asked.mq_set)
        return command.reply(ResponseCode.SUCCESS, body=LockBatchResponseBody(locked=held).to_bytes())

    def _handle_unlock(self, connection: Connection, command: Command) -> Command:
        asked = LockBatchRequestBody.from_bytes(command.body)
        self.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return command.reply(ResponseCode.SUCCESS)
