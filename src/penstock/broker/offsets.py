"""Offsets that clients ask for: of groups (14, 15) and of queues (29 to 32).

What is committed must be of a queue and a group that there are, so that no client can make the table grow for ever.
"""

from __future__ import annotations

from penstock.broker.group_table import GroupTable
from penstock.broker.offset_table import OffsetTable
from penstock.broker.topic_table import TopicTable
from penstock.protocol.codes import RequestCode, ResponseCode
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
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.query import Boundary
from penstock.store.store import MessageStore

_BOUNDARIES = {"lower": Boundary.LOWER, "upper": Boundary.UPPER}


class Offsets:
    """Answers for the offset table and for the store's queues."""

    def __init__(self, store: MessageStore, offsets: OffsetTable, topics: TopicTable, groups: GroupTable) -> None:
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
        """Where a group goes on. A new group starts at 0 if the queue still has everything, and recent enough."""
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
