"""Who of a group consumes which queues. Pure.

Every member computes the same from the same lists, so they need not talk to each other: Java's AllocateMessageQueue-
Averagely, to the queue, so that members in both languages can share a group.


Shares a group's queues among its members, again and again.

Every member does the same sum over the same lists, so there is nobody to ask who gets what: a broker only tells who is
there. Done every 20 seconds, when a broker says that members came or went, when a route changes, and a second after a
round that could not be finished. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from penstock.client.assignment import Assignments
from penstock.client.instance import ClientInstance
from penstock.client.routes import Route
from penstock.errors import NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.tables import ConsumerList
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.groups import ConsumerGroupRequest
from penstock.protocol.subscription import SubscriptionData


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """The queues of one client: a run of neighbours, the first clients one more if it does not work out evenly."""
    in_order, members = sorted(queues), sorted(client_ids)
    if client_id not in members:
        return []
    place = members.index(client_id)
    each, over = divmod(len(in_order), len(members))
    begin = place * each + min(place, over)
    return in_order[begin : begin + each + (place < over)]


log = logging.getLogger("penstock.client")
_EVERY_S: Final = 20.0
_SOON_S: Final = 1.0


class Rebalance:
    """The rounds of one member. With `everything`, for a broadcast, each member has all queues."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, SubscriptionData],
        assignments: Assignments,
        *,
        everything: bool,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._assignments = assignments
        self._everything = everything
        self._due = asyncio.Event()
        self._said: dict[str, str] = {}
        assignments.on_left = self.wake
        instance.routes.on_change.append(lambda _: self.wake())

    def wake(self) -> None:
        """Something has changed: the next round is now."""
        self._due.set()

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            self._due.clear()
            try:
                is_done = await self.once()
            except Exception:
                log.exception("the queues of group '%s' could not be shared", self._group)
                is_done = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S if is_done else _SOON_S):
                    await self._due.wait()

    async def once(self) -> bool:
        """One round over all topics; says whether nothing is left to do."""
        is_done = True
        for topic in list(self._subscriptions):
            try:
                mine = await self._mine(await self._instance.routes.find(topic))
                is_done &= await self._assignments.update(topic, set(mine))
                self._said.pop(topic, None)
            except PenstockError as error:
                is_done = False
                self._say(topic, error)
        for queue in list(self._assignments.table):
            if queue.topic not in self._subscriptions:
                self._assignments.remove(queue)
        return is_done

    async def _mine(self, route: Route) -> list[MessageQueue]:
        if self._everything:
            return list(route.subscribe_queues)
        members = await self._members(route)
        if self._instance.client_id not in members:
            await self._instance.beat()
            raise NoRoute(f"the broker does not count us to group '{self._group}' yet")
        return allocate_averagely(self._instance.client_id, route.subscribe_queues, members)

    async def _members(self, route: Route) -> list[str]:
        """Who is in the group, as the first broker of the topic that answers has it."""
        header = ConsumerGroupRequest(consumer_group=self._group)
        failure: PenstockError = NoRoute(f"topic '{route.topic}' has no master")
        for address in route.masters.values():
            try:
                reply = await self._instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            except (Unreachable, NoAnswer, Refused) as error:
                failure = error
                continue
            return ConsumerList.from_bytes(reply.body).consumer_id_list
        raise failure

    def _say(self, topic: str, error: PenstockError) -> None:
        """Each trouble once; that there is no retry topic yet is none."""
        if self._said.get(topic) != str(error) and not (isinstance(error, NoRoute) and topic.startswith(RETRY_PREFIX)):
            log.warning("the queues of topic '%s' stay as they are: %s", topic, error)
        self._said[topic] = str(error)
