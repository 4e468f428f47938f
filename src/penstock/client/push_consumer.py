"""What brokers ask or tell a push consumer: members changed (40), offsets reset (220), and for administrators its
status (221), its inner state (307), and one message to be consumed right now (309).


Has a handler called for every message of its topics, and shares the work with the other members of its group.

    async def handle(message):
        print(message.body)

    async with PushConsumer("warehouse", handle, "127.0.0.1:9876", subscriptions={"orders": "paid || refunded"}):
        await asyncio.sleep(60)

A message counts as consumed when the handler has returned; what it raises, or `Later`, brings the message again, and in
the end to the group's dead letters. Every message is handled at least once, and sometimes again: after a crash, or when
queues change hands. Belongs to the thread of one event loop; a plain handler is called in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from penstock import __version__
from penstock.client.assignment import Assignments, Consumption
from penstock.client.config import Namesrv
from penstock.client.delivery import (
    ConcurrentConsumption,
    Handling,
    MessageHandler,
    OrderedConsumption,
    SendBackRequests,
)
from penstock.client.fetch import make_subscription
from penstock.client.instance import ClientInstance, Started
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import BrokerOffsets, ConsumeFrom, FileOffsets, OffsetStore, QueueOffsets, StartOffset
from penstock.client.queue_locks import RENEW_S, ClientQueueLocks
from penstock.client.rebalance import Rebalance
from penstock.errors import BadSettings, NoRoute
from penstock.format.constants import RETRY_PREFIX
from penstock.format.record import decode_record
from penstock.protocol.bodies.clients import (
    CheckClientRequestBody,
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    MessageModel,
    ProcessQueueInfo,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import GetConsumerStatusBody, ResetOffsetBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.compression import MAX_SIZE
from penstock.protocol.headers.groups import ConsumeDirectly
from penstock.protocol.headers.offsets import GetConsumerStatus, ResetOffset
from penstock.protocol.subscription import EVERYTHING, TAG, SubscriptionData
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

if TYPE_CHECKING:
    from penstock.client.assignment import Assignments, ProcessQueue
    from penstock.client.offsets import OffsetStore
    from penstock.client.queue_locks import ClientQueueLocks
    from penstock.protocol.subscription import SubscriptionData


class ConsumerAnswers:
    """The handlers of one push consumer."""

    def __init__(
        self,
        assignments: Assignments,
        offsets: OffsetStore,
        subscriptions: dict[str, SubscriptionData],
        handling: Handling,
        locks: ClientQueueLocks | None,
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


log = logging.getLogger("penstock.client")
_SAVE_EVERY_S: Final = 5.0
_RETRIES: Final = 16
_FOR_EVER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How a push consumer consumes."""

    ordered: bool = False
    """One message of a queue at a time, in the queue's order; what fails is tried again in place."""
    broadcast: bool = False
    """Every consumer gets every message, and keeps its own offsets; what fails is not retried."""
    consume_from: ConsumeFrom = "last"
    """Where a group without offsets begins: "first", "last", or a time in epoch milliseconds."""
    max_in_flight: int = 20
    """Messages that are with the handler at once."""
    max_reconsume_times: int | None = None
    """Retries before a message is a dead letter; 16 unless given, and for ordered consumers without end."""
    consume_timeout_s: float = 900.0
    """For one call of the handler; then the message counts as failed."""
    suspend_s: float = 1.0
    """How long an ordered queue rests after a message failed."""
    pull_batch: int = 32
    """Messages that one request asks for."""
    body_limit: int = MAX_SIZE
    """Bytes of a body once it is inflated."""
    offset_file: Path | str | None = None
    """Where a broadcast consumer keeps its offsets; without one it begins by `consume_from` each time."""
    close_timeout_s: float = 10.0
    """How long `close` waits for messages that are with the handler."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.pull_batch < 1:
            raise BadSettings("`max_in_flight` and `pull_batch` of a push consumer must be at least 1")
        if self.offset_file is not None and not self.broadcast:
            raise BadSettings("`offset_file` is for broadcast consumers; those of others are kept by the brokers")


class PushConsumer(Started):
    """One member of a consumer group. Started once, closed once; `async with` does both."""

    def __init__(
        self,
        group: str,
        handler: MessageHandler,
        namesrv: Namesrv = None,
        *,
        subscriptions: Mapping[str, str] | None = None,
        options: PushOptions | None = None,
    ) -> None:
        """`subscriptions` are expressions by topic: "*", tags as in "paid || refunded", or `Sql92`."""
        self.group = group
        self._options = options = options or PushOptions()
        self._instance = instance = ClientInstance(namesrv)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._offsets_asked = QueueOffsets(instance)
        self._handling = Handling(handler, options.max_in_flight, options.consume_timeout_s)
        self._store: OffsetStore = (
            FileOffsets(None if options.offset_file is None else Path(options.offset_file))
            if options.broadcast
            else BrokerOffsets(group, self._offsets_asked)
        )
        self._start_offset = StartOffset(options.consume_from, self._store, self._offsets_asked)
        self._locks = ClientQueueLocks(instance, group) if options.ordered and not options.broadcast else None
        self._assignments = Assignments(
            instance,
            group,
            self._subscriptions,
            self._store,
            self._locks,
            self._start_offset.find,
            commits=not options.broadcast,
            pull_batch=options.pull_batch,
            body_limit=options.body_limit,
        )
        self._rebalance = Rebalance(
            instance, group, self._subscriptions, self._assignments, everything=options.broadcast
        )
        self._rounds: asyncio.Task[None] | None = None
        self._closed = False
        if not options.broadcast:
            self._add(f"{RETRY_PREFIX}{group}", EVERYTHING)
        for topic, expression in (subscriptions or {}).items():
            self._add(topic, expression)

    # -- running ---------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Joins the group. Raises Unreachable if no name server answers, Refused for a filter that no broker takes."""
        instance = self._instance
        instance.consumer = self._data
        self._assignments.consumption = self._consumption()
        answers = ConsumerAnswers(
            self._assignments,
            self._store,
            self._subscriptions,
            self._handling,
            self._locks,
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": str(self._options.ordered).lower()},
            self._rebalance.wake,
        )
        instance.handlers.update(answers.handlers())
        try:
            for topic in list(self._subscriptions):
                await self._check(topic)
            await instance.beat()
        except BaseException:
            await self.close()
            raise
        instance.start()
        instance.every(_SAVE_EVERY_S, self._store.save)
        if self._locks is not None:
            instance.every(RENEW_S, lambda: self._renew())
        self._rounds = asyncio.create_task(self._rebalance.run())
        return self

    async def close(self) -> None:
        """Leaves the group: takes no more, waits for what is with the handler, and stores how far it came."""
        if self._closed:
            return
        self._closed = True
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        await self._assignments.close(self._options.close_timeout_s)
        self._handling.close()
        await self._instance.close()

    @property
    def client_id(self) -> str:
        """The name by which the brokers know this consumer."""
        return self._instance.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this consumer has now, the retry topic's among them."""
        return sorted(self._assignments.table)

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str = EVERYTHING) -> None:
        """Consumes one topic more, or another selection of it. All members of a group must subscribe to the same."""
        self._add(topic, expression)
        if self._rounds is not None:
            await self._check(topic)
            await self._instance.beat()
            self._rebalance.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Consumes one topic less."""
        self._subscriptions.pop(topic, None)
        if self._rounds is not None:
            await self._instance.beat()
            self._rebalance.wake()

    def _add(self, topic: str, expression: str) -> None:
        self._subscriptions[topic] = make_subscription(topic, expression)

    async def _check(self, topic: str) -> None:
        """Learns a topic's route, and asks a broker whether it takes the filter."""
        try:
            route = await self._instance.routes.find(topic)
        except NoRoute as error:
            if not topic.startswith(RETRY_PREFIX):
                log.warning("%s; it will be consumed when it is there", error)
            return
        subscription = self._subscriptions[topic]
        if subscription.expression_type != TAG:
            body = CheckClientRequestBody(
                client_id=self.client_id, group=self.group, subscription_data=subscription
            ).to_bytes()
            for address in route.masters.values():
                await self._instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)

    # -- parts -----------------------------------------------------------------------------------------------

    def _data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            message_model=MessageModel.BROADCASTING if self._options.broadcast else MessageModel.CLUSTERING,
            consume_from_where=self._start_offset.where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def _consumption(self) -> Consumption:
        options = self._options
        most = options.max_reconsume_times
        if most is None:
            most = _FOR_EVER if options.ordered else _RETRIES
        send_backs = None if options.broadcast else SendBackRequests(self._instance, self.group, most)
        if not options.ordered:
            return ConcurrentConsumption(self._handling, self._store, send_backs, options.max_in_flight)
        return OrderedConsumption(
            self._handling,
            self._store,
            send_backs,
            self._locks,
            self._assignments.restart,
            max_in_flight=options.max_in_flight,
            suspend_s=options.suspend_s,
        )

    async def _renew(self) -> None:
        assert self._locks is not None
        await self._locks.lock(list(self._assignments.table))
