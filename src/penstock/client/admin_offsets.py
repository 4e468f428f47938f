"""Offsets as administrators move them."""

from __future__ import annotations

from penstock.client.instance import ClientInstance
from penstock.client.queue_offsets import QueueOffsets
from penstock.client.routes import Route
from penstock.errors import Refused
from penstock.protocol.bodies.progress import QueryConsumeTimeSpanBody, QueueTimeSpan, ResetOffsetBody
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryConsumeTimeSpan, ResetOffset


class OffsetAdmin(QueueOffsets):
    """Offsets of queues and groups, and their reset and cloning."""

    def __init__(self, instance: ClientInstance) -> None:
        super().__init__(instance)
        self._instance = instance

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read. Raises NoRoute if no broker has it."""
        return list((await self._route(topic)).subscribe_queues)

    async def reset(self, group: str, topic: str, timestamp: int, *, force: bool = True) -> dict[MessageQueue, int]:
        """Has a group consume a topic from a time on, in epoch milliseconds, −1 for what is still to come; returns
        where each queue goes on. Without `force` a queue only moves backwards. Consumers that are connected go on there
        at once; for a group without any, the offsets are stored.
        """
        header = ResetOffset(topic=topic, group=group, timestamp=timestamp, is_force=force)
        found: dict[MessageQueue, int] = {}
        route = await self._route(topic)
        for name, address in route.masters.items():
            try:
                reply = await self._instance.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except Refused as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                found.update(await self._reset_offline(group, name, route, timestamp, force))
            else:
                found.update(ResetOffsetBody.from_bytes(reply.body).offset_table)
        return dict(sorted(found.items()))

    async def _reset_offline(
        self, group: str, broker_name: str, route: Route, timestamp: int, force: bool
    ) -> dict[MessageQueue, int]:
        found = {}
        for queue in route.subscribe_queues:
            if queue.broker_name != broker_name:
                continue
            target = await (self.max_offset(queue) if timestamp < 0 else self.offset_by_time(queue, timestamp))
            current = await self.committed(group, queue, exact=True)
            if not force and current is not None:
                target = min(target, current)
            await self.commit(group, queue, target)
            found[queue] = target
        return found

    async def clone(self, source: str, target: str, topic: str, *, offline: bool = False) -> None:
        """Has one group go on in a topic where another one is. With `offline` neither may have consumers."""
        header = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        for address in (await self._route(topic)).masters.values():
            await self._instance.ask(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """When the oldest, the newest and the last consumed message of each queue were stored."""
        header = QueryConsumeTimeSpan(topic=topic, group=group)
        found: list[QueueTimeSpan] = []
        for address in (await self._route(topic)).masters.values():
            reply = await self._instance.ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            found += QueryConsumeTimeSpanBody.from_bytes(reply.body).consume_time_span_set
        return sorted(found, key=lambda span: span.message_queue)

    async def _route(self, topic: str) -> Route:
        """As the name servers have it now; other methods find the brokers' addresses by it."""
        await self._instance.routes.refresh([topic])
        return await self._instance.routes.find(topic)
