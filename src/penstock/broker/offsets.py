"""Consumer offsets: consumerOffset.json in memory, and clients' requests (codes 14, 15 and 29 to 32).

A consumer offset is the next queue offset to consume. The file is written every few seconds, not at each commit: after
a crash the offsets are a few seconds old, and consumers get the messages since then again. A commit must name an
existing queue and group, so that clients cannot grow the table without limit. Use everything here from the loop's
thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.broker.consumers import GroupTable
from penstock.broker.topics import BrokerTopics
from penstock.format.config_tables import ConsumerOffsets
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.offsets import (
    GetEarliestTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler
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

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def _query(self, connection: Connection, command: Command) -> Command:
        """Answers with the offset at which a group resumes, or QUERY_NOT_FOUND.

        A group without an offset starts at 0 if the queue still has its first message, this message is still in memory,
        and the request does not set setZeroIfNotFound to false.
        """
        header = command.read(QueryConsumerOffset)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset >= 0:
            return _offset(command, offset)
        first = self._store.get(header.topic, header.queue_id, 0, 1)
        if header.set_zero_if_not_found is False or first.min_offset > 0 or first.suggest_slave:
            why = f"group '{header.consumer_group}' has consumed nothing of this queue yet"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, why)
        return _offset(command, 0)

    def _update(self, connection: Connection, command: Command) -> Command:
        header = command.read(UpdateConsumerOffset)
        config = self._topics.find(header.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{header.topic}' does not exist")
        if not 0 <= header.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{header.topic}' has no queue {header.queue_id}")
        if self._groups.find_or_create(header.consumer_group) is None:
            why = f"consumer group '{header.consumer_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return command.reply(ResponseCode.SUCCESS)

    def _max(self, connection: Connection, command: Command) -> Command:
        header = command.read(GetMaxOffset)
        return _offset(command, self._store.max_offset(header.topic, header.queue_id))

    def _min(self, connection: Connection, command: Command) -> Command:
        header = command.read(GetMinOffset)
        return _offset(command, max(0, self._store.min_offset(header.topic, header.queue_id)))

    def _search(self, connection: Connection, command: Command) -> Command:
        header = command.read(SearchOffset)
        boundary = _BOUNDARIES.get((header.boundary_type or "").lower(), Boundary.NEAREST)
        return _offset(command, self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary))

    def _earliest(self, connection: Connection, command: Command) -> Command:
        header = command.read(GetEarliestTime)
        timestamp = self._store.earliest_time(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, ext={"timestamp": str(timestamp)})


def _offset(command: Command, offset: int) -> Command:
    return command.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)})
