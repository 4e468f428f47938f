"""Finds messages by key, id, time or queue offset, and shows which groups have consumed a message.

The search is read-only: it commits no offsets. If a body cannot be decompressed, the stored bytes are shown with a
note. A few small messages can inflate to gigabytes, so both the stored bytes of a search and the inflated bytes of an
answer have a limit.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin import Admin
from penstock.client.message import ReceivedMessage
from penstock.client.pull_requests import PullStatus
from penstock.console.cached_cluster import ClusterView, gather_limited
from penstock.console.cluster_figures import TopicKind
from penstock.errors import BadMessage, BadRequest, NoRoute, PenstockError
from penstock.format.constants import DLQ_PREFIX
from penstock.format.message_id import decode_message_id
from penstock.protocol.bodies.queues import MessageQueue

MAX_RESULTS: Final = 200
MAX_FOUND_BYTES: Final = 256 << 20
"""Limit of the records that one search holds in memory, in bytes."""
MAX_ANSWER_BYTES: Final = 16 << 20
"""Limit of the bodies in one answer, in bytes, decompressed."""
_PAGE: Final = 32
_PAGES_A_QUEUE: Final = 64
LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """One message as plain values. Times are epoch milliseconds."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    msg_id: str
    """The producer's id or, if there is none, the broker's id."""
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
    """The body in base64."""
    body_size: int
    note: str = ""
    """The reason why the body is left out or not decompressed; empty if it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConsumption:
    """Whether a group has consumed a message, by the group's offset in the message's queue."""

    group: str
    state: str
    """"consumed", "waiting", or "unknown"."""
    consumer_offset: int


class MessageSearch:
    """Finds messages in one cluster, at most `MAX_RESULTS` per search."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def _admin(self) -> Admin:
        return self._view.admin

    async def by_key(
        self, topic: str, key: str, begin: int = 0, end: int = LONG_MAX, most: int = 64
    ) -> list[ReceivedMessage]:
        return await self._admin.messages.by_key(topic, key, begin=begin, end=end, max_messages=min(most, MAX_RESULTS))

    async def by_id(self, msg_id: str, topic: str | None = None) -> list[ReceivedMessage]:
        """Returns the messages with a producer's or a broker's id. A producer's id needs the topic.

        A broker's id contains an address; only brokers of this cluster are contacted.
        """
        if topic:
            messages = await self._admin.messages.by_unique_id(topic, msg_id)
            if messages:
                return messages
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
                f"the id contains {address}, which is not a broker of this cluster; "
                "if it is a producer's id, give the topic too"
            )
        one = await self._admin.messages.by_offset_id(msg_id)
        return [] if one is None else [one]

    async def by_offset(
        self, topic: str, broker: str, queue_id: int, offset: int, most: int = 32
    ) -> list[ReceivedMessage]:
        """Returns up to `most` messages of one queue, from `offset`."""
        queue = MessageQueue(broker_name=broker, queue_id=queue_id, topic=topic)
        return await self._read(queue, offset, LONG_MAX, min(most, MAX_RESULTS), _ByteBudget())

    async def by_time(self, topic: str, begin: int, end: int, most: int = 64) -> list[ReceivedMessage]:
        """Returns the first messages of a topic stored between two times (epoch milliseconds), oldest first."""
        most = min(most, MAX_RESULTS)
        queues, budget = list(await self._admin.topics.stats(topic)), _ByteBudget()

        async def of_queue(queue: MessageQueue) -> list[ReceivedMessage]:
            first = await self._admin.offsets.offset_by_time(queue, begin, boundary="lower")
            messages = await self._read(queue, first, end, most, budget)
            return [each for each in messages if begin <= each.store_timestamp <= end]

        parts = await gather_limited(of_queue(queue) for queue in queues)
        return sorted((each for part in parts for each in part), key=_age)[:most]

    async def newest(self, topic: str, most: int = 32) -> list[ReceivedMessage]:
        """Returns the last messages of a topic, newest first."""
        most = min(most, MAX_RESULTS)
        stats, budget = await self._admin.topics.stats(topic), _ByteBudget()

        async def of_queue(queue: MessageQueue, low: int, high: int) -> list[ReceivedMessage]:
            return await self._read(queue, max(low, high - most), LONG_MAX, most, budget) if high > low else []

        parts = await gather_limited(of_queue(queue, at.min_offset, at.max_offset) for queue, at in stats.items())
        return sorted((each for part in parts for each in part), key=_age, reverse=True)[:most]

    async def _read(
        self, queue: MessageQueue, offset: int, end: int, most: int, budget: _ByteBudget
    ) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for _ in range(_PAGES_A_QUEUE):
            page = await self._admin.messages.page(queue, offset, max_messages=min(_PAGE, most - len(messages)))
            messages += page.messages
            budget.spend(sum(each.size for each in page.messages))
            past_end = bool(page.messages) and page.messages[-1].store_timestamp > end
            if past_end or len(messages) >= most or page.status is PullStatus.NO_NEW_MSG or page.next_offset <= offset:
                break
            offset = page.next_offset
        return messages[:most]

    async def consumers(self, message: ReceivedMessage) -> list[GroupConsumption]:
        """Returns, for each group that consumes the message's topic, whether the group has consumed the message."""
        topic, brokers = message.record.topic, await self._view.brokers()
        name = message.broker_name or next(
            (each.name for each in brokers if each.address == message.record.store_host), ""
        )

        async def of_group(group: str) -> GroupConsumption:
            queue = MessageQueue(broker_name=name, queue_id=message.queue_id, topic=topic)
            try:
                at = await self._admin.offsets.committed(group, queue, exact=True)
            except PenstockError:
                at = None
            if at is None:
                return GroupConsumption(group=group, state="unknown", consumer_offset=-1)
            return GroupConsumption(
                group=group, state="consumed" if at > message.queue_offset else "waiting", consumer_offset=at
            )

        return await gather_limited(of_group(group) for group in await self._view.topic_groups(topic))

    # -- dead letters ----------------------------------------------------------------------------------------

    async def dead_letter_groups(self) -> dict[str, int]:
        """Returns the number of dead letters, by group."""
        topics = [row.name for row in await self._view.topics() if row.kind is TopicKind.DEAD_LETTERS]
        queues = await self._view.queues(topics)
        return {topic.removeprefix(DLQ_PREFIX): sum(each.messages for each in queues[topic]) for topic in queues}

    async def dead_letters(self, group: str, most: int = 64) -> list[ReceivedMessage]:
        """Returns a group's dead letters, newest first."""
        return await self.newest(f"{DLQ_PREFIX}{group}", most)


class _ByteBudget:
    """Counts the bytes of the records that one search has read."""

    def __init__(self) -> None:
        self._remaining = MAX_FOUND_BYTES

    def spend(self, count: int) -> None:
        """Raises BadRequest if the search has read more than its limit."""
        self._remaining -= count
        if self._remaining < 0:
            raise BadRequest(f"the messages found take more than {MAX_FOUND_BYTES} bytes; ask for fewer messages")


def describe(message: ReceivedMessage, limit: int = MAX_ANSWER_BYTES) -> FoundMessage:
    """Returns a message as plain values, with a body of at most `limit` bytes."""
    body, note = body_of(message, limit)
    if len(body) > limit:
        body, note = b"", f"left out: an answer has at most {MAX_ANSWER_BYTES} bytes of bodies"
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


def describe_all(messages: Iterable[ReceivedMessage]) -> list[FoundMessage]:
    """Returns messages as plain values, with bodies of at most MAX_ANSWER_BYTES in all."""
    described, remaining = [], MAX_ANSWER_BYTES
    for message in messages:
        described.append(describe(message, remaining))
        remaining -= described[-1].body_size
    return described


def body_of(message: ReceivedMessage, limit: int = MAX_ANSWER_BYTES) -> tuple[bytes, str]:
    """Returns the body, decompressed to at most `limit` bytes, and an empty text.

    If that fails, returns the stored body and the reason.
    """
    try:
        return message.inflated(limit), ""
    except BadRequest as error:
        return message.record.body, f"shown as stored: {error}"


def clean(text: str) -> str:
    """Returns a text that is valid in JSON: bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _age(message: ReceivedMessage) -> tuple[int, int]:
    return message.store_timestamp, message.physical_offset
