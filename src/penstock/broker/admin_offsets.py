"""Moving the progress of consumer groups, for administrators (222, 314), and what slaves copy of it (43, 45, 308).

A reset is told to the group's clients (220), which stop, take the new offsets and commit them; a group without clients
has nobody to do that, and the answer says so, as in RocketMQ.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.client_table import ConsumerGroup
from penstock.broker.state import BrokerState
from penstock.format.config_tables import TopicConfig
from penstock.protocol import fields
from penstock.protocol.bodies.configs import encode_config
from penstock.protocol.bodies.progress import QueryCorrectionOffsetBody, ResetOffsetBody
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryCorrectionOffset, ResetOffset
from penstock.protocol.languages import Language
from penstock.protocol.versions import V3_0_7_SNAPSHOT
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

log = logging.getLogger("penstock.broker")

_TO_THE_END: Final = -1
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
            why = f"no consumer of group '{header.group}' is connected, so nobody could take the new offsets"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, why)
        self._tell(group, header, body)
        log.info("group %s is told to go to time %d in topic %s", header.group, header.timestamp, header.topic)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    def _targets(self, header: ResetOffset, config: TopicConfig) -> dict[MessageQueue, int]:
        """Where each queue goes on. Without force, none goes forward. Raises Refusal."""
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
        if header.timestamp == _TO_THE_END:
            return store.max_offset(topic, queue_id)
        return max(0, store.offset_by_time(topic, queue_id, header.timestamp))

    def _tell(self, group: ConsumerGroup, header: ResetOffset, body: ResetOffsetBody) -> None:
        old = [client.client_id for client in group.clients.values() if client.version < V3_0_7_SNAPSHOT]
        if old:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the client '{old[0]}' is too old to be told new offsets")
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
            forgotten = online is not None and online.subscriptions and topic not in online.subscriptions
            if state.topics.find(topic) is not None and not forgotten:
                state.offsets.clone(header.src_group, header.dest_group, topic)
        log.info("group %s starts where group %s is", header.dest_group, header.src_group)
        return command.reply(ResponseCode.SUCCESS)

    def _all(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.offsets.snapshot()))

    def _all_delays(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.delayed.snapshot()))

    def _correction(self, connection: Connection, command: Command) -> Command:
        """By queue the lowest offset of all groups; none where the group to compare with is not behind it."""
        header, state = command.read(QueryCorrectionOffset), self._state
        left_out = {name for name in (header.filter_groups or "").split(",") if name}
        lowest: dict[int, int] = {}
        for group in state.offsets.groups_of(header.topic):
            if group not in left_out:
                for queue_id, offset in state.offsets.of_queue(group, header.topic).items():
                    if offset >= max(0, state.store.min_offset(header.topic, queue_id)):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in state.offsets.of_queue(header.compare_group, header.topic).items():
            if lowest.get(queue_id, _NO_CORRECTION) > offset:
                lowest[queue_id] = _NO_CORRECTION
        body = QueryCorrectionOffsetBody(correction_offsets=lowest)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())
