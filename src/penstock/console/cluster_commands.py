"""Commands that change the cluster. Each returns a sentence about its effect.

Callers must ask the user for confirmation first. Each command is logged and clears the cache, so that the next reader
sees the change. Commands do not retry: an error says which part was not done. They are not thread-safe: use them from
the event loop's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.config import ClientConfig
from penstock.client.message import Message, ReceivedMessage
from penstock.client.producer import Producer
from penstock.console.cached_cluster import ClusterView, gather_limited
from penstock.console.cluster_figures import TopicKind
from penstock.console.message_search import body_of
from penstock.errors import BadMessage, BadRequest, PenstockError, Refused
from penstock.format.constants import (
    DELAY,
    DLQ_PREFIX,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIME,
    RETRY_PREFIX,
    RETRY_TOPIC,
    UNIQ_KEY,
    WAIT,
)
from penstock.format.topics import check_topic
from penstock.protocol.bodies.queues import MessageQueue

log = logging.getLogger("penstock.console")

GROUP: Final = "penstock-console"
MAX_QUEUES: Final = 1024
_DROPPED: Final = frozenset(
    {DELAY, MAX_RECONSUME_TIMES, RECONSUME_TIME, UNIQ_KEY, WAIT, "MIN_OFFSET", "MAX_OFFSET", "REAL_TOPIC", "REAL_QID",
     "CONSUME_START_TIME", "INSTANCE_ID", "CLUSTER", "TRACE_ON", "MSG_REGION", "1ST_POP_TIME", "POP_CK"}
)  # fmt: skip
"""Properties that describe the dead letter's own delivery. The resent message must not have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove:
    """The effect of an offset reset in one queue."""

    topic: str
    broker: str
    queue_id: int
    current: int | None
    """The group's current offset; None if the group has none."""
    target: int
    repeated: int
    """The number of messages that will be delivered again."""
    skipped: int
    """The number of messages that will never be delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A sentence about the effect of a command."""

    did: str


class ClusterCommands:
    """Changes one cluster; call `close` when done."""

    def __init__(self, view: ClusterView, config: ClientConfig) -> None:
        self._view = view
        self._config = config
        self._producer: Producer | None = None

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, *, queues: int, perm: int, order: bool = False) -> CommandResult:
        """Creates or changes a topic at all brokers."""
        self._check_topic(topic)
        if not 1 <= queues <= MAX_QUEUES:
            raise BadRequest(f"a topic can have 1 to {MAX_QUEUES} queues, not {queues}")
        if perm not in (2, 4, 6):
            raise BadRequest(f"perm must be 2 (write), 4 (read) or 6 (both), not {perm}")
        exists = any(row.name == topic for row in await self._view.topics())
        brokers = await self._view.admin.topics.create(topic, queues=queues, perm=perm, order=order)
        permission = {2: "write only", 4: "read only", 6: "read and write"}[perm]
        verb = "changed" if exists else "created"
        return self._result(f"{verb} topic {topic} at {_count(brokers, 'broker')}: {queues} queues each, {permission}")

    async def delete_topic(self, topic: str) -> CommandResult:
        self._check_topic(topic)
        brokers = await self._view.admin.topics.delete(topic)
        return self._result(
            f"deleted topic {topic} at {_count(brokers, 'broker')}; its messages stay on disk until their files expire"
        )

    async def send_test(self, topic: str, body: str, *, tags: str = "", keys: str = "") -> CommandResult:
        """Sends one message with a text body."""
        self._check_topic(topic)
        if not any(row.name == topic for row in await self._view.topics()):
            raise BadRequest(f"no topic {topic!r}; create it first")
        message = Message(topic, body.encode("utf-8", "surrogatepass"), tags=tags, keys=keys)
        result = await (await self._sender()).send(message)
        position = f"queue {result.queue.queue_id} of {result.queue.broker_name} at offset {result.queue_offset}"
        return self._result(f"sent message {result.msg_id} to {topic}, {position}")

    @staticmethod
    def _check_topic(topic: str) -> None:
        check_topic(topic)
        if TopicKind.of(topic) is TopicKind.SYSTEM:
            raise BadMessage(f"topic {topic} is a system topic and cannot be changed")

    # -- groups ----------------------------------------------------------------------------------------------

    async def preview_reset(self, group: str, topic: str, timestamp: int) -> list[QueueMove]:
        """Returns the effect of a reset to a time (epoch milliseconds; −1 for the end). Changes nothing."""
        offsets = self._view.admin.offsets

        async def of_queue(queue: MessageQueue) -> QueueMove:
            target = await (offsets.max_offset(queue) if timestamp < 0 else offsets.offset_by_time(queue, timestamp))
            low = await offsets.min_offset(queue)
            current = await offsets.committed(group, queue, exact=True)
            at = target if current is None else max(current, low)
            return QueueMove(
                topic=topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                current=current,
                target=target,
                repeated=max(0, at - target),
                skipped=max(0, target - at),
            )

        return await gather_limited(of_queue(queue) for queue in await offsets.queues(topic))

    async def reset(self, group: str, topic: str, timestamp: int) -> CommandResult:
        """Resets a group's offsets to a time (epoch milliseconds; −1 for the end), forwards or backwards."""
        if group not in await self._view.progress():
            raise BadRequest(f"no consumer group {group!r}")
        moves = await self.preview_reset(group, topic, timestamp)
        queues = await self._view.admin.offsets.reset(group, topic, timestamp)
        repeated, skipped = sum(each.repeated for each in moves), sum(each.skipped for each in moves)
        return self._result(
            f"reset offsets of group {group} in {_count(queues, 'queue')} of {topic}: {repeated} messages will be "
            f"delivered again, {skipped} skipped"
        )

    # -- dead letters ----------------------------------------------------------------------------------------

    async def resend(self, messages: Sequence[ReceivedMessage], *, to_topic: bool = False) -> CommandResult:
        """Resends dead letters to their group only. With `to_topic`, resends them to the original topic for all its
        groups.
        """
        for sent, message in enumerate(messages):
            try:
                await (await self._sender()).send(_resendable(message, to_topic=to_topic))
            except PenstockError as error:
                self._view.cache.clear()
                raise Refused(f"resent {sent} of {len(messages)}, then failed: {error}", code=1) from error
        groups = sorted({message.record.topic.removeprefix(DLQ_PREFIX) for message in messages})
        target = "the original topic" if to_topic else f"group {', '.join(groups)}"
        return self._result(f"resent {_count(messages, 'dead letter')} to {target}; the originals stay in place")

    async def _sender(self) -> Producer:
        if self._producer is None:
            self._producer = await Producer(GROUP, self._config).start()
        return self._producer

    def _result(self, sentence: str) -> CommandResult:
        self._view.cache.clear()
        log.info("%s", sentence)
        return CommandResult(did=sentence[0].upper() + sentence[1:] + ".")


def _resendable(letter: ReceivedMessage, *, to_topic: bool) -> Message:
    """Returns a new message with the content of a dead letter."""
    topic = letter.record.topic
    if not topic.startswith(DLQ_PREFIX):
        raise BadRequest(f"message {letter.msg_id} of {topic} is not a dead letter")
    original = letter.properties.get(RETRY_TOPIC, "")
    if not original:
        raise BadRequest(f"dead letter {letter.msg_id} does not name its original topic")
    properties = {name: value for name, value in letter.properties.items() if name not in _DROPPED}
    if to_topic:
        properties.pop(RETRY_TOPIC)
    body, note = body_of(letter)
    if note:
        raise BadRequest(f"dead letter {letter.msg_id} cannot be decompressed: {note}")
    target = original if to_topic else f"{RETRY_PREFIX}{topic.removeprefix(DLQ_PREFIX)}"
    return Message(target, body, properties=properties, flag=letter.record.flag)


def _count(items: Sequence[object] | dict[MessageQueue, int], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")
