"""Message search for administrators: by key, by id, by queue offset. A search never changes a group's offsets."""

from __future__ import annotations

from penstock.client.client_instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.pull_requests import Fetcher, Pull, PullResult, make_subscription
from penstock.errors import BadMessage, Refused
from penstock.format.message_id import decode_message_id
from penstock.format.record import Record, decode_record
from penstock.protocol.bodies.clients import ConsumeMessageDirectlyResult
from penstock.protocol.bodies.queues import MessageQueue, QueryConsumeQueueResponseBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.groups import ConsumeDirectly
from penstock.protocol.headers.pull import QueryConsumeQueue, QueryMessage, ViewMessage
from penstock.protocol.subscription import EVERYTHING

_GROUP = "TOOLS_CONSUMER"
"""The consumer group that RocketMQ's own tools use for reading."""
_FOUND_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
_LONG_MAX = 2**63 - 1


class MessageAdmin:
    """Finds messages. A search that finds nothing returns an empty list or None."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._fetcher = Fetcher(instance)

    async def by_key(
        self, topic: str, key: str, *, begin: int = 0, end: int = _LONG_MAX, max_messages: int = 64
    ) -> list[ReceivedMessage]:
        """Returns the newest messages with a key, sorted from oldest to newest. `begin` and `end` limit their store
        time (epoch milliseconds).
        """
        messages = await self._query(topic, key, begin, end, max_messages, unique=False)
        return [message for message in messages if key in message.keys][-max_messages:]

    async def by_unique_id(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Returns the messages with a producer's unique id: one, or several if the producer retried the send."""
        messages = await self._query(topic, msg_id, 0, _LONG_MAX, 32, unique=True)
        return [message for message in messages if message.record.unique_key == msg_id]

    async def by_offset_id(self, offset_msg_id: str) -> ReceivedMessage | None:
        """Returns the message with a broker's id, from the broker whose address is in the id. Raises BadMessage for an
        invalid id.
        """
        address, offset = decode_message_id(offset_msg_id)
        try:
            reply = await self._instance.request(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=offset))
        except Refused as error:
            if error.code == ResponseCode.SYSTEM_ERROR:
                return None
            raise
        record = decode_record(reply.body)
        return ReceivedMessage(record, "") if record.msg_id == offset_msg_id.upper() else None

    async def by_id(self, msg_id: str, topic: str | None = None) -> list[ReceivedMessage]:
        """Returns the messages with a producer's or a broker's id. A producer's id needs the topic."""
        if topic is not None:
            messages = await self.by_unique_id(topic, msg_id)
            if messages:
                return messages
        one = await self.by_offset_id(msg_id)
        return [] if one is None else [one]

    async def page(
        self, queue: MessageQueue, offset: int, *, max_messages: int = 32, expression: str = EVERYTHING
    ) -> PullResult:
        """Returns one page of a queue, from `offset`."""
        await self._instance.routes.find(queue.topic)
        return await self._fetcher.fetch(
            Pull(
                group=_GROUP,
                queue=queue,
                offset=offset,
                subscription=make_subscription(queue.topic, expression),
                max_messages=max_messages,
            )
        )

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Returns the message at a queue offset, or None."""
        page = await self.page(queue, offset, max_messages=1)
        return next((message for message in page.messages if message.queue_offset == offset), None)

    async def units(
        self, queue: MessageQueue, index: int, count: int, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """Returns `count` consume queue units from `index`. With `group`, also whether the group's filter matches each
        unit.
        """
        header = QueryConsumeQueue(
            topic=queue.topic, queue_id=queue.queue_id, index=index, count=count, consumer_group=group
        )
        await self._instance.routes.find(queue.topic)
        address = self._instance.routes.address(queue.broker_name)
        reply = await self._instance.request(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueryConsumeQueueResponseBody.from_bytes(reply.body)

    async def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumeMessageDirectlyResult:
        """Makes one consumer consume one message now. Offsets do not change. The broker in the message's id relays the
        request.
        """
        address, _ = decode_message_id(offset_msg_id)
        header = ConsumeDirectly(consumer_group=group, client_id=client_id, msg_id=offset_msg_id)
        reply = await self._instance.request(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        return ConsumeMessageDirectlyResult.from_bytes(reply.body)

    async def _query(
        self, topic: str, key: str, begin: int, end: int, max_messages: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        if not key:
            raise BadMessage("a search by key needs a key")
        header = QueryMessage(
            topic=topic, key=key, max_num=max_messages, begin_timestamp=begin, end_timestamp=end, unique_key=unique
        )
        messages: list[ReceivedMessage] = []
        for name, address in (await self._instance.routes.fetch(topic)).masters.items():
            reply = await self._instance.request(address, RequestCode.QUERY_MESSAGE, header, good=_FOUND_OR_NOT)
            messages += [ReceivedMessage(record, name) for record in _records(bytes(reply.body))]
        return sorted(messages, key=lambda message: (message.store_timestamp, message.physical_offset))


def _records(body: bytes) -> list[Record]:
    records, at = [], 0
    while at < len(body):
        record = decode_record(body, at)
        records.append(record)
        at += record.size
    return records
