"""Consumer offsets: consumerOffset.json in memory, and clients' requests for offsets.

A consumer offset is the next queue offset to consume. The file is written every few seconds, not at each commit: after
a crash the offsets are a few seconds old, and consumers get the messages since then again. A commit must name an
existing queue and group, and the table has a budget, so that clients cannot grow it without limit. Use everything here
from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from penstock.broker.consumers import GroupTable
from penstock.broker.delay_recovery import SaveNotes
from penstock.broker.operations_as_plain_calls import Client, Operation
from penstock.broker.reads_without_blocking_the_loop import after_read
from penstock.broker.topics import MAX_CREATED_BYTES, MAX_CREATED_BYTES_OF_CLIENT, BrokerTopics, is_system_group
from penstock.format.config_tables import ConsumerOffsets
from penstock.format.constants import HALF_TOPIC, OP_HALF_TOPIC
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
from penstock.protocol.table_memory_limits import Budget, entry_bytes
from penstock.rate_limited_log import RateLimitedLog
from penstock.store.cold_reads import ColdRead, try_read
from penstock.store.config_files import ConfigFile
from penstock.store.message import EVERYTHING, Page
from penstock.store.message_store import MessageStore
from penstock.store.query import Boundary

log = logging.getLogger("penstock.broker")
NOT_FOUND = -1
MAX_BYTES: Final = 256 << 20
_QUEUE_BYTES: Final = 128
"""What one queue's offset takes."""


OffsetsByQueue = dict[tuple[str, str], dict[int, int]]
"""Offsets by topic and group, then by queue id."""


class OffsetTable:
    """Consumer offsets: by topic and group, then by queue id."""

    def __init__(self, loaded: ConsumerOffsets) -> None:
        self._offsets = loaded.offsets
        self._extra = loaded.extra
        self._moved_back = RateLimitedLog(log)
        self.changes = 0
        """The number of changes so far. An unchanged table need not be written."""
        self.budget = Budget("consumer offsets", MAX_BYTES)
        self.budget.count(_size(self._offsets))
        self.created = Budget("new offsets", MAX_CREATED_BYTES, MAX_CREATED_BYTES_OF_CLIENT)
        """What the requests of connected clients have created."""

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

    def commit(self, group: str, topic: str, queue_id: int, offset: int, by: Client | None = None) -> None:
        """Sets an offset, forwards or backwards. Ignores a negative offset or queue id.

        Raises Refusal if the offsets of new queues would take too much memory, in all or for the client `by`.
        """
        if offset < 0 or queue_id < 0:
            return
        queues = self._offsets.get((topic, group), _NONE)
        before = queues.get(queue_id, NOT_FOUND)
        if offset == before:
            return
        if before == NOT_FOUND:
            queues = self._grow(group, topic, 1, by)
        elif offset < before:
            where = f"group={group} topic={topic} queue={queue_id}"
            self._moved_back.warn(f"offset moved back: {where} from={before} to={offset}")
        queues[queue_id] = offset
        self.changes += 1

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Sets a group's offsets in the given queues of a topic, forwards or backwards. Raises Refusal: see
        `commit`."""
        known = self._offsets.get((topic, group), _NONE)
        self._grow(group, topic, len(offsets.keys() - known.keys())).update(offsets)
        self.changes += 1

    def _grow(self, group: str, topic: str, queues: int, by: Client | None = None) -> dict[int, int]:
        """Returns the offsets of a group in a topic, after charging for this many more queues. Raises Refusal."""
        known = self._offsets.get((topic, group))
        size = (entry_bytes(topic, group) if known is None else 0) + queues * _QUEUE_BYTES
        if not is_system_group(group):
            self.budget.check(size)
        if by is not None:
            self.created.charge_until_close(size, by)
        self.budget.count(size)
        if known is None:
            known = self._offsets[topic, group] = {}
        return known

    def replace(self, offsets: ConsumerOffsets) -> None:
        """Replaces the table by the master's, apart from the broker's own groups. For slaves."""
        self._replace({**_of_clients(offsets.offsets), **_own(self._offsets)})

    def own(self) -> OffsetsByQueue:
        """Returns the offsets of the broker's own groups."""
        return _own(self._offsets)

    def replace_own(self, offsets: OffsetsByQueue) -> None:
        """Replaces the offsets of the broker's own groups by those of a table."""
        self._replace({**_of_clients(self._offsets), **_own(offsets)})

    def _replace(self, offsets: OffsetsByQueue) -> None:
        if offsets != self._offsets:
            self.budget.count(_size(offsets) - _size(self._offsets))
            self._offsets = {key: dict(queues) for key, queues in offsets.items()}
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
            self.budget.count(-_size({key: self._offsets.pop(key)}))
            self.changes += 1


_NONE: Final[dict[int, int]] = {}


def _own(offsets: OffsetsByQueue) -> OffsetsByQueue:
    return {key: dict(queues) for key, queues in offsets.items() if is_system_group(key[1])}


def _of_clients(offsets: OffsetsByQueue) -> OffsetsByQueue:
    return {key: queues for key, queues in offsets.items() if not is_system_group(key[1])}


class OwnOffsets:
    """The offsets of the broker's own groups, and on which part of the log they rest, as far as that was saved.

    They are the progress of transaction checks. The file `penstock/checked.json` notes with them where the log ended,
    as `penstock/delivered.json` does for delayed messages. If the log lost a part that they rest on, they go back to
    the last ones that rest on what is left, or there are none: then the next round reads all half messages and marks.
    """

    def __init__(self, store: MessageStore, table: OffsetTable) -> None:
        self._store = store
        self._table = table
        self._notes = SaveNotes(store.engine.io, store.layout.checked)
        self._rests_on: int | None = None
        """Of a slave: the offset before which the log has all that the offsets rest on; None if that is not known."""
        log_end, now = store.log.queue.wrote_offset, self._numbers()
        left = self._notes.roll_back(now, log_end)
        if left is not None and left != now:
            log.warning("the log ends at %d, before the ends of some transactions: those are checked again", log_end)
            queues = {name: left[number] for number, name in enumerate(_CHECKED) if number in left}
            table.replace_own({(name, CHECK_GROUP): {0: offset} for name, offset in queues.items()})
        self.is_rolled_back = left is not None
        """Whether offsets are not those that were read: they must be saved before the log grows; see `roll_back`."""

    def _numbers(self) -> dict[int, int]:
        found = (self._table.query(CHECK_GROUP, name, 0) for name in _CHECKED)
        return {number: offset for number, offset in enumerate(found) if offset >= 0}

    def replace(self, offsets: ConsumerOffsets, log_end: int) -> None:
        """Takes the master's over, which rest on the log before `log_end`. For slaves."""
        self._table.replace_own(offsets.offsets)
        self._rests_on = log_end

    def begin_save(self) -> ConsumerOffsets:
        """Returns the contents of consumerOffset.json, to be written after `before_write`."""
        now, end = self._numbers(), self._rests_on
        if self._store.role.delivers:
            end = self._store.log.queue.wrote_offset
        if end is not None and now != self._notes.last:
            self._notes.add(now, end)
        return self._table.snapshot()

    def before_write(self) -> None:
        """Syncs the log, then notes where it ended at `begin_save`, if the broker's own offsets are new.

        Runs in the writing thread. Raises StoreFailed.
        """
        self._store.flush()
        if not self._notes.is_written:
            self._notes.write()

    def write_roll_back(self, file: ConfigFile[ConsumerOffsets]) -> None:
        """Saves the table that was rolled back. Blocks: for a start, before the log can grow. Raises StoreFailed."""
        file.write(self._table.snapshot())
        self._notes.write()


CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets are the progress of transaction checks, as in RocketMQ."""
_CHECKED: Final = (HALF_TOPIC, OP_HALF_TOPIC)


def _size(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> int:
    """Returns an estimate of the memory that offsets take."""
    return sum(entry_bytes(*key) + len(queues) * _QUEUE_BYTES for key, queues in offsets.items())


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
        """Commits an offset. Raises Refusal if the queue or the group does not exist, or the group is the broker's."""
        if is_system_group(request.consumer_group):
            why = f"the offsets of group '{request.consumer_group}' belong to the broker"
            raise Refusal(ResponseCode.NO_PERMISSION, why)
        config = self._topics.find(request.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{request.topic}' does not exist")
        if not 0 <= request.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{request.topic}' has no queue {request.queue_id}")
        if self._groups.find_or_create(request.consumer_group, client) is None:
            why = f"consumer group '{request.consumer_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        place = request.consumer_group, request.topic, request.queue_id
        self._offsets.commit(*place, request.commit_offset, client)

    def commit_ordinary(self, client: Client, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Like `commit`, by the values of a request. Returns False, and changes nothing, if `commit` would refuse it,
        or would create the group."""
        config = self._topics.find(topic)
        if config is None or not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return False
        if is_system_group(group) or self._groups.find(group) is None:
            return False
        try:
            self._offsets.commit(group, topic, queue_id, offset, client)
        except Refusal:
            return False
        return True

    def max_offset(self, client: Client, request: GetMaxOffset) -> OffsetReply | Awaitable[OffsetReply]:
        offset = try_read(self._store.max_offset, request.topic, request.queue_id)
        return after_read(self._store, offset, client, lambda end: OffsetReply(offset=end))

    def min_offset(self, client: Client, request: GetMinOffset) -> OffsetReply | Awaitable[OffsetReply]:
        offset = try_read(self._store.min_offset, request.topic, request.queue_id)
        return after_read(self._store, offset, client, lambda begin: OffsetReply(offset=max(0, begin)))

    async def search(self, client: Client, request: SearchOffset) -> OffsetReply:
        """Returns the offset of a queue at a time. A thread searches, because few of the records are in memory."""
        boundary = _BOUNDARIES.get((request.boundary_type or "").lower(), Boundary.NEAREST)
        place = request.topic, request.queue_id, request.timestamp, boundary
        read = partial(self._store.offset_by_time, *place)
        return OffsetReply(offset=await asyncio.wrap_future(self._store.read_cold(read, client)))

    async def earliest_time(self, client: Client, request: GetEarliestTime) -> EarliestTimeReply:
        read = partial(self._store.earliest_time, request.topic, request.queue_id)
        return EarliestTimeReply(timestamp=await asyncio.wrap_future(self._store.read_cold(read, client)))
