"""Whatever changes something in the cluster, and the sentence that says what was done.

Who calls has asked first. Each change is logged as well, and clears what was kept of the cluster, so that whoever looks
next sees it. Nothing is tried twice: an error says what is left undone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.config import ClientConfig
from penstock.client.message import Message, ReceivedMessage
from penstock.client.producer import Producer
from penstock.console.cluster_view import ClusterView, together
from penstock.console.figures import TopicKind
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
_NOT_AGAIN: Final = frozenset(
    {DELAY, MAX_RECONSUME_TIMES, RECONSUME_TIME, UNIQ_KEY, WAIT, "MIN_OFFSET", "MAX_OFFSET", "REAL_TOPIC", "REAL_QID",
     "CONSUME_START_TIME", "INSTANCE_ID", "CLUSTER", "TRACE_ON", "MSG_REGION", "1ST_POP_TIME", "POP_CK"}
)  # fmt: skip
"""Properties that tell how a message travelled, and would be wrong of the one that is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove:
    """Where a reset takes a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    current: int | None
    """The offset that it consumes next; None if it has none there yet."""
    target: int
    repeated: int
    """Messages that it will get again."""
    skipped: int
    """Messages that it will not get any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What was done."""

    did: str


class Changes:
    """Changes one cluster; `close` when done. Belongs to the loop's thread."""

    def __init__(self, view: ClusterView, config: ClientConfig) -> None:
        self._view = view
        self._config = config
        self._producer: Producer | None = None

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, *, queues: int, perm: int, order: bool = False) -> CommandResult:
        """Makes a topic, or changes the one of that name, at all brokers."""
        self._check_topic(topic)
        if not 1 <= queues <= MAX_QUEUES:
            raise BadRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
        if perm not in (2, 4, 6):
            raise BadRequest(f"perm is 2 (write), 4 (read) or 6 (both), not {perm}")
        there = any(row.name == topic for row in await self._view.topics())
        where = await self._view.admin.topics.create(topic, queues=queues, perm=perm, order=order)
        words = {2: "to be written only", 4: "to be read only", 6: "to be read and written"}[perm]
        did = "changed" if there else "made"
        return self._did(f"topic {topic} was {did} at {_count(where, 'broker')}: {queues} queues each, {words}")

    async def delete_topic(self, topic: str) -> CommandResult:
        self._check_topic(topic)
        where = await self._view.admin.topics.delete(topic)
        return self._did(f"topic {topic} was deleted at {_count(where, 'broker')}; its messages go with their files")

    async def send_test(self, topic: str, body: str, *, tags: str = "", keys: str = "") -> CommandResult:
        """Sends one message that a person typed."""
        self._check_topic(topic)
        if not any(row.name == topic for row in await self._view.topics()):
            raise BadRequest(f"there is no topic {topic!r}; make it first")
        message = Message(topic, body.encode("utf-8", "surrogatepass"), tags=tags, keys=keys)
        result = await (await self._sender()).send(message)
        place = f"queue {result.queue.queue_id} of {result.queue.broker_name} at offset {result.queue_offset}"
        return self._did(f"message {result.msg_id} was sent to {topic}, {place}")

    @staticmethod
    def _check_topic(topic: str) -> None:
        check_topic(topic)
        if TopicKind.of(topic) is TopicKind.SYSTEM:
            raise BadMessage(f"topic {topic} belongs to the brokers and is left alone")

    # -- groups ----------------------------------------------------------------------------------------------

    async def preview_reset(self, group: str, topic: str, timestamp: int) -> list[QueueMove]:
        """What a reset to a time (epoch milliseconds, −1: to the end) would do. Changes nothing."""
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

        return await together(of_queue(queue) for queue in await offsets.queues(topic))

    async def reset(self, group: str, topic: str, timestamp: int) -> CommandResult:
        """Has a group go on from a time, forwards or backwards."""
        if group not in await self._view.progress():
            raise BadRequest(f"there is no consumer group {group!r}")
        moves = await self.preview_reset(group, topic, timestamp)
        where = await self._view.admin.offsets.reset(group, topic, timestamp)
        again, lost = sum(each.repeated for each in moves), sum(each.skipped for each in moves)
        return self._did(
            f"group {group} goes on in {_count(where, 'queue')} of {topic}: {again} messages come again, "
            f"{lost} are skipped"
        )

    # -- dead letters ----------------------------------------------------------------------------------------

    async def resend(self, messages: Sequence[ReceivedMessage], *, to_topic: bool = False) -> CommandResult:
        """Sends dead letters again: to their group only, or with `to_topic` to all groups of their first topic."""
        for sent, message in enumerate(messages):
            try:
                await (await self._sender()).send(_again(message, to_topic=to_topic))
            except PenstockError as error:
                self._view.cache.forget()
                raise Refused(f"{sent} of {len(messages)} were sent again, then: {error}", code=1) from error
        groups = sorted({message.record.topic.removeprefix(DLQ_PREFIX) for message in messages})
        whom = "their first topic" if to_topic else f"group {', '.join(groups)}"
        return self._did(f"{_count(messages, 'dead letter')} went to {whom} again; they also stay where they are")

    async def _sender(self) -> Producer:
        if self._producer is None:
            self._producer = await Producer(GROUP, self._config).start()
        return self._producer

    def _did(self, what: str) -> CommandResult:
        self._view.cache.forget()
        log.info("%s", what)
        return CommandResult(did=what[0].upper() + what[1:] + ".")


def _again(letter: ReceivedMessage, *, to_topic: bool) -> Message:
    """A dead letter as a message to be sent."""
    topic = letter.record.topic
    if not topic.startswith(DLQ_PREFIX):
        raise BadRequest(f"message {letter.msg_id} of {topic} is no dead letter")
    first = letter.properties.get(RETRY_TOPIC, "")
    if not first:
        raise BadRequest(f"dead letter {letter.msg_id} does not say which topic it was first sent to")
    properties = {name: value for name, value in letter.properties.items() if name not in _NOT_AGAIN}
    if to_topic:
        properties.pop(RETRY_TOPIC)
    body, note = body_of(letter)
    if note:
        raise BadRequest(f"dead letter {letter.msg_id} cannot be unpacked: {note}")
    target = first if to_topic else f"{RETRY_PREFIX}{topic.removeprefix(DLQ_PREFIX)}"
    return Message(target, body, properties=properties, flag=letter.record.flag)


def _count(what: Sequence[object] | dict[MessageQueue, int], noun: str) -> str:
    return f"{len(what)} {noun}" + ("" if len(what) == 1 else "s")
