"""Offsets of queues and of groups, asked of the brokers: 29 to 32, 14 and 15.

Keeps nothing but which groups it has committed for. Belongs to the loop's thread.


How far a group has come: at the brokers for a group that shares its queues, in a file for one that broadcasts.

Offsets are noted as messages are consumed and stored by `save`, every five seconds and at the end. The file is replaced
whole: written beside it, synced, renamed.


Where a group begins to consume a queue: where it stands, or, if it is new, where its consumer says.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from penstock.client.instance import ClientInstance
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

_KNOWN_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class QueueOffsets:
    """Every method raises NoRoute, Unreachable, NoAnswer or Refused."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._begun: set[tuple[str, str, str]] = set()
        self._beginning: dict[tuple[str, str, str], asyncio.Lock] = {}

    async def min_offset(self, queue: MessageQueue) -> int:
        """Of the oldest message that is there."""
        header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_MIN_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Of the message that will come next."""
        header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_MAX_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def offset_by_time(self, queue: MessageQueue, timestamp: int, *, boundary: str | None = None) -> int:
        """Of the message stored at a time, in epoch milliseconds, or close to it.

        `boundary` "lower" is the first at or after the time, "upper" the last at or before it; brokers of RocketMQ 4
        do not know them.
        """
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, boundary_type=boundary)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return reply.read(OffsetReply).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, in epoch milliseconds; negative if there is none."""
        header = GetEarliestTime(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return reply.read(EarliestTimeReply).timestamp

    async def committed(self, group: str, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Where a group goes on; None if it has committed nothing.

        Brokers answer 0 for such a group while the queue is young enough to be read whole. With `exact` they do not;
        those of RocketMQ 4 do all the same.
        """
        header = QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False if exact else None,
        )
        reply = await self._instance.ask(
            await self._keeper(queue), RequestCode.QUERY_CONSUMER_OFFSET, header, good=_KNOWN_OR_NOT
        )
        return None if reply.code == ResponseCode.QUERY_NOT_FOUND else reply.read(OffsetReply).offset

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """From now on the group goes on at `offset`.

        Java's brokers lose one of two commits that come at the same time if they are the group's first in a topic, so
        the first goes alone.
        """
        table = group, queue.broker_name, queue.topic
        if table not in self._begun:
            async with self._beginning.setdefault(table, asyncio.Lock()):
                if table not in self._begun:
                    await self._commit(group, queue, offset)
                    self._begun.add(table)
                    return
        await self._commit(group, queue, offset)

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._instance.ask(await self._keeper(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _keeper(self, queue: MessageQueue) -> str:
        """Who keeps the offsets of a queue: the master, or while there is none the slave with the lowest id."""
        await self._instance.routes.find(queue.topic)
        ids = self._instance.routes.brokers().get(queue.broker_name, {})
        return self._instance.routes.address(queue.broker_name, min(ids, default=MASTER))


log = logging.getLogger("penstock.client")


class OffsetStore(Protocol):
    """Where a consumer keeps its offsets."""

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Where the group goes on; None if it has never consumed. Raises what asking a broker raises.

        Unless it is to be `exact`, a broker may say 0 for a new group if it still has the whole queue.
        """

    def note(self, queue: MessageQueue, offset: int) -> None:
        """Everything before `offset` has been consumed."""

    def noted(self, queue: MessageQueue) -> int | None:
        """What was noted last."""

    def forget(self, queue: MessageQueue) -> None:
        """The queue is somebody else's now."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stores what was noted, of all queues or of some. What cannot be stored is logged, and stored next time."""


class BrokerOffsets:
    """Offsets that the brokers keep."""

    def __init__(self, group: str, offsets: QueueOffsets) -> None:
        self._group = group
        self._offsets = offsets
        self._noted: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return await self._offsets.committed(self._group, queue, exact=exact)

    def note(self, queue: MessageQueue, offset: int) -> None:
        self._noted[queue] = offset

    def noted(self, queue: MessageQueue) -> int | None:
        return self._noted.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._noted.pop(queue, None)
        self._saved.pop(queue, None)

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        chosen = self._noted if queues is None else [queue for queue in queues if queue in self._noted]
        changed = [queue for queue in chosen if self._saved.get(queue) != self._noted[queue]]
        await asyncio.gather(*(self._save(queue, self._noted[queue]) for queue in changed))

    async def _save(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._offsets.commit(self._group, queue, offset)
        except PenstockError as error:
            log.warning("the offset of %s/%d is not stored yet: %s", queue.topic, queue.queue_id, error)
        else:
            if queue in self._noted:
                self._saved[queue] = offset


class FileOffsets:
    """Offsets of one broadcast consumer in a file of its own, or in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadSettings if there is a file and it holds something else."""
        self._path = path
        self._noted: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()
        self._is_saved = True
        if path is not None and path.exists():
            try:
                self._noted = dict(ResetOffsetBody.from_bytes(path.read_bytes()).offset_table)
            except (OSError, BadRequest) as error:
                raise BadSettings(
                    f"the offsets of a broadcast consumer cannot be read: {error}; remove the file to begin anew",
                    path=path,
                ) from None

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return self._noted.get(queue)

    def note(self, queue: MessageQueue, offset: int) -> None:
        if self._noted.get(queue) != offset:
            self._noted[queue] = offset
            self._is_saved = False

    def noted(self, queue: MessageQueue) -> int | None:
        return self._noted.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """A queue that comes back goes on where it was."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        async with self._writing:
            if self._path is None or self._is_saved:
                return
            self._is_saved = True
            data = ResetOffsetBody(offset_table=dict(self._noted)).to_bytes()
            try:
                await asyncio.to_thread(_replace, self._path, data)
            except OSError as error:
                self._is_saved = False
                log.warning("%s: the offsets are not stored yet: %s", self._path, error.strerror)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


ConsumeFrom: TypeAlias = Literal["first", "last"] | int
"""The oldest message, those to come, or those stored from a time on, in epoch milliseconds."""


class StartOffset:
    """Asked for each queue that a consumer gets.

    A new group that asks for the last offset begins at the first all the same where the broker still has the whole
    queue: that is RocketMQ's rule, so that what was sent just before a group first came is not lost to it.
    """

    def __init__(self, consume_from: ConsumeFrom, store: OffsetStore, offsets: QueueOffsets) -> None:
        self._consume_from = consume_from
        self._store = store
        self._offsets = offsets

    @property
    def where(self) -> ConsumeFromWhere:
        """The same in the protocol's words."""
        if self._consume_from == "first":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._consume_from == "last":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP

    async def find(self, queue: MessageQueue) -> int:
        """Raises what asking a broker raises."""
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
