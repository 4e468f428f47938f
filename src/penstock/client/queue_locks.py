"""Locks of queues that are consumed in order: 41 and 42.

A lock is the broker's word that no other client of the group consumes the queue. It lives for 60 seconds there and
counts for 30 here, so that a client that cannot renew it stops before the broker gives it to somebody else; renewed
every 20. A connection that is lost takes its broker's locks with it: the broker may have been restarted, and a broker
that was has forgotten them. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from penstock.client.instance import ClientInstance
from penstock.errors import PenstockError
from penstock.protocol.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from penstock.protocol.codes import RequestCode

log = logging.getLogger("penstock.client")

RENEW_S: Final = 20.0
_COUNTS_S: Final = 30.0


class ClientQueueLocks:
    """The locks of one client of a group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._held: dict[MessageQueue, float] = {}
        """Until when each counts, on the loop's clock."""
        instance.on_disconnect.append(self._lost)

    def holds(self, queue: MessageQueue) -> bool:
        return self._held.get(queue, 0.0) > asyncio.get_running_loop().time()

    async def lock(self, queues: Iterable[MessageQueue]) -> None:
        """Takes or renews locks; `holds` says which of them we got."""
        await asyncio.gather(*(self._lock(name, some) for name, some in _by_broker(queues).items()))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Gives up those that we hold."""
        held = [queue for queue in queues if self._held.pop(queue, None) is not None]
        await asyncio.gather(*(self._unlock(name, some) for name, some in _by_broker(held).items()))

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            reply = await self._instance.ask(
                self._instance.routes.address(broker_name), RequestCode.LOCK_BATCH_MQ, body=self._body(queues)
            )
            granted = set(LockBatchResponseBody.from_bytes(reply.body).locked)
        except PenstockError as error:
            log.warning("queues of broker %s cannot be locked: %s", broker_name, error)
            return  # what we hold counts until its time is over
        for queue in queues:
            if queue in granted:
                self._held[queue] = begun + _COUNTS_S
            else:
                self._held.pop(queue, None)

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        try:
            address = self._instance.routes.address(broker_name)
            await self._instance.ask(address, RequestCode.UNLOCK_BATCH_MQ, body=self._body(queues))
        except PenstockError as error:
            log.info("queues of broker %s stay locked for a minute: %s", broker_name, error)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchRequestBody(
            consumer_group=self._group, client_id=self._instance.client_id, mq_set=queues
        ).to_bytes()

    def _lost(self, address: str) -> None:
        names = {name for name, ids in self._instance.routes.brokers().items() if address in ids.values()}
        self._held = {queue: until for queue, until in self._held.items() if queue.broker_name not in names}


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found
