"""What brokers ask or tell a push consumer: members changed (40), offsets reset (220), and for administrators its
status (221), its inner state (307), and one message to be consumed right now (309).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.client.handling import Handling
from penstock.client.message import ReceivedMessage
from penstock.format.record import decode_record
from penstock.protocol.bodies.progress import GetConsumerStatusBody, ResetOffsetBody
from penstock.protocol.bodies.running import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import ConsumeDirectly
from penstock.protocol.headers.offsets import GetConsumerStatus, ResetOffset
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

if TYPE_CHECKING:
    from penstock.client.assignment import Assignments
    from penstock.client.offset_store import OffsetStore
    from penstock.client.process_queue import ProcessQueue
    from penstock.client.queue_locks import QueueLocks
    from penstock.protocol.subscription import SubscriptionData


class ConsumerAnswers:
    """The handlers of one push consumer."""

    def __init__(
        self,
        assignments: Assignments,
        offsets: OffsetStore,
        subscriptions: dict[str, SubscriptionData],
        handling: Handling,
        locks: QueueLocks | None,
        properties: dict[str, str],
        wake: Callable[[], None],
    ) -> None:
        self._assignments = assignments
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._handling = handling
        self._locks = locks
        self._properties = properties
        self._wake = wake

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _members_changed(self, connection: Connection, command: Command) -> None:
        self._wake()

    def _reset(self, connection: Connection, command: Command) -> None:
        topic = command.read(ResetOffset).topic
        wanted = ResetOffsetBody.from_bytes(command.body).offset_table
        for queue, offset in wanted.items():
            process_queue = self._assignments.table.get(queue)
            if process_queue is not None and queue.topic == topic:
                self._assignments.restart(process_queue, offset)

    def _status(self, connection: Connection, command: Command) -> Command:
        topic = command.read(GetConsumerStatus).topic
        table = {
            queue: offset
            for queue in self._assignments.table
            if queue.topic == topic and (offset := self._offsets.noted(queue)) is not None
        }
        return command.reply(ResponseCode.SUCCESS, body=GetConsumerStatusBody(message_queue_table=table).to_bytes())

    def _running_info(self, connection: Connection, command: Command) -> Command:
        info = ConsumerRunningInfo(
            properties={**self._properties, "PROP_CLIENT_VERSION": f"penstock {__version__}"},
            subscription_set=list(self._subscriptions.values()),
            mq_table={queue: self._info(each) for queue, each in self._assignments.table.items()},
        )
        return command.reply(ResponseCode.SUCCESS, body=info.to_bytes())

    def _info(self, process_queue: ProcessQueue) -> ProcessQueueInfo:
        in_hand = process_queue.offsets_in_hand
        return ProcessQueueInfo(
            commit_offset=process_queue.commit_offset,
            cached_msg_min_offset=in_hand[0] if in_hand else 0,
            cached_msg_max_offset=in_hand[-1] if in_hand else 0,
            cached_msg_count=len(in_hand),
            cached_msg_size_in_mib=process_queue.bytes_in_hand >> 20,
            locked=self._locks is not None and self._locks.holds(process_queue.queue),
            last_pull_timestamp=process_queue.pulled_at,
            last_consume_timestamp=process_queue.consumed_at,
        )

    async def _consume_directly(self, connection: Connection, command: Command) -> Command:
        header = command.read(ConsumeDirectly)
        message = ReceivedMessage(decode_record(command.body), header.broker_name or "")
        began = time.monotonic()
        outcome = await self._handling.run(message)
        result = ConsumeMessageDirectlyResult(
            order=self._locks is not None,
            consume_result=CMResult.CR_SUCCESS if outcome is None else CMResult.CR_LATER,
            spent_time_mills=int((time.monotonic() - began) * 1000),
        )
        return command.reply(ResponseCode.SUCCESS, body=result.to_bytes())
