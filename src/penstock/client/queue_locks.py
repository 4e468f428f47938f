"""A client's locks on the queues that it consumes in order: lock (request code 41) and unlock (42).

The broker grants a queue's lock to one client of a group for 60 seconds. This client treats a lock as valid for 30
seconds and renews it every 20 seconds. So a client that cannot renew a lock stops before the broker grants the lock to
another client. A lost connection drops the locks of that broker, because a restarted broker does not remember them. Not
thread-safe: use it from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from penstock.client.client_instance import ClientInstance
from penstock.errors import PenstockError
from penstock.protocol.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from penstock.protocol.codes import RequestCode

log = logging.getLogger("penstock.client")

RENEW_S: Final = 20.0
_VALID_S: Final = 30.0


class ClientQueueLocks:
    """The queue locks of one client of a consumer group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._held: dict[MessageQueue, float] = {}
        """The time at which each lock expires for this client, in seconds on the loop's clock."""
        instance.on_disconnect.append(self._drop_locks)

    def holds(self, queue: MessageQueue) -> bool:
        return self._held.get(queue, 0.0) > asyncio.get_running_loop().time()

    async def lock(self, queues: Iterable[MessageQueue]) -> None:
        """Acquires or renews locks. Call `holds` to see which were granted."""
        await asyncio.gather(*(self._lock(name, some) for name, some in _by_broker(queues).items()))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Releases the locks that this client holds."""
        held = [queue for queue in queues if self._held.pop(queue, None) is not None]
        await asyncio.gather(*(self._unlock(name, some) for name, some in _by_broker(held).items()))

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        started = asyncio.get_running_loop().time()
        try:
            reply = await self._instance.request(
                self._instance.routes.address(broker_name), RequestCode.LOCK_BATCH_MQ, body=self._body(queues)
            )
            granted = set(LockBatchResponseBody.from_bytes(reply.body).locked)
        except PenstockError as error:
            log.warning("cannot lock queues of broker %s: %s", broker_name, error)
            return  # keeps the locks that it holds until they expire
        for queue in queues:
            if queue in granted:
                self._held[queue] = started + _VALID_S
            else:
                self._held.pop(queue, None)

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        try:
            address = self._instance.routes.address(broker_name)
            await self._instance.request(address, RequestCode.UNLOCK_BATCH_MQ, body=self._body(queues))
        except PenstockError as error:
            log.info("cannot unlock queues of broker %s, they expire within a minute: %s", broker_name, error)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchRequestBody(
            consumer_group=self._group, client_id=self._instance.client_id, mq_set=queues
        ).to_bytes()

    def _drop_locks(self, address: str) -> None:
        names = {name for name, ids in self._instance.routes.brokers().items() if address in ids.values()}
        self._held = {queue: until for queue, until in self._held.items() if queue.broker_name not in names}


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    by_broker: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        by_broker[queue.broker_name].append(queue)
    return by_broker
