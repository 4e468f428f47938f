"""Consumer offsets: broker requests (request codes 14, 15, 29 to 32), local tracking, and the start offset of a new
group.

A consumer group stores its offsets at the brokers; a broadcast consumer stores them in a file. Offsets are updated in
memory as messages are consumed. `save` stores them, every five seconds and on close. After a crash, messages consumed
since the last `save` are delivered again. The file is replaced atomically: written to `.tmp`, fsynced, renamed. The
classes are not thread-safe: use them from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from penstock.client.client_instance import ClientInstance
from penstock.errors import BadRequest, BadSettings, PenstockError
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.clients import ConsumeFromWhere
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.bodies.stats import ResetOffsetBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.offsets import (
    EarliestTimeReply,
    GetEarliestTime,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)

log = logging.getLogger("penstock.client")

_KNOWN_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
ConsumeFrom: TypeAlias = Literal["first", "last"] | int
"""The start of a new group: "first" (oldest message), "last" (end of the queue), or a store time in epoch milliseconds.
"""


class QueueOffsets:
    """Queries and commits offsets at the brokers. Every method raises NoRoute, Unreachable, NoAnswer or Refused."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._committed_before: set[tuple[str, str, str]] = set()
        self._first_commits: dict[tuple[str, str, str], asyncio.Lock] = {}

    async def min_offset(self, queue: MessageQueue) -> int:
        """Returns the offset of the oldest message."""
        header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.request(await self._offset_broker(queue), RequestCode.GET_MIN_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Returns the offset of the next message to be written."""
        header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.request(await self._offset_broker(queue), RequestCode.GET_MAX_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def offset_by_time(self, queue: MessageQueue, timestamp: int, *, boundary: str | None = None) -> int:
        """Returns the offset of a message stored at or near `timestamp` (epoch milliseconds).

        With `boundary` "lower" it is the first message at or after the time, with "upper" the last message at or before
        it. RocketMQ 4 brokers ignore `boundary`.
        """
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, boundary_type=boundary)
        reply = await self._instance.request(
            await self._offset_broker(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
        )
        return reply.read(OffsetReply).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Returns the store time of the oldest message in epoch milliseconds; negative for an empty queue."""
        header = GetEarliestTime(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.request(
            await self._offset_broker(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, header
        )
        return reply.read(EarliestTimeReply).timestamp

    async def committed(self, group: str, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Returns a group's committed offset, or None if the group has committed nothing.

        For a group that has committed nothing, a broker may answer 0 instead while it still has the whole queue.
        `exact` forbids that, but RocketMQ 4 brokers ignore `exact`.
        """
        header = QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False if exact else None,
        )
        reply = await self._instance.request(
            await self._offset_broker(queue), RequestCode.QUERY_CONSUMER_OFFSET, header, good=_KNOWN_OR_NOT
        )
        return None if reply.code == ResponseCode.QUERY_NOT_FOUND else reply.read(OffsetReply).offset

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits a group's offset.

        The group's first commit in a topic runs alone: Java brokers lose one of two concurrent first commits.
        """
        table = group, queue.broker_name, queue.topic
        if table not in self._committed_before:
            async with self._first_commits.setdefault(table, asyncio.Lock()):
                if table not in self._committed_before:
                    await self._commit(group, queue, offset)
                    self._committed_before.add(table)
                    return
        await self._commit(group, queue, offset)

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._instance.request(await self._offset_broker(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _offset_broker(self, queue: MessageQueue) -> str:
        """Returns the address of the broker that holds a queue's offsets: the master or, without a master, the slave
        with the lowest id.
        """
        await self._instance.routes.find(queue.topic)
        ids = self._instance.routes.brokers().get(queue.broker_name, {})
        return self._instance.routes.address(queue.broker_name, min(ids, default=MASTER))


class OffsetStore(Protocol):
    """A consumer's offsets: `update` changes them in memory, `save` stores them."""

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Returns the stored offset, or None if the group has never consumed. Raises the errors of a broker request.

        Unless `exact`, a broker may answer 0 for a new group while it still has the whole queue.
        """

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Records that all messages before `offset` are consumed."""

    def current(self, queue: MessageQueue) -> int | None:
        """Returns the last offset given to `update`."""

    def remove(self, queue: MessageQueue) -> None:
        """Stops tracking a queue that another consumer owns now."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stores the offsets of `queues`, or of all queues. A failure is logged, and the next call retries."""


class BrokerOffsets:
    """Offsets of a consumer group, saved at the brokers."""

    def __init__(self, group: str, offsets: QueueOffsets) -> None:
        self._group = group
        self._offsets = offsets
        self._current: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return await self._offsets.committed(self._group, queue, exact=exact)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._current[queue] = offset

    def current(self, queue: MessageQueue) -> int | None:
        return self._current.get(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._current.pop(queue, None)
        self._saved.pop(queue, None)

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        chosen = self._current if queues is None else [queue for queue in queues if queue in self._current]
        changed = [queue for queue in chosen if self._saved.get(queue) != self._current[queue]]
        await asyncio.gather(*(self._save(queue, self._current[queue]) for queue in changed))

    async def _save(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._offsets.commit(self._group, queue, offset)
        except PenstockError as error:
            log.warning("cannot store the offset of %s/%d yet: %s", queue.topic, queue.queue_id, error)
        else:
            if queue in self._current:
                self._saved[queue] = offset


class FileOffsets:
    """Offsets of one broadcast consumer, saved in its own file. If `path` is None, they are in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadSettings if the file exists and cannot be read."""
        self._path = path
        self._current: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()
        self._is_saved = True
        if path is not None and path.exists():
            try:
                self._current = dict(ResetOffsetBody.from_bytes(path.read_bytes()).offset_table)
            except (OSError, BadRequest) as error:
                raise BadSettings(
                    f"a broadcast consumer's offsets cannot be read: {error}; remove the file to start over",
                    path=path,
                ) from None

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return self._current.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        if self._current.get(queue) != offset:
            self._current[queue] = offset
            self._is_saved = False

    def current(self, queue: MessageQueue) -> int | None:
        return self._current.get(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Keeps the offset, so that the queue continues there if it is assigned again."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        async with self._writing:
            if self._path is None or self._is_saved:
                return
            self._is_saved = True
            data = ResetOffsetBody(offset_table=dict(self._current)).to_bytes()
            try:
                await asyncio.to_thread(_write_atomically, self._path, data)
            except OSError as error:
                self._is_saved = False
                log.warning("%s: cannot store the offsets yet: %s", self._path, error.strerror)


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class StartOffset:
    """Finds the offset at which a consumer starts a queue: the stored offset or, for a new group, the one of
    `consume_from`.

    A new group with "last" still starts at the first message while the broker has the whole queue. This is RocketMQ's
    rule: a group does not miss messages sent just before it first connected.
    """

    def __init__(self, consume_from: ConsumeFrom, store: OffsetStore, offsets: QueueOffsets) -> None:
        self._consume_from = consume_from
        self._store = store
        self._offsets = offsets

    @property
    def where(self) -> ConsumeFromWhere:
        """`consume_from` as the enum of the protocol."""
        if self._consume_from == "first":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._consume_from == "last":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP

    async def find(self, queue: MessageQueue) -> int:
        """Returns the start offset of a queue. Raises the errors of a broker request."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        by_time = isinstance(self._consume_from, int) and not is_retry
        stored = await self._store.load(queue, exact=by_time)
        if stored is not None:
            return stored
        if self._consume_from == "first" or is_retry:
            return await self._offsets.min_offset(queue)
        if self._consume_from == "last":
            return await self._offsets.max_offset(queue)
        return await self._offsets.offset_by_time(queue, self._consume_from)
