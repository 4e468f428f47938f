"""How far consumer groups are, for administrators (208, 303, 317), and a look at a queue's units (321).

Each of these may go over many queues; now and then they let the loop serve others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import numpy as np

from penstock.broker.clients import sql_compiler
from penstock.broker.rates import Rates
from penstock.broker.selection import Selection, SqlCompiler, by_tags
from penstock.broker.settings import SettingsInForce
from penstock.broker.state import BrokerState
from penstock.broker.system_topics import is_system_group
from penstock.errors import PenstockError
from penstock.format.config_tables import TopicConfig
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.protocol.bodies.progress import QueryConsumeTimeSpanBody, QueueTimeSpan
from penstock.protocol.bodies.queue_view import ConsumeQueueData, QueryConsumeQueueResponseBody
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import GetBrokerConsumeStats
from penstock.protocol.headers.groups import GetConsumeStats
from penstock.protocol.headers.offsets import QueryConsumeTimeSpan
from penstock.protocol.headers.query import QueryConsumeQueue
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

_PAUSE_EVERY: Final = 256
"""Queues after which the loop may do something else."""
_MOST_UNITS: Final = 1000
"""That one request is shown."""


class AdminProgress:
    """Answers from the offset table and the store's queues."""

    def __init__(self, state: BrokerState, rates: Rates, compile_sql: SqlCompiler | None = None) -> None:
        self._state = state
        self._rates = rates
        self._compile_sql = compile_sql
        self._seen = 0

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
        found = ConsumeStatsList(broker_addr=self._state.store.settings.store_host)
        for group in sorted(self._state.groups.all()):
            if is_system_group(group):
                continue
            of_group = []
            for config in self._consumed(group, sorted(self._state.offsets.of_group(group))):
                if only_ordered and not config.order:
                    continue
                stats = ConsumeStats(offset_table=await self._progress(group, config))
                stats.consume_tps = self._rates.per_second("GROUP_GET_NUMS", f"{config.name}@{group}")
                found.total_diff += stats.total_diff()
                of_group.append(stats)
            found.consume_stats_list.append({group: of_group})
        return command.reply(ResponseCode.SUCCESS, body=found.to_bytes())

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Those of the topics that there are, and that the group still subscribes to as far as is known."""
        online = self._state.clients.consumers(group)
        for topic in topics:
            config = self._state.topics.find(topic)
            forgotten = online is not None and online.subscriptions and topic not in online.subscriptions
            if config is not None and not forgotten:
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
        end = min(at + min(max(header.count, 0), _MOST_UNITS), queue.max_offset)
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
            shown.msg = "there is no message behind this unit"
        elif isinstance(selection, str):
            shown.msg = selection
        else:
            shown.eval = selection.may_want(np.array([tags_code]))
            if selection.accepts is not None:
                record, _ = self._state.store.records.raw(physical_offset, size)
                shown.eval = record is not None and selection.accepts(record)
        return shown

    # -- helpers ---------------------------------------------------------------------------------------------

    def _queues(self, config: TopicConfig, count: int) -> list[MessageQueue]:
        broker = self._state.settings.now.broker_name
        return [MessageQueue(broker_name=broker, queue_id=number, topic=config.name) for number in range(count)]

    async def _pause(self) -> None:
        self._seen += 1
        if self._seen % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)


def _selected(
    wanted: SubscriptionData | None, compile_sql: SqlCompiler | None, settings: SettingsInForce
) -> Selection | str:
    """What a subscription selects, or why it cannot be used."""
    if wanted is None or wanted.expression_type == TAG:
        return by_tags("*" if wanted is None else wanted.sub_string)
    try:
        return Selection(accepts=sql_compiler(compile_sql, settings)(wanted.sub_string))
    except PenstockError as error:
        return str(error)
