"""Has a handler called for every message of its topics, and shares the work with the other members of its group.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock.client.assignment import Assignments, Consumption
from penstock.client.config import Namesrv
from penstock.client.consume_concurrently import ConcurrentConsumption
from penstock.client.consume_orderly import OrderedConsumption
from penstock.client.consumer_answers import ConsumerAnswers
from penstock.client.handling import Handling, MessageHandler
from penstock.client.instance import ClientInstance
from penstock.client.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from penstock.client.queue_locks import RENEW_S, QueueLocks
from penstock.client.queue_offsets import QueueOffsets
from penstock.client.rebalance import Rebalance
from penstock.client.send_back import SendBacks
from penstock.client.start_offset import ConsumeFrom, StartOffset
from penstock.client.started import Started
from penstock.client.subscription import make_subscription
from penstock.errors import BadSettings, NoRoute
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, MessageModel
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.compression import MAX_SIZE
from penstock.protocol.subscription import EVERYTHING, TAG, SubscriptionData

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
        self._locks = QueueLocks(instance, group) if options.ordered and not options.broadcast else None
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
        send_backs = None if options.broadcast else SendBacks(self._instance, self.group, most)
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
