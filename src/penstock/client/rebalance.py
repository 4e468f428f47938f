"""Rebalancing: divides a topic's queues among the members of a group.

Brokers list the members. Every member computes the same allocation from the same lists, so the members need no
coordination. The algorithm is Java's AllocateMessageQueueAveragely, so members in both languages can share a group. A
round runs every 20 seconds, when a broker reports a change of members, when a route changes, when a removed queue is
released, and one second after an incomplete round. It is not thread-safe: use it from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from penstock.client.assigned_queues import Assignments
from penstock.client.client_instance import ClientInstance
from penstock.client.routes import Route
from penstock.errors import NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.admin import ConsumerList
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.groups import ConsumerGroupRequest
from penstock.protocol.subscription import SubscriptionData

log = logging.getLogger("penstock.client")
_PERIOD_S: Final = 20.0
_RETRY_S: Final = 1.0


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Returns one client's share, a contiguous range of queues. If the division leaves a remainder, the first clients
    get one queue more.
    """
    in_order, members = sorted(queues), sorted(client_ids)
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, remainder = divmod(len(in_order), len(members))
    begin = index * share + min(index, remainder)
    return in_order[begin : begin + share + (index < remainder)]


class Rebalance:
    """The rebalancing of one group member. With `all_queues` (broadcast), every member gets all queues."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, SubscriptionData],
        assignments: Assignments,
        *,
        all_queues: bool,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._assignments = assignments
        self._all_queues = all_queues
        self._due = asyncio.Event()
        self._reported: dict[str, str] = {}
        assignments.on_released = self.wake
        instance.routes.on_change.append(lambda _: self.wake())

    def wake(self) -> None:
        """Starts the next round now."""
        self._due.set()

    async def run(self) -> None:
        """Runs rounds until cancelled."""
        while True:
            self._due.clear()
            try:
                is_done = await self.run_once()
            except Exception:
                log.exception("rebalancing of group '%s' failed", self._group)
                is_done = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S if is_done else _RETRY_S):
                    await self._due.wait()

    async def run_once(self) -> bool:
        """Runs one round over all topics. Returns False if a topic failed or a queue could not be added yet."""
        is_done = True
        for topic in list(self._subscriptions):
            try:
                share = await self._share(await self._instance.routes.find(topic))
                is_done &= await self._assignments.update(topic, set(share))
                self._reported.pop(topic, None)
            except PenstockError as error:
                is_done = False
                self._report(topic, error)
        for queue in list(self._assignments.table):
            if queue.topic not in self._subscriptions:
                self._assignments.remove(queue)
        return is_done

    async def _share(self, route: Route) -> list[MessageQueue]:
        if self._all_queues:
            return list(route.subscribe_queues)
        members = await self._members(route)
        if self._instance.client_id not in members:
            await self._instance.send_heartbeats()
            raise NoRoute(f"the broker does not list this client in group '{self._group}' yet")
        return allocate_averagely(self._instance.client_id, route.subscribe_queues, members)

    async def _members(self, route: Route) -> list[str]:
        """Returns the group's client ids from the first master of the topic that answers."""
        header = ConsumerGroupRequest(consumer_group=self._group)
        failure: PenstockError = NoRoute(f"topic '{route.topic}' has no master")
        for address in route.masters.values():
            try:
                reply = await self._instance.request(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            except (Unreachable, NoAnswer, Refused) as error:
                failure = error
                continue
            return ConsumerList.from_bytes(reply.body).consumer_id_list
        raise failure

    def _report(self, topic: str, error: PenstockError) -> None:
        """Logs an error of a topic, unless it repeats the topic's last error. A retry topic without a route is not an
        error.
        """
        if self._reported.get(topic) != str(error) and not (
            isinstance(error, NoRoute) and topic.startswith(RETRY_PREFIX)
        ):
            log.warning("queues of topic '%s' not rebalanced: %s", topic, error)
        self._reported[topic] = str(error)
