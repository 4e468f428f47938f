"""The push consumer: calls a handler for every message of its topics, and shares the queues with its group's members.

    async def handle(message):
        print(message.text)

    consumer = PushConsumer("warehouse", handle, "127.0.0.1:9876", subscriptions={"orders": "paid || refunded"})
    asyncio.run(consumer.run())

`run` consumes until the process gets SIGTERM or SIGINT, and lets running handlers finish. `async with` starts and
closes a consumer inside a program. `consumer.on(topic)` decorates the handler of one topic. A consumer without any
handler is iterated over: `async for message in consumer`.

A message is consumed when the handler returns None. If the handler raises, or returns `Later`, the broker delivers the
message again; after the last retry, or when the handler returns `DeadLetter`, it becomes a dead letter of the group. In
a loop, a message is consumed when the loop asks for the next one. Delivery is at least once: a message can arrive again
after a crash or a rebalance. A consumer is not thread-safe: use it from its event loop's thread only. A handler that is
not a coroutine function runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from penstock import __version__
from penstock.client.assigned_queues import Assignments, Consumption, ProcessQueue
from penstock.client.client_instance import ClientInstance, ClientLifecycle, check_group
from penstock.client.config import Namesrv
from penstock.client.message import ReceivedMessage
from penstock.client.message_delivery import UNLIMITED, ConcurrentConsumption, OrderedConsumption, SendBackRequests
from penstock.client.offsets import BrokerOffsets, ConsumeFrom, FileOffsets, OffsetStore, QueueOffsets, StartOffset
from penstock.client.pull_requests import make_subscription
from penstock.client.queue_locks import RENEW_S, ClientQueueLocks
from penstock.client.rebalance import Rebalance
from penstock.client.user_handlers import AnyHandler, DeadLetter, HandlerRunner, Later
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
from penstock.remoting.handler_types_and_errors import Handler

log = logging.getLogger("penstock.client")

_SAVE_EVERY_S: Final = 5.0
_RETRIES: Final = 16
H = TypeVar("H", bound=AnyHandler)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Options of a push consumer. The constructor raises BadSettings for an invalid value."""

    ordered: bool = False
    """Whether each queue delivers one message at a time, in order. A failed message blocks its queue and is retried in
    place.
    """
    broadcast: bool = False
    """Whether every consumer gets every message and keeps its own offsets. A failed message is not retried, by an
    ordered consumer up to `max_reconsume_times` times in place, and then skipped.
    """
    consume_from: ConsumeFrom = "last"
    """Start of a group without offsets: "first", "last", or a store time in epoch milliseconds. See `StartOffset`."""
    max_in_flight: int = 20
    """Limit of concurrent handler calls."""
    max_reconsume_times: int | None = None
    """Retries before a message is a dead letter. Default: 16, unlimited for ordered consumers of a group."""
    batch_size: int | None = None
    """With a number, handlers are called with lists of up to so many messages of one queue and topic. Their result is
    that of all messages, or a list with one for each.
    """
    consume_timeout_s: float = 900.0
    """Timeout of one handler call. After it, the message counts as failed."""
    suspend_s: float = 1.0
    """Pause of an ordered queue after a failed message."""
    pull_batch: int = 32
    """Messages per pull request."""
    body_limit: int = MAX_SIZE
    """Limit of a decompressed body, in bytes."""
    offset_file: Path | str | None = None
    """The offset file of a broadcast consumer. Without it, offsets are in memory and each start uses `consume_from`."""
    close_timeout_s: float = 10.0
    """How long `close` waits for running handlers."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.pull_batch < 1:
            raise BadSettings("`max_in_flight` and `pull_batch` of a push consumer must be at least 1")
        if self.batch_size is not None and self.batch_size < 1:
            raise BadSettings("`batch_size` of a push consumer must be at least 1, or None")
        if self.max_reconsume_times is not None and self.max_reconsume_times < 0:
            raise BadSettings("`max_reconsume_times` of a push consumer must be at least 0, or None")
        if self.offset_file is not None and not self.broadcast:
            raise BadSettings("`offset_file` is for broadcast consumers only; brokers store the offsets of the others")


class PushConsumer(ClientLifecycle):
    """One member of a consumer group. Start it once and close it once; `async with` does both."""

    def __init__(
        self,
        group: str,
        handler: AnyHandler | None = None,
        namesrv: Namesrv = None,
        *,
        subscriptions: Mapping[str, str] | None = None,
        options: PushOptions | None = None,
    ) -> None:
        """`subscriptions` maps each topic to its filter: "*", tags such as "paid || refunded", or an `Sql92`
        expression. Raises BadSettings for an invalid group, handler, topic or filter.
        """
        check_group(group)
        self.group = group
        self._options = options = options or PushOptions()
        self._instance = instance = ClientInstance(namesrv)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._queue_offsets = QueueOffsets(instance)
        self._runner = HandlerRunner(handler, options.max_in_flight, options.consume_timeout_s, options.batch_size)
        self._store: OffsetStore = (
            FileOffsets(None if options.offset_file is None else Path(options.offset_file))
            if options.broadcast
            else BrokerOffsets(group, self._queue_offsets)
        )
        self._start_offset = StartOffset(options.consume_from, self._store, self._queue_offsets)
        self._locks = ClientQueueLocks(instance, group) if options.ordered and not options.broadcast else None
        self._assignments = Assignments(
            instance,
            group,
            self._subscriptions,
            self._store,
            self._locks,
            self._start_offset.find,
            commit_on_pull=not options.broadcast,
            pull_batch=options.pull_batch,
            body_limit=options.body_limit,
        )
        self._rebalance = Rebalance(
            instance, group, self._subscriptions, self._assignments, all_queues=options.broadcast
        )
        self._rebalance_task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        if not options.broadcast:
            self._add(f"{RETRY_PREFIX}{group}", EVERYTHING)
        for topic, expression in (subscriptions or {}).items():
            self._add(topic, expression)

    # -- lifecycle -------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Joins the group. Raises Unreachable if no name server answers, Refused if a broker rejects a filter."""
        instance = self._instance
        instance.consumer = self._heartbeat
        self._assignments.consumption = self._consumption()
        requests = ConsumerRequestHandlers(
            self._assignments,
            self._store,
            self._subscriptions,
            self._runner,
            self._locks,
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": str(self._options.ordered).lower()},
            self._rebalance.wake,
        )
        instance.handlers.update(requests.handlers())
        try:
            for topic in list(self._subscriptions):
                await self._check(topic)
            await instance.send_heartbeats()
        except BaseException:
            await self.close()
            raise
        instance.start()
        instance.run_every(_SAVE_EVERY_S, self._store.save)
        if self._locks is not None:
            instance.run_every(RENEW_S, self._renew_locks)
        self._rebalance_task = asyncio.create_task(self._rebalance.run())
        return self

    async def close(self) -> None:
        """Leaves the group: stops pulling, waits for running handlers, and stores the offsets. Callers that come while
        this goes on wait for its end, too.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._stop.set()
        self._runner.stream.close()
        if self._rebalance_task is not None:
            self._rebalance_task.cancel()
            await asyncio.gather(self._rebalance_task, return_exceptions=True)
        await self._assignments.close(self._options.close_timeout_s)
        self._runner.close()
        await self._instance.close()

    async def run(self) -> None:
        """Starts the consumer if it is not started, and consumes until SIGTERM or SIGINT, or until `close`. Then
        running handlers finish, for `close_timeout_s` at most. In a thread other than the main one, only `close` ends
        it.
        """
        loop = asyncio.get_running_loop()
        with on_stop_signals(lambda: loop.call_soon_threadsafe(self._stop.set)):
            try:
                if self._rebalance_task is None:
                    await self.start()
                await self._stop.wait()
            finally:
                await self.close()

    # -- handlers and loops ----------------------------------------------------------------------------------

    def on(self, topic: str, expression: str = EVERYTHING) -> Callable[[H], H]:
        """Decorates the handler of a topic and subscribes to it. Raises BadSettings after the start: use `handle`."""
        if self._rebalance_task is not None:
            raise BadSettings("this consumer has started; use `await consumer.handle(topic, handler)`")

        def decorate(handler: H) -> H:
            self._runner.add(topic, handler)
            self._add(topic, expression)
            return handler

        return decorate

    async def handle(self, topic: str, handler: AnyHandler, expression: str = EVERYTHING) -> None:
        """Sets the handler of a topic and subscribes to it, also while the consumer runs."""
        self._runner.add(topic, handler)
        await self.subscribe(topic, expression)

    async def __aiter__(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Yields messages until `close`, of topics without a handler. A message is consumed when the next one is asked
        for. The one at which a loop is left is not consumed: the next loop begins with it, or it comes again after
        `close`.
        """
        stream = self._runner.stream
        while (message := await stream.take()) is not None:
            try:
                yield message
            except GeneratorExit:
                stream.put_back(message)
                raise
            stream.finish(message, None)

    def reject(self, message: ReceivedMessage, outcome: Later | DeadLetter | None = None) -> None:
        """In a loop: the message is not consumed, but delivered again (`Later`, the default) or a dead letter. Raises
        BadSettings if it is not the message of a running loop.
        """
        if not self._runner.stream.finish(message, outcome or Later()):
            raise BadSettings(
                f"{message!r} is not being consumed by a loop over this consumer; call reject inside the loop"
            )

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """This consumer's id at the brokers."""
        return self._instance.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this consumer owns now, including those of the retry topic."""
        return sorted(self._assignments.table)

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str = EVERYTHING) -> None:
        """Adds a topic, or changes its filter. All members of a group must have the same subscriptions."""
        self._add(topic, expression)
        if self._rebalance_task is not None:
            await self._check(topic)
            await self._instance.send_heartbeats()
            self._rebalance.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Removes a topic."""
        self._subscriptions.pop(topic, None)
        if self._rebalance_task is not None:
            await self._instance.send_heartbeats()
            self._rebalance.wake()

    def _add(self, topic: str, expression: str) -> None:
        self._subscriptions[topic] = make_subscription(topic, expression)

    async def _check(self, topic: str) -> None:
        """Fetches a topic's route. If the filter is SQL, asks the topic's brokers to validate it; they refuse an
        invalid one.
        """
        try:
            route = await self._instance.routes.find(topic)
        except NoRoute as error:
            if not topic.startswith(RETRY_PREFIX):
                log.warning("%s; consumption starts when the topic exists", error)
            return
        subscription = self._subscriptions[topic]
        if subscription.expression_type != TAG:
            body = CheckClientRequestBody(
                client_id=self.client_id, group=self.group, subscription_data=subscription
            ).to_bytes()
            for address in route.masters.values():
                await self._instance.request(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)

    # -- parts -----------------------------------------------------------------------------------------------

    def _heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            message_model=MessageModel.BROADCASTING if self._options.broadcast else MessageModel.CLUSTERING,
            consume_from_where=self._start_offset.where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def _consumption(self) -> Consumption:
        options = self._options
        max_times = options.max_reconsume_times
        if max_times is None:
            max_times = UNLIMITED if options.ordered and not options.broadcast else _RETRIES
        send_backs = None if options.broadcast else SendBackRequests(self._instance, self.group, max_times)
        if not options.ordered:
            return ConcurrentConsumption(self._runner, self._store, send_backs, options.max_in_flight)
        return OrderedConsumption(
            self._runner,
            self._store,
            send_backs,
            self._locks,
            self._assignments.restart,
            max_in_flight=options.max_in_flight,
            max_times=max_times,
            suspend_s=options.suspend_s,
        )

    async def _renew_locks(self) -> None:
        assert self._locks is not None
        await self._locks.lock(self._assignments.locked())


@contextlib.contextmanager
def on_stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Calls `stop` at SIGTERM and SIGINT instead of what the process does otherwise. A second signal does that. Does
    nothing in a thread other than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def stop_once(number: int, frame: object) -> None:
        restore()
        stop()

    for number in previous:
        signal.signal(number, stop_once)
    try:
        yield
    finally:
        restore()


class ConsumerRequestHandlers:
    """Handlers of the requests that brokers send to one push consumer.

    The broker's own requests are: members changed (request code 40) and offsets reset (220). Requests that the broker
    relays for administrators are: status (221), running info (307), and consuming one message at once (309).
    """

    def __init__(
        self,
        assignments: Assignments,
        offsets: OffsetStore,
        subscriptions: dict[str, SubscriptionData],
        runner: HandlerRunner,
        locks: ClientQueueLocks | None,
        properties: dict[str, str],
        rebalance: Callable[[], None],
    ) -> None:
        self._assignments = assignments
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._runner = runner
        self._locks = locks
        self._properties = properties
        self._rebalance = rebalance

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _members_changed(self, connection: Connection, command: Command) -> None:
        self._rebalance()

    def _reset(self, connection: Connection, command: Command) -> None:
        topic = command.read(ResetOffset).topic
        offsets = ResetOffsetBody.from_bytes(command.body).offset_table
        for queue, offset in offsets.items():
            process_queue = self._assignments.table.get(queue)
            if process_queue is not None and queue.topic == topic:
                self._assignments.restart(process_queue, offset)

    def _status(self, connection: Connection, command: Command) -> Command:
        topic = command.read(GetConsumerStatus).topic
        table = {
            queue: offset
            for queue in self._assignments.table
            if queue.topic == topic and (offset := self._offsets.current(queue)) is not None
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
        cached = process_queue.cached_offsets
        return ProcessQueueInfo(
            commit_offset=process_queue.commit_offset,
            cached_msg_min_offset=cached[0] if cached else 0,
            cached_msg_max_offset=cached[-1] if cached else 0,
            cached_msg_count=len(cached),
            cached_msg_size_in_mib=process_queue.cached_bytes >> 20,
            locked=self._locks is not None and self._locks.holds(process_queue.queue),
            last_pull_timestamp=process_queue.pulled_at,
            last_consume_timestamp=process_queue.consumed_at,
        )

    async def _consume_directly(self, connection: Connection, command: Command) -> Command:
        header = command.read(ConsumeDirectly)
        message = ReceivedMessage(decode_record(command.body), header.broker_name or "")
        started = time.monotonic()
        (outcome,) = await self._runner.run([message])
        result = ConsumeMessageDirectlyResult(
            order=self._locks is not None,
            consume_result=CMResult.CR_SUCCESS if outcome is None else CMResult.CR_LATER,
            spent_time_mills=int((time.monotonic() - started) * 1000),
        )
        return command.reply(ResponseCode.SUCCESS, body=result.to_bytes())
