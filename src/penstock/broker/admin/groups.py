"""Consumer groups for administrators: settings, lag, offsets.

Request codes: settings 200, 201, 207, 343, 345 and 352; lag 208, 303 and 317; units of a queue 321; reset and clone of
offsets 222 and 314; offset tables that slaves copy 43 and 45; correction of offsets 308.

A reset is sent to the group's clients (request code 220), which stop, take the new offsets and commit them. If no
client is connected, the reset is refused, as in RocketMQ. Requests that read many queues let the loop serve other
requests in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import numpy as np

from penstock.broker.broker_state import BrokerState
from penstock.broker.consumers import ConsumerGroup, is_legal_group, sql_compiler
from penstock.broker.filters import Selection, SqlCompiler, by_tags
from penstock.broker.settings import SettingsInForce
from penstock.broker.stats import Rates
from penstock.broker.topics import is_system_group
from penstock.errors import PenstockError
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.protocol import fields
from penstock.protocol.bodies.admin import TopicList, decode_config, encode_config
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
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import GetBrokerConsumeStats
from penstock.protocol.headers.groups import DeleteGroup, GetConsumeStats, GroupName, QuerySubscription
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryConsumeTimeSpan, QueryCorrectionOffset, ResetOffset
from penstock.protocol.headers.pull import QueryConsumeQueue
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.protocol.versions import V3_0_7_SNAPSHOT, Language
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

log = logging.getLogger("penstock.broker")
_MAX_RETRY_QUEUES: Final = 4096


class AdminGroups:
    """Changes and shows the group table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._update,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._one,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
        }

    def _update(self, connection: Connection, command: Command) -> Command:
        group, groups = decode_config(SubscriptionGroup, command.body), self._state.groups
        if not is_legal_group(group.name):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{group.name[:40]!r} is not a legal name for a consumer group")
        if not 0 <= group.retry_queue_nums <= _MAX_RETRY_QUEUES:
            why = f"a consumer group has up to {_MAX_RETRY_QUEUES} retry queues, not {group.retry_queue_nums}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        max_groups = self._state.settings.now.max_groups
        if groups.find(group.name) is None and len(groups.all()) >= max_groups:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there are {max_groups} consumer groups already (maxGroups)")
        groups.update(group)
        log.info("updated consumer group %s: by=%s", group.name, connection.peer[0])
        return command.reply(ResponseCode.SUCCESS)

    def _delete(self, connection: Connection, command: Command) -> Command:
        header = command.read(DeleteGroup)
        self._state.groups.delete(header.group_name)
        if header.clean_offset or header.remove_offset:
            self._state.offsets.remove_group(header.group_name)
        self._state.counters.forget_group(header.group_name)
        return command.reply(ResponseCode.SUCCESS)

    def _all(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.groups.snapshot()))

    def _one(self, connection: Connection, command: Command) -> Command:
        name = command.read(GroupName).group
        group = self._state.groups.find(name)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group '{name}' does not exist")
        return command.reply(ResponseCode.SUCCESS, body=encode_config(group))

    def _topics(self, connection: Connection, command: Command) -> Command:
        """Replies with the topics in which the group has offsets."""
        topics = sorted(self._state.offsets.of_group(command.read(GroupName).group))
        return command.reply(ResponseCode.SUCCESS, body=TopicList(topic_list=topics).to_bytes())

    def _subscription(self, connection: Connection, command: Command) -> Command:
        header = command.read(QuerySubscription)
        subscription = self._state.clients.subscription(header.group, header.topic)
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic, subscription_data=subscription)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())


_PAUSE_EVERY: Final = 256
"""Queues that are read between two turns of the loop."""
_MAX_UNITS: Final = 1000
"""Limit of the queue units in one reply."""


class AdminProgress:
    """Lag and progress of groups, from the offset table and the store's queues."""

    def __init__(self, state: BrokerState, rates: Rates, compile_sql: SqlCompiler | None = None) -> None:
        self._state = state
        self._rates = rates
        self._compile_sql = compile_sql
        self._queues_read = 0

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self._group,
            RequestCode.GET_BROKER_CONSUME_STATS: self._all_groups,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.QUERY_CONSUME_QUEUE: self._units,
        }

    # -- groups ----------------------------------------------------------------------------------------------

    async def _group(self, connection: Connection, command: Command) -> Command:
        header = command.read(GetConsumeStats)
        group = header.consumer_group
        named = header.topic or header.topic_list or ""
        names = [name for name in named.split(";") if name] or sorted(self._state.offsets.of_group(group))
        stats = ConsumeStats()
        for config in self._consumed(group, names):
            stats.offset_table |= await self._progress(group, config)
            stats.consume_tps += self._rates.per_second("GROUP_GET_NUMS", f"{config.name}@{group}")
        return command.reply(ResponseCode.SUCCESS, body=stats.to_bytes())

    async def _all_groups(self, connection: Connection, command: Command) -> Command:
        only_ordered = command.read(GetBrokerConsumeStats).is_order
        result = ConsumeStatsList(broker_addr=self._state.store.settings.store_host)
        for group in sorted(self._state.groups.all()):
            if is_system_group(group):
                continue
            of_group = []
            for config in self._consumed(group, sorted(self._state.offsets.of_group(group))):
                if only_ordered and not config.order:
                    continue
                stats = ConsumeStats(offset_table=await self._progress(group, config))
                stats.consume_tps = self._rates.per_second("GROUP_GET_NUMS", f"{config.name}@{group}")
                result.total_diff += stats.total_diff()
                of_group.append(stats)
            result.consume_stats_list.append({group: of_group})
        return command.reply(ResponseCode.SUCCESS, body=result.to_bytes())

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Yields the given topics that exist. Leaves out topics to which a connected group no longer subscribes."""
        online = self._state.clients.consumers(group)
        for topic in topics:
            config = self._state.topics.find(topic)
            unsubscribed = online is not None and online.subscriptions and topic not in online.subscriptions
            if config is not None and not unsubscribed:
                yield config

    async def _progress(self, group: str, config: TopicConfig) -> dict[MessageQueue, OffsetWrapper]:
        store, topic, table = self._state.store, config.name, {}
        for queue in self._queues(config, config.read_queue_nums):
            await self._pause()
            consumed = max(0, self._state.offsets.query(group, topic, queue.queue_id))
            last = store.store_time(topic, queue.queue_id, consumed - 1) if consumed else 0
            table[queue] = OffsetWrapper(
                broker_offset=store.max_offset(topic, queue.queue_id),
                consumer_offset=consumed,
                last_timestamp=max(0, last),
            )
        return table

    async def _time_span(self, connection: Connection, command: Command) -> Command:
        header = command.read(QueryConsumeTimeSpan)
        config = self._state.topics.find(header.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{header.topic}' does not exist")
        store, spans = self._state.store, []
        for queue in self._queues(config, config.write_queue_nums):
            await self._pause()
            place = header.topic, queue.queue_id
            end, consumed = store.max_offset(*place), self._state.offsets.query(header.group, *place)
            oldest = store.earliest_time(*place)
            waiting = store.store_time(*place, max(0, consumed)) if consumed < end else -1
            spans.append(
                QueueTimeSpan(
                    message_queue=queue,
                    min_time_stamp=oldest,
                    max_time_stamp=store.store_time(*place, end - 1),
                    consume_time_stamp=store.store_time(*place, consumed - 1) if consumed > 0 else oldest,
                    delay_time=max(0, self._state.clock() - waiting) if waiting >= 0 else 0,
                )
            )
        return command.reply(
            ResponseCode.SUCCESS, body=QueryConsumeTimeSpanBody(consume_time_span_set=spans).to_bytes()
        )

    # -- units -----------------------------------------------------------------------------------------------

    def _units(self, connection: Connection, command: Command) -> Command:
        header = command.read(QueryConsumeQueue)
        self._state.store.catch_up()
        queue = self._state.store.queues.find(header.topic or "", header.queue_id)
        if queue is None:
            why = f"topic '{header.topic or ''}' has no queue {header.queue_id} with messages"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        wanted = self._state.clients.subscription(header.consumer_group or "", header.topic or "")
        body = QueryConsumeQueueResponseBody(
            subscription_data=wanted, min_queue_index=queue.min_offset, max_queue_index=queue.max_offset
        )
        selection = _selected(wanted, self._compile_sql, self._state.settings)
        at = max(header.index, queue.min_offset)
        end = min(at + min(max(header.count, 0), _MAX_UNITS), queue.max_offset)
        while at < end:
            units = queue.page(at, end - at)
            if units is None:
                break
            for physical_offset, size, tags_code in units.tolist():
                body.queue_data.append(self._unit(physical_offset, size, tags_code, selection))
            at += len(units)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    def _unit(self, physical_offset: int, size: int, tags_code: int, selection: Selection | str) -> ConsumeQueueData:
        shown = ConsumeQueueData(physic_offset=physical_offset, physic_size=size, tags_code=tags_code, eval=False)
        if size == NO_RECORD_SIZE:
            shown.msg = "this unit has no message"
        elif isinstance(selection, str):
            shown.msg = selection
        else:
            shown.eval = selection.may_match(np.array([tags_code]))
            if selection.accepts is not None:
                record, _ = self._state.store.records.raw(physical_offset, size)
                shown.eval = record is not None and selection.accepts(record)
        return shown

    # -- helpers ---------------------------------------------------------------------------------------------

    def _queues(self, config: TopicConfig, count: int) -> list[MessageQueue]:
        broker = self._state.settings.now.broker_name
        return [MessageQueue(broker_name=broker, queue_id=number, topic=config.name) for number in range(count)]

    async def _pause(self) -> None:
        self._queues_read += 1
        if self._queues_read % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)


def _selected(
    wanted: SubscriptionData | None, compile_sql: SqlCompiler | None, settings: SettingsInForce
) -> Selection | str:
    """Returns the selection of a subscription, or the error message if it cannot be used."""
    if wanted is None or wanted.expression_type == TAG:
        return by_tags("*" if wanted is None else wanted.sub_string)
    try:
        return Selection(accepts=sql_compiler(compile_sql, settings)(wanted.sub_string))
    except PenstockError as error:
        return str(error)


_TO_END: Final = -1
_NO_CORRECTION: Final = 2**63 - 1


class AdminOffsets:
    """Changes and shows the offset table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all,
            RequestCode.GET_ALL_DELAY_OFFSET: self._all_delays,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction,
        }

    # -- reset -----------------------------------------------------------------------------------------------

    def _reset(self, connection: Connection, command: Command) -> Command:
        header = command.read(ResetOffset)
        config = self._state.topics.find(header.topic)
        if config is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{header.topic}' does not exist")
        body = ResetOffsetBody(offset_table=self._targets(header, config))
        group = self._state.clients.consumers(header.group)
        if group is None:
            why = f"no consumer of group '{header.group}' is connected to take the new offsets"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, why)
        self._notify(group, header, body)
        target = "end" if header.timestamp == _TO_END else header.timestamp
        log.info("offsets reset: group=%s topic=%s to=%s by=%s", header.group, header.topic, target, connection.peer[0])
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    def _targets(self, header: ResetOffset, config: TopicConfig) -> dict[MessageQueue, int]:
        """Returns the new offset of each queue. Without `is_force`, offsets only go back. Raises Refusal."""
        queues = range(config.write_queue_nums)
        if header.queue_id is not None and header.queue_id >= 0:
            if header.queue_id not in queues:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{config.name}' has no queue {header.queue_id}")
            queues = range(header.queue_id, header.queue_id + 1)
        broker, table = self._state.settings.now.broker_name, {}
        for queue_id in queues:
            consumed = self._state.offsets.query(header.group, config.name, queue_id)
            if consumed < 0:
                why = f"group '{header.group}' has consumed nothing of queue {queue_id} of topic '{config.name}' yet"
                raise Refusal(ResponseCode.SYSTEM_ERROR, why)
            target = self._target(header, config.name, queue_id)
            queue = MessageQueue(broker_name=broker, queue_id=queue_id, topic=config.name)
            table[queue] = target if header.is_force else min(target, consumed)
        return table

    def _target(self, header: ResetOffset, topic: str, queue_id: int) -> int:
        store = self._state.store
        if header.queue_id is not None and header.queue_id >= 0 and header.offset is not None and header.offset >= 0:
            return header.offset
        if header.timestamp == _TO_END:
            return store.max_offset(topic, queue_id)
        return max(0, store.offset_by_time(topic, queue_id, header.timestamp))

    def _notify(self, group: ConsumerGroup, header: ResetOffset, body: ResetOffsetBody) -> None:
        old = [client.client_id for client in group.clients.values() if client.version < V3_0_7_SNAPSHOT]
        if old:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the client '{old[0]}' is too old to receive new offsets")
        arguments = fields.write(header)
        for client in group.clients.values():
            data = body.for_cpp().to_bytes() if client.language is Language.CPP else body.to_bytes()
            client.connection.request_oneway(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(arguments), data))

    # -- the table -------------------------------------------------------------------------------------------

    def _clone(self, connection: Connection, command: Command) -> Command:
        header, state = command.read(CloneGroupOffset), self._state
        if state.groups.find_or_create(header.dest_group) is None:
            why = f"consumer group '{header.dest_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        online = None if header.offline else state.clients.consumers(header.src_group)
        for topic in [header.topic] if header.topic else sorted(state.offsets.of_group(header.src_group)):
            unsubscribed = online is not None and online.subscriptions and topic not in online.subscriptions
            if state.topics.find(topic) is not None and not unsubscribed:
                state.offsets.clone(header.src_group, header.dest_group, topic)
        log.info("offsets cloned: from=%s to=%s by=%s", header.src_group, header.dest_group, connection.peer[0])
        return command.reply(ResponseCode.SUCCESS)

    def _all(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.offsets.snapshot()))

    def _all_delays(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.delayed.snapshot()))

    def _correction(self, connection: Connection, command: Command) -> Command:
        """Replies with the lowest offset of all groups in each queue of the topic.

        The value is _NO_CORRECTION in a queue where the compared group's own offset is lower.
        """
        header, state = command.read(QueryCorrectionOffset), self._state
        excluded = {name for name in (header.filter_groups or "").split(",") if name}
        lowest: dict[int, int] = {}
        for group in state.offsets.groups_of(header.topic):
            if group not in excluded:
                for queue_id, offset in state.offsets.of_queue(group, header.topic).items():
                    if offset >= max(0, state.store.min_offset(header.topic, queue_id)):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in state.offsets.of_queue(header.compare_group, header.topic).items():
            if lowest.get(queue_id, _NO_CORRECTION) > offset:
                lowest[queue_id] = _NO_CORRECTION
        body = QueryCorrectionOffsetBody(correction_offsets=lowest)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())
