"""Consumer groups for administrators: settings, lag, offsets.

A reset is sent to the group's clients, which stop, take the new offsets and commit them. If no client is connected, the
reset is refused, as in RocketMQ. Store times and records may be on disk only, so they are read in the store's threads,
one read of a client at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

import numpy as np

from penstock.broker.consumers import ConsumerGroup, is_legal_group, sql_compiler
from penstock.broker.filters import Selection, SqlCompiler, by_tags
from penstock.broker.operations_as_plain_calls import Client, ClientRequests, Operation, administration
from penstock.broker.settings import SettingsInForce
from penstock.broker.stats import Rates
from penstock.broker.table_persistence import BrokerState
from penstock.broker.topics import is_system_group
from penstock.errors import PenstockError
from penstock.format.config_tables import (
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
)
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.protocol.bodies.admin import TopicList
from penstock.protocol.bodies.queues import (
    ConsumeQueueData,
    MessageQueue,
    QueryConsumeQueueResponseBody,
    QuerySubscriptionResponseBody,
)
from penstock.protocol.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
)
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import GetBrokerConsumeStats, ProgressReply
from penstock.protocol.headers.groups import DeleteGroup, GetConsumeStats, GroupName, QuerySubscription
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryConsumeTimeSpan, QueryCorrectionOffset, ResetOffset
from penstock.protocol.headers.pull import QueryConsumeQueue
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.protocol.versions import V3_0_7_SNAPSHOT, Language

_MAX_RETRY_QUEUES: Final = 4096


class AdminGroups:
    """Changes and shows the group table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("update group", self.update, changes=True),
            administration("delete group", self.delete, changes=True),
            administration("all groups", self.all_groups, for_slaves=True),
            administration("show group", self.show),
            administration("group topics", self.topics),
            administration("group subscription", self.subscription),
        )

    def update(self, client: Client, group: SubscriptionGroup) -> None:
        """Creates or changes a group."""
        groups = self._state.groups
        if not is_legal_group(group.name):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{group.name[:40]!r} is not a legal name for a consumer group")
        if not 0 <= group.retry_queue_nums <= _MAX_RETRY_QUEUES:
            why = f"a consumer group has up to {_MAX_RETRY_QUEUES} retry queues, not {group.retry_queue_nums}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        max_groups = self._state.settings.now.max_groups
        if groups.find(group.name) is None and len(groups.all()) >= max_groups:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there are {max_groups} consumer groups already (maxGroups)")
        groups.update(group)

    def delete(self, client: Client, request: DeleteGroup) -> None:
        self._state.groups.delete(request.group_name)
        if request.clean_offset or request.remove_offset:
            self._state.offsets.remove_group(request.group_name)
        self._state.counters.forget_group(request.group_name)

    def all_groups(self, client: Client) -> SubscriptionGroups:
        return self._state.groups.snapshot()

    def show(self, client: Client, request: GroupName) -> SubscriptionGroup:
        group = self._state.groups.find(request.group)
        if group is None:
            why = f"consumer group '{request.group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        return group

    def topics(self, client: Client, request: GroupName) -> TopicList:
        """Returns the topics in which the group has offsets."""
        return TopicList(topic_list=sorted(self._state.offsets.of_group(request.group)))

    def subscription(self, client: Client, request: QuerySubscription) -> QuerySubscriptionResponseBody:
        subscription = self._state.clients.subscription(request.group, request.topic)
        return QuerySubscriptionResponseBody(group=request.group, topic=request.topic, subscription_data=subscription)


_MAX_UNITS: Final = 1000
"""Limit of the queue units in one reply."""


class AdminProgress:
    """Lag and progress of groups, from the offset table and the store's queues."""

    def __init__(self, state: BrokerState, rates: Rates, compile_sql: SqlCompiler | None = None) -> None:
        self._state = state
        self._rates = rates
        self._compile_sql = compile_sql

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("group progress", self.group),
            administration("all progress", self.all_groups),
            administration("time span", self.time_span),
            administration("queue units", self.units),
        )

    # -- groups ----------------------------------------------------------------------------------------------

    async def group(self, client: Client, request: GetConsumeStats) -> ConsumeStats:
        group = request.consumer_group
        named = request.topic or request.topic_list or ""
        names = [name for name in named.split(";") if name] or sorted(self._state.offsets.of_group(group))
        stats = ConsumeStats()
        for config in self._consumed(group, names):
            stats.offset_table |= await self._progress(client, group, config)
            stats.consume_tps += self._rates.per_second("GROUP_GET_NUMS", f"{config.name}@{group}")
        return stats

    async def all_groups(self, client: Client, request: GetBrokerConsumeStats) -> ConsumeStatsList:
        result = ConsumeStatsList(broker_addr=self._state.store.settings.store_host)
        for group in sorted(self._state.groups.all()):
            if is_system_group(group):
                continue
            of_group = []
            for config in self._consumed(group, sorted(self._state.offsets.of_group(group))):
                if request.is_order and not config.order:
                    continue
                stats = ConsumeStats(offset_table=await self._progress(client, group, config))
                stats.consume_tps = self._rates.per_second("GROUP_GET_NUMS", f"{config.name}@{group}")
                result.total_diff += stats.total_diff()
                of_group.append(stats)
            result.consume_stats_list.append({group: of_group})
        return result

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Yields the given topics that exist. Leaves out topics to which a connected group no longer subscribes."""
        online = self._state.clients.consumers(group)
        for topic in topics:
            config = self._state.topics.find(topic)
            unsubscribed = online is not None and online.subscriptions and topic not in online.subscriptions
            if config is not None and not unsubscribed:
                yield config

    async def _progress(self, client: Client, group: str, config: TopicConfig) -> dict[MessageQueue, OffsetWrapper]:
        store, topic = self._state.store, config.name
        offsets = self._state.offsets.of_queue(group, topic)

        def read() -> dict[MessageQueue, OffsetWrapper]:
            table = {}
            for queue in self._queues(config, config.read_queue_nums):
                consumed = max(0, offsets.get(queue.queue_id, 0))
                last = store.store_time(topic, queue.queue_id, consumed - 1) if consumed else 0
                table[queue] = OffsetWrapper(
                    broker_offset=store.max_offset(topic, queue.queue_id),
                    consumer_offset=consumed,
                    last_timestamp=max(0, last),
                )
            return table

        return await asyncio.wrap_future(store.read_cold(read, client))

    async def time_span(self, client: Client, request: QueryConsumeTimeSpan) -> QueryConsumeTimeSpanBody:
        config = self._state.topics.find(request.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{request.topic}' does not exist")
        store, offsets = self._state.store, self._state.offsets.of_queue(request.group, request.topic)

        def read() -> list[QueueTimeSpan]:
            return [
                self._span(queue, offsets.get(queue.queue_id, -1))
                for queue in self._queues(config, config.write_queue_nums)
            ]

        spans = await asyncio.wrap_future(store.read_cold(read, client))
        return QueryConsumeTimeSpanBody(consume_time_span_set=spans)

    def _span(self, queue: MessageQueue, consumed: int) -> QueueTimeSpan:
        store, place = self._state.store, (queue.topic, queue.queue_id)
        end, oldest = store.max_offset(*place), store.earliest_time(*place)
        waiting = store.store_time(*place, max(0, consumed)) if consumed < end else -1
        return QueueTimeSpan(
            message_queue=queue,
            min_time_stamp=oldest,
            max_time_stamp=store.store_time(*place, end - 1),
            consume_time_stamp=store.store_time(*place, consumed - 1) if consumed > 0 else oldest,
            delay_time=max(0, self._state.clock() - waiting) if waiting >= 0 else 0,
        )

    # -- units -----------------------------------------------------------------------------------------------

    async def units(self, client: Client, request: QueryConsumeQueue) -> QueryConsumeQueueResponseBody:
        """Returns units of a queue, and whether the subscription of a connected group selects each.

        The filter data of RocketMQ are bloom filters, which Penstock does not have: the text says so.
        """
        group, topic = request.consumer_group or "", request.topic or ""
        wanted = self._state.clients.subscription(group, topic) if group else None
        selection = None if wanted is None else _selected(wanted, self._compile_sql, self._state.settings)
        read = partial(self._read_units, request, selection)
        body = await asyncio.wrap_future(self._state.store.read_cold(read, client))
        body.subscription_data = wanted
        if group:
            body.filter_data = f"{group}@{topic} is not online!" if wanted is None else "null"
        return body

    def _read_units(
        self, request: QueryConsumeQueue, selection: Selection | str | None
    ) -> QueryConsumeQueueResponseBody:
        self._state.store.catch_up()
        queue = self._state.store.queues.find(request.topic or "", request.queue_id)
        if queue is None:
            why = f"topic '{request.topic or ''}' has no queue {request.queue_id} with messages"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        body = QueryConsumeQueueResponseBody(min_queue_index=queue.min_offset, max_queue_index=queue.max_offset)
        at = max(request.index, queue.min_offset)
        end = min(at + min(max(request.count, 0), _MAX_UNITS), queue.max_offset)
        while at < end:
            units = queue.page(at, end - at)
            if units is None:
                break
            for physical_offset, size, tags_code in units.tolist():
                body.queue_data.append(self._unit(physical_offset, size, tags_code, selection))
            at += len(units)
        return body

    def _unit(
        self, physical_offset: int, size: int, tags_code: int, selection: Selection | str | None
    ) -> ConsumeQueueData:
        shown = ConsumeQueueData(physic_offset=physical_offset, physic_size=size, tags_code=tags_code, eval=False)
        if size == NO_RECORD_SIZE:
            shown.msg = "this unit has no message"
        elif isinstance(selection, str):
            shown.msg = selection
        elif selection is not None:
            shown.eval = selection.may_match(np.array([tags_code]))
            if selection.accepts is not None:
                record, _ = self._state.store.records.raw(physical_offset, size)
                shown.eval = record is not None and selection.accepts(record)
        return shown

    # -- helpers ---------------------------------------------------------------------------------------------

    def _queues(self, config: TopicConfig, count: int) -> list[MessageQueue]:
        broker = self._state.settings.now.broker_name
        return [MessageQueue(broker_name=broker, queue_id=number, topic=config.name) for number in range(count)]


def _selected(wanted: SubscriptionData, compile_sql: SqlCompiler | None, settings: SettingsInForce) -> Selection | str:
    """Returns the selection of a subscription, or the error message if it cannot be used."""
    try:
        if wanted.expression_type == TAG:
            return by_tags(wanted.sub_string)
        return Selection(accepts=sql_compiler(compile_sql, settings)(wanted.sub_string))
    except PenstockError as error:
        return str(error)


_TO_END: Final = -1
_NO_CORRECTION: Final = 2**63 - 1


class AdminOffsets:
    """Changes and shows the offset table."""

    def __init__(self, state: BrokerState, requests: ClientRequests) -> None:
        self._state = state
        self._requests = requests

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("reset offsets", self.reset, changes=True),
            administration("clone offsets", self.clone, changes=True),
            administration("all offsets", self.all_offsets, for_slaves=True),
            administration("delay offsets", self.delay_offsets, for_slaves=True),
            administration("correct offsets", self.correct),
        )

    # -- reset -----------------------------------------------------------------------------------------------

    async def reset(self, client: Client, request: ResetOffset) -> ResetOffsetBody:
        config = self._state.topics.find(request.topic)
        if config is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{request.topic}' does not exist")
        body = ResetOffsetBody(offset_table=await self._targets(client, request, config))
        group = self._state.clients.consumers(request.group)
        if group is None:
            why = f"no consumer of group '{request.group}' is connected to take the new offsets"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, why)
        self._notify(group, request, body)
        return body

    async def _targets(self, client: Client, request: ResetOffset, config: TopicConfig) -> dict[MessageQueue, int]:
        """Returns the new offset of each queue. Without `is_force`, offsets only go back. Raises Refusal."""
        queues = range(config.write_queue_nums)
        if request.queue_id is not None and request.queue_id >= 0:
            if request.queue_id not in queues:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{config.name}' has no queue {request.queue_id}")
            queues = range(request.queue_id, request.queue_id + 1)
        broker, table = self._state.settings.now.broker_name, {}
        for queue_id in queues:
            consumed = self._state.offsets.query(request.group, config.name, queue_id)
            if consumed < 0:
                why = f"group '{request.group}' has consumed nothing of queue {queue_id} of topic '{config.name}' yet"
                raise Refusal(ResponseCode.SYSTEM_ERROR, why)
            read = partial(self._target, request, config.name, queue_id)
            target = await asyncio.wrap_future(self._state.store.read_cold(read, client))
            queue = MessageQueue(broker_name=broker, queue_id=queue_id, topic=config.name)
            table[queue] = target if request.is_force else min(target, consumed)
        return table

    def _target(self, request: ResetOffset, topic: str, queue_id: int) -> int:
        store = self._state.store
        if (
            request.queue_id is not None
            and request.queue_id >= 0
            and request.offset is not None
            and request.offset >= 0
        ):
            return request.offset
        if request.timestamp == _TO_END:
            return store.max_offset(topic, queue_id)
        return max(0, store.offset_by_time(topic, queue_id, request.timestamp))

    def _notify(self, group: ConsumerGroup, request: ResetOffset, body: ResetOffsetBody) -> None:
        old = [member.client_id for member in group.clients.values() if member.version < V3_0_7_SNAPSHOT]
        if old:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the client '{old[0]}' is too old to receive new offsets")
        for member in group.clients.values():
            data = body.for_cpp().to_bytes() if member.language is Language.CPP else body.to_bytes()
            self._requests.tell(member.client, request, data)

    # -- the table -------------------------------------------------------------------------------------------

    def clone(self, client: Client, request: CloneGroupOffset) -> None:
        state = self._state
        if state.groups.find_or_create(request.dest_group) is None:
            why = f"consumer group '{request.dest_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        online = None if request.offline else state.clients.consumers(request.src_group)
        for topic in [request.topic] if request.topic else sorted(state.offsets.of_group(request.src_group)):
            unsubscribed = online is not None and online.subscriptions and topic not in online.subscriptions
            if state.topics.find(topic) is not None and not unsubscribed:
                state.offsets.clone(request.src_group, request.dest_group, topic)

    def all_offsets(self, client: Client) -> tuple[ConsumerOffsets, ProgressReply]:
        """Returns the offset table, which is all that RocketMQ's slaves read. Penstock's also read the log's end."""
        return self._state.offsets.snapshot(), self._log_end()

    def delay_offsets(self, client: Client) -> tuple[DelayOffsets, ProgressReply]:
        return self._state.delayed.snapshot(), self._log_end()

    def _log_end(self) -> ProgressReply:
        """Returns where the log ends. Only the loop's thread moves the broker's own positions, so a snapshot taken in
        the same turn of the loop rests on nothing behind it."""
        return ProgressReply(penstock_log_end=self._state.store.watermarks.appended)

    def correct(self, client: Client, request: QueryCorrectionOffset) -> QueryCorrectionOffsetBody:
        """Returns the lowest offset of all groups in each queue of the topic.

        The value is _NO_CORRECTION in a queue where the compared group's own offset is lower.
        """
        state = self._state
        excluded = {name for name in (request.filter_groups or "").split(",") if name}
        lowest: dict[int, int] = {}
        for group in state.offsets.groups_of(request.topic):
            if group not in excluded:
                for queue_id, offset in state.offsets.of_queue(group, request.topic).items():
                    queue = state.store.queues.find(request.topic, queue_id)  # dispatch does not change its minimum
                    if offset >= (0 if queue is None else queue.min_offset):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in state.offsets.of_queue(request.compare_group, request.topic).items():
            if lowest.get(queue_id, _NO_CORRECTION) > offset:
                lowest[queue_id] = _NO_CORRECTION
        return QueryCorrectionOffsetBody(correction_offsets=lowest)
