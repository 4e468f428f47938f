"""Consumer offsets: consumerOffset.json in memory, and clients' requests for offsets.

A consumer offset is the next queue offset to consume. The file is written every few seconds, not at each commit: after
a crash the offsets are a few seconds old, and consumers get the messages since then again. A commit must name an
existing queue and group, so that clients cannot grow the table without limit. Use everything here from the loop's
thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import partial

from penstock.broker.consumers import GroupTable
from penstock.broker.core import Client, Operation
from penstock.broker.reads import after_read
from penstock.broker.topics import BrokerTopics
from penstock.format.config_tables import ConsumerOffsets
from penstock.protocol.codes import Refusal, ResponseCode
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
from penstock.store.cold_reads import ColdRead
from penstock.store.message import EVERYTHING, Page
from penstock.store.message_store import MessageStore
from penstock.store.query import Boundary

log = logging.getLogger("penstock.broker")
NOT_FOUND = -1


class OffsetTable:
    """Consumer offsets: by topic and group, then by queue id."""

    def __init__(self, loaded: ConsumerOffsets) -> None:
        self._offsets = loaded.offsets
        self._extra = loaded.extra
        self.changes = 0
        """The number of changes so far. An unchanged table need not be written."""

    # -- reading ---------------------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the next offset to consume; -1 if none was ever committed."""
        return self._offsets.get((topic, group), {}).get(queue_id, NOT_FOUND)

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Returns all offsets of a group, by topic and queue id."""
        return {topic: dict(queues) for (topic, owner), queues in self._offsets.items() if owner == group}

    def of_queue(self, group: str, topic: str) -> dict[int, int]:
        """Returns the offsets of a group in one topic, by queue id."""
        return dict(self._offsets.get((topic, group), {}))

    def groups_of(self, topic: str) -> list[str]:
        """Returns the groups that have offsets in a topic, sorted."""
        return sorted(group for name, group in self._offsets if name == topic)

    def snapshot(self) -> ConsumerOffsets:
        """Returns the current contents of consumerOffset.json."""
        return ConsumerOffsets(offsets={key: dict(queues) for key, queues in self._offsets.items()}, extra=self._extra)

    # -- changing --------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Sets an offset, forwards or backwards. Ignores a negative offset or queue id."""
        if offset < 0 or queue_id < 0:
            return
        queues = self._offsets.setdefault((topic, group), {})
        before = queues.get(queue_id, NOT_FOUND)
        if offset == before:
            return
        if offset < before:
            log.warning(
                "offset moved back: group=%s topic=%s queue=%d from=%d to=%d", group, topic, queue_id, before, offset
            )
        queues[queue_id] = offset
        self.changes += 1

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Sets a group's offsets in the given queues of a topic, forwards or backwards."""
        self._offsets.setdefault((topic, group), {}).update(offsets)
        self.changes += 1

    def replace(self, offsets: ConsumerOffsets) -> None:
        """Replaces the table by the master's. For slaves."""
        if offsets.offsets != self._offsets:
            self._offsets = {key: dict(queues) for key, queues in offsets.offsets.items()}
            self.changes += 1

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copies the offsets of group `source` in a topic to group `target`."""
        offsets = self._offsets.get((topic, source))
        if offsets:
            self.reset(target, topic, offsets)

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self._offsets if key[1] == group])

    def remove_topic(self, topic: str) -> None:
        self._remove([key for key in self._offsets if key[0] == topic])

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
            self.changes += 1


_BOUNDARIES = {"lower": Boundary.LOWER, "upper": Boundary.UPPER}


class Offsets:
    """Answers requests about consumer offsets and about the store's queues."""

    def __init__(self, store: MessageStore, offsets: OffsetTable, topics: BrokerTopics, groups: GroupTable) -> None:
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("query offset", self.query),
            Operation("commit offset", self.commit),
            Operation("max offset", self.max_offset),
            Operation("min offset", self.min_offset),
            Operation("search offset", self.search),
            Operation("earliest time", self.earliest_time),
        )

    def query(self, client: Client, request: QueryConsumerOffset) -> OffsetReply | Awaitable[OffsetReply]:
        """Returns the offset at which a group resumes. Raises Refusal with QUERY_NOT_FOUND if there is none.

        A group without an offset starts at 0 if the queue still has its first message, this message is still in memory,
        and the request does not set setZeroIfNotFound to false.
        """
        offset = self._offsets.query(request.consumer_group, request.topic, request.queue_id)
        if offset >= 0:
            return OffsetReply(offset=offset)

        def start(first: Page) -> OffsetReply:
            if request.set_zero_if_not_found is False or first.min_offset > 0 or first.suggest_slave:
                why = f"group '{request.consumer_group}' has consumed nothing of this queue yet"
                raise Refusal(ResponseCode.QUERY_NOT_FOUND, why)
            return OffsetReply(offset=0)

        place = request.topic, request.queue_id, 0, 1, EVERYTHING
        is_caught_up = self._store.try_catch_up()
        page = self._store.try_get(*place) if is_caught_up else ColdRead(partial(self._store.get, *place))
        return after_read(self._store, page, client, start)

    def commit(self, client: Client, request: UpdateConsumerOffset) -> None:
        """Commits an offset. Raises Refusal if the queue or the group does not exist."""
        config = self._topics.find(request.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{request.topic}' does not exist")
        if not 0 <= request.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{request.topic}' has no queue {request.queue_id}")
        if self._groups.find_or_create(request.consumer_group) is None:
            why = f"consumer group '{request.consumer_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        self._offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)

    def max_offset(self, client: Client, request: GetMaxOffset) -> OffsetReply:
        return OffsetReply(offset=self._store.max_offset(request.topic, request.queue_id))

    def min_offset(self, client: Client, request: GetMinOffset) -> OffsetReply:
        return OffsetReply(offset=max(0, self._store.min_offset(request.topic, request.queue_id)))

    async def search(self, client: Client, request: SearchOffset) -> OffsetReply:
        """Returns the offset of a queue at a time. A thread searches, because few of the records are in memory."""
        boundary = _BOUNDARIES.get((request.boundary_type or "").lower(), Boundary.NEAREST)
        place = request.topic, request.queue_id, request.timestamp, boundary
        read = partial(self._store.offset_by_time, *place)
        return OffsetReply(offset=await asyncio.wrap_future(self._store.read_cold(read, client)))

    async def earliest_time(self, client: Client, request: GetEarliestTime) -> EarliestTimeReply:
        read = partial(self._store.earliest_time, request.topic, request.queue_id)
        return EarliestTimeReply(timestamp=await asyncio.wrap_future(self._store.read_cold(read, client)))
