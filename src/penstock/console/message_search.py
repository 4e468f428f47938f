"""Messages as people look for them: by key, by id, by time, by place; and who has consumed one.

No group notices: nothing is committed. A body that cannot be unpacked is shown as it is stored, and said to be.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin import Admin
from penstock.client.fetch import PullStatus
from penstock.client.message import ReceivedMessage
from penstock.console.cluster_view import ClusterView, together
from penstock.console.figures import TopicKind
from penstock.errors import BadMessage, BadRequest, NoRoute, PenstockError
from penstock.format.constants import DLQ_PREFIX
from penstock.format.message_id import decode_message_id
from penstock.protocol.bodies.queues import MessageQueue

MOST: Final = 200
_PAGE: Final = 32
_PAGES_A_QUEUE: Final = 64
LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """One message; times are epoch milliseconds."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    msg_id: str
    """The id that its producer gave it, else the broker's."""
    offset_msg_id: str
    born_ms: int
    born_host: str
    stored_ms: int
    store_host: str
    tags: str
    keys: list[str]
    reconsume_times: int
    properties: dict[str, str]
    body: str
    """Base64."""
    body_size: int
    note: str = ""
    """What is wrong with the body, if something is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What a group did with a message, as far as its offsets tell."""

    group: str
    state: str
    """consumed, waiting, or unknown."""
    consumer_offset: int


class Finder:
    """Looks for messages in one cluster."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def _admin(self) -> Admin:
        return self._view.admin

    async def by_key(
        self, topic: str, key: str, begin: int = 0, end: int = LONG_MAX, most: int = 64
    ) -> list[ReceivedMessage]:
        return await self._admin.messages.by_key(topic, key, begin=begin, end=end, max_messages=min(most, MOST))

    async def by_id(self, msg_id: str, topic: str | None = None) -> list[ReceivedMessage]:
        """An id of either kind; for a producer's id the topic is needed. None found is an empty list.

        A broker's id names an address: only brokers of this cluster are asked, whatever the id says.
        """
        if topic:
            found = await self._admin.messages.by_unique_id(topic, msg_id)
            if found:
                return found
        try:
            address, _ = decode_message_id(msg_id)
        except BadMessage:
            if topic:
                return []
            raise
        if address not in {broker.address for broker in await self._view.brokers()}:
            if topic:
                return []
            raise NoRoute(
                f"the id names {address}, which is no broker of this cluster; "
                "give the topic, too, if it is a producer's id"
            )
        one = await self._admin.messages.by_offset_id(msg_id)
        return [] if one is None else [one]

    async def by_offset(
        self, topic: str, broker: str, queue_id: int, offset: int, most: int = 32
    ) -> list[ReceivedMessage]:
        """Messages of one queue from an offset on."""
        queue = MessageQueue(broker_name=broker, queue_id=queue_id, topic=topic)
        return await self._from(queue, offset, LONG_MAX, min(most, MOST))

    async def by_time(self, topic: str, begin: int, end: int, most: int = 64) -> list[ReceivedMessage]:
        """The first messages of a topic that were stored between two times, oldest first."""
        most = min(most, MOST)
        queues = list(await self._admin.topics.stats(topic))

        async def of_queue(queue: MessageQueue) -> list[ReceivedMessage]:
            first = await self._admin.offsets.offset_by_time(queue, begin, boundary="lower")
            found = await self._from(queue, first, end, most)
            return [each for each in found if begin <= each.store_timestamp <= end]

        found = [each for part in await together(of_queue(queue) for queue in queues) for each in part]
        return sorted(found, key=_age)[:most]

    async def newest(self, topic: str, most: int = 32) -> list[ReceivedMessage]:
        """The last messages of a topic, newest first."""
        most = min(most, MOST)
        stats = await self._admin.topics.stats(topic)

        async def of_queue(queue: MessageQueue, low: int, high: int) -> list[ReceivedMessage]:
            return await self._from(queue, max(low, high - most), LONG_MAX, most) if high > low else []

        parts = await together(of_queue(queue, at.min_offset, at.max_offset) for queue, at in stats.items())
        return sorted((each for part in parts for each in part), key=_age, reverse=True)[:most]

    async def _from(self, queue: MessageQueue, offset: int, end: int, most: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for _ in range(_PAGES_A_QUEUE):
            page = await self._admin.messages.page(queue, offset, max_messages=min(_PAGE, most - len(found)))
            found += page.messages
            late = bool(page.messages) and page.messages[-1].store_timestamp > end
            if late or len(found) >= most or page.status is PullStatus.NO_NEW_MSG or page.next_offset <= offset:
                break
            offset = page.next_offset
        return found[:most]

    async def consumers(self, message: ReceivedMessage) -> list[Consumed]:
        """Which groups have consumed a message: those of its topic, by their offset in its queue."""
        topic, brokers = message.record.topic, await self._view.brokers()
        name = message.broker_name or next(
            (each.name for each in brokers if each.address == message.record.store_host), ""
        )

        async def of_group(group: str) -> Consumed:
            queue = MessageQueue(broker_name=name, queue_id=message.queue_id, topic=topic)
            try:
                at = await self._admin.offsets.committed(group, queue, exact=True)
            except PenstockError:
                at = None
            if at is None:
                return Consumed(group=group, state="unknown", consumer_offset=-1)
            return Consumed(
                group=group, state="consumed" if at > message.queue_offset else "waiting", consumer_offset=at
            )

        return await together(of_group(group) for group in await self._view.topic_groups(topic))

    # -- dead letters ----------------------------------------------------------------------------------------

    async def dead_letter_groups(self) -> dict[str, int]:
        """Groups that have dead letters, and how many."""
        topics = [row.name for row in await self._view.topics() if row.kind is TopicKind.DEAD_LETTERS]
        found = await self._view.queues(topics)
        return {topic.removeprefix(DLQ_PREFIX): sum(each.messages for each in found[topic]) for topic in found}

    async def dead_letters(self, group: str, most: int = 64) -> list[ReceivedMessage]:
        """A group's dead letters, newest first."""
        return await self.newest(f"{DLQ_PREFIX}{group}", most)


def described(message: ReceivedMessage) -> FoundMessage:
    """A message for people and programs."""
    body, note = body_of(message)
    record = message.record
    return FoundMessage(
        topic=record.topic,
        broker=message.broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        size=record.size,
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        born_ms=record.born_timestamp,
        born_host=record.born_host,
        stored_ms=record.store_timestamp,
        store_host=record.store_host,
        tags=clean(record.tags),
        keys=[clean(key) for key in record.keys],
        reconsume_times=record.reconsume_times,
        properties={clean(name): clean(value) for name, value in record.properties.items()},
        body=b64encode(body).decode(),
        body_size=len(body),
        note=note,
    )


def all_described(messages: Iterable[ReceivedMessage]) -> list[FoundMessage]:
    return [described(message) for message in messages]


def body_of(message: ReceivedMessage) -> tuple[bytes, str]:
    """The body as it was sent; or as it is stored, and why."""
    try:
        return message.body, ""
    except BadRequest as error:
        return message.record.body, f"shown as it is stored: {error}"


def clean(text: str) -> str:
    """Text that JSON can carry: bytes that were no UTF-8 stand as a sign for that."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _age(message: ReceivedMessage) -> tuple[int, int]:
    return message.store_timestamp, message.physical_offset
