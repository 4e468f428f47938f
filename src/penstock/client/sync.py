"""The clients for blocking code and notebooks. They have the same names and methods, without `await`.

    from penstock.client.sync import Message, Producer

    with Producer("orders-service", "127.0.0.1:9876") as producer:
        print(producer.send(Message("orders", b"two shirts")).msg_id)

Each client runs its asynchronous counterpart on an event loop in its own thread, from creation until `close`. All
methods are thread-safe. The handler of a push consumer runs in a thread pool, unless it is a coroutine function.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from penstock.client import admin, producer, pull_consumer, push_consumer, transaction_producer
from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.groups import GroupAdmin
from penstock.client.admin.messages import MessageAdmin
from penstock.client.admin.topics import OffsetAdmin, TopicAdmin
from penstock.client.config import ClientConfig, Credentials, Namesrv
from penstock.client.event_loop_thread import Blocking, Facade, blocking
from penstock.client.message import Message, ReceivedMessage
from penstock.client.offsets import QueueOffsets
from penstock.client.producer import ProducerOptions
from penstock.client.pull_requests import Sql92
from penstock.client.push_consumer import PushOptions
from penstock.client.transaction_producer import TransactionCheck, TransactionState
from penstock.client.user_handlers import AnyHandler, DeadLetter, Later
from penstock.errors import PenstockError
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.subscription import EVERYTHING

__all__ = [
    "Admin",
    "ClientConfig",
    "Credentials",
    "DeadLetter",
    "Later",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "Sql92",
    "TransactionProducer",
    "TransactionState",
]

H = TypeVar("H", bound=AnyHandler)
R = TypeVar("R")

_SIGNAL_POLL_S = 0.2


class Producer(Facade[producer.Producer]):
    """See `penstock.client.Producer`."""

    def __init__(self, group: str, namesrv: Namesrv = None, *, options: ProducerOptions | None = None) -> None:
        super().__init__(lambda: producer.Producer(group, namesrv, options=options), f"penstock producer {group}")

    send = blocking(producer.Producer.send)
    send_batch = blocking(producer.Producer.send_batch)
    send_oneway = blocking(producer.Producer.send_oneway)
    flush = blocking(producer.Producer.flush)
    queues = blocking(producer.Producer.queues)


class TransactionProducer(Facade[transaction_producer.TransactionProducer]):
    """See `penstock.client.TransactionProducer`. Local transactions run on the thread of the client's event loop."""

    def __init__(
        self, group: str, check: TransactionCheck, namesrv: Namesrv = None, *, options: ProducerOptions | None = None
    ) -> None:
        super().__init__(
            lambda: transaction_producer.TransactionProducer(group, check, namesrv, options=options),
            f"penstock producer {group}",
        )

    send = blocking(producer.Producer.send)
    send_batch = blocking(producer.Producer.send_batch)
    send_oneway = blocking(producer.Producer.send_oneway)
    flush = blocking(producer.Producer.flush)
    queues = blocking(producer.Producer.queues)
    send_in_transaction = blocking(transaction_producer.TransactionProducer.send_in_transaction)


class PushConsumer(Facade[push_consumer.PushConsumer]):
    """See `penstock.client.PushConsumer`. It starts to consume when it is created."""

    def __init__(
        self,
        group: str,
        handler: AnyHandler | None = None,
        namesrv: Namesrv = None,
        *,
        subscriptions: Mapping[str, str] | None = None,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(
            lambda: push_consumer.PushConsumer(group, handler, namesrv, subscriptions=subscriptions, options=options),
            f"penstock consumer {group}",
        )
        self._stop: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it

    subscribe = blocking(push_consumer.PushConsumer.subscribe)
    unsubscribe = blocking(push_consumer.PushConsumer.unsubscribe)
    handle = blocking(push_consumer.PushConsumer.handle)

    def on(self, topic: str, expression: str = EVERYTHING) -> Callable[[H], H]:
        """Decorates the handler of a topic and subscribes to it."""

        def decorate(handler: H) -> H:
            self.handle(topic, handler, expression)
            return handler

        return decorate

    def run(self) -> None:
        """Consumes until SIGTERM or SIGINT, or until `close` in another thread. Then running handlers finish, for
        `close_timeout_s` at most. In a thread other than the main one, only `close` ends it.
        """
        with push_consumer.on_stop_signals(lambda: self._stop.put(None)):
            try:
                while True:  # a signal before the wait, or at another thread, does not end it: Python only notes it
                    with suppress(Empty):
                        return self._stop.get(timeout=_SIGNAL_POLL_S)
            finally:
                self.close()

    def close(self) -> None:
        """Leaves the group: stops pulling, waits for running handlers, and stores the offsets. Idempotent."""
        self._stop.put(None)
        super().close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yields messages until `close`, of topics without a handler. A message is consumed when the next one is asked
        for. The one at which a loop is left is not consumed: the next loop begins with it, or it comes again after
        `close`.
        """
        messages = self._inner.__aiter__()
        try:
            while (message := self._run_until_close(_next(messages))) is not None:
                yield message
        finally:
            self._run_until_close(messages.aclose())

    def _run_until_close(self, coroutine: Coroutine[Any, Any, R]) -> R | None:
        """Runs a coroutine on the loop; returns None if this consumer is closed, by another thread."""
        try:
            return self._thread.run(coroutine)
        except PenstockError:
            if self._thread.is_closed:
                return None
            raise

    def reject(self, message: ReceivedMessage, outcome: Later | DeadLetter | None = None) -> None:
        """In a loop: the message is not consumed, but delivered again (`Later`, the default) or a dead letter."""

        async def reject() -> None:
            self._inner.reject(message, outcome)

        self._thread.run(reject())

    @property
    def client_id(self) -> str:
        return self._inner.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this consumer owns now."""

        async def assigned() -> list[MessageQueue]:
            return self._inner.assigned

        return self._thread.run(assigned())


async def _next(messages: AsyncIterator[ReceivedMessage]) -> ReceivedMessage | None:
    return await anext(messages, None)


class _Offsets(Blocking[QueueOffsets]):
    """See `penstock.client.offsets`."""

    min_offset = blocking(QueueOffsets.min_offset)
    max_offset = blocking(QueueOffsets.max_offset)
    offset_by_time = blocking(QueueOffsets.offset_by_time)
    earliest_time = blocking(QueueOffsets.earliest_time)
    committed = blocking(QueueOffsets.committed)
    commit = blocking(QueueOffsets.commit)


class PullConsumer(Facade[pull_consumer.PullConsumer]):
    """See `penstock.client.PullConsumer`."""

    def __init__(self, group: str, namesrv: Namesrv = None, *, max_messages: int = 32) -> None:
        super().__init__(
            lambda: pull_consumer.PullConsumer(group, namesrv, max_messages=max_messages),
            f"penstock consumer {group}",
        )
        self.offsets = _Offsets(self._inner.offsets, self._thread)

    queues = blocking(pull_consumer.PullConsumer.queues)
    pull = blocking(pull_consumer.PullConsumer.pull)
    poll = blocking(pull_consumer.PullConsumer.poll)
    commit = blocking(pull_consumer.PullConsumer.commit)
    position = blocking(pull_consumer.PullConsumer.position)
    seek_to_time = blocking(pull_consumer.PullConsumer.seek_to_time)

    def assign(self, queues: Iterable[MessageQueue], *, expression: str = EVERYTHING) -> None:
        """Makes `poll` read these queues, each from the group's offset or, if it has none, from the queue's start."""

        async def assign() -> None:
            self._inner.assign(queues, expression=expression)

        self._thread.run(assign())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Makes the next poll read the queue from `offset`."""

        async def seek() -> None:
            self._inner.seek(queue, offset)

        self._thread.run(seek())


class _Cluster(Blocking[ClusterAdmin]):
    """See `penstock.client.admin.brokers`."""

    info = blocking(ClusterAdmin.info)
    masters = blocking(ClusterAdmin.masters)
    targets = blocking(ClusterAdmin.targets)
    runtime_info = blocking(ClusterAdmin.runtime_info)
    counters = blocking(ClusterAdmin.counters)
    replication = blocking(ClusterAdmin.replication)
    broker_config = blocking(ClusterAdmin.broker_config)
    update_broker_config = blocking(ClusterAdmin.update_broker_config)
    broker_stats = blocking(ClusterAdmin.broker_stats)
    wipe_write_perm = blocking(ClusterAdmin.wipe_write_perm)
    add_write_perm = blocking(ClusterAdmin.add_write_perm)
    namesrv_config = blocking(ClusterAdmin.namesrv_config)
    update_namesrv_config = blocking(ClusterAdmin.update_namesrv_config)
    get_kv = blocking(ClusterAdmin.get_kv)
    list_kv = blocking(ClusterAdmin.list_kv)
    put_kv = blocking(ClusterAdmin.put_kv)
    delete_kv = blocking(ClusterAdmin.delete_kv)


class _Topics(Blocking[TopicAdmin]):
    """See `penstock.client.admin.topics`."""

    names = blocking(TopicAdmin.names)
    route = blocking(TopicAdmin.route)
    clusters = blocking(TopicAdmin.clusters)
    config = blocking(TopicAdmin.config)
    configs = blocking(TopicAdmin.configs)
    stats = blocking(TopicAdmin.stats)
    groups = blocking(TopicAdmin.groups)
    masters = blocking(TopicAdmin.masters)
    create = blocking(TopicAdmin.create)
    delete = blocking(TopicAdmin.delete)


class _Groups(Blocking[GroupAdmin]):
    """See `penstock.client.admin.groups`."""

    configs = blocking(GroupAdmin.configs)
    progress = blocking(GroupAdmin.progress)
    all_progress = blocking(GroupAdmin.all_progress)
    connections = blocking(GroupAdmin.connections)
    producers = blocking(GroupAdmin.producers)
    all_producers = blocking(GroupAdmin.all_producers)
    topics = blocking(GroupAdmin.topics)
    running_info = blocking(GroupAdmin.running_info)
    update = blocking(GroupAdmin.update)
    delete = blocking(GroupAdmin.delete)


class _AdminOffsets(_Offsets):
    """See `penstock.client.admin.topics`."""

    queues = blocking(OffsetAdmin.queues)
    reset = blocking(OffsetAdmin.reset)
    clone = blocking(OffsetAdmin.clone)
    time_span = blocking(OffsetAdmin.time_span)


class _Messages(Blocking[MessageAdmin]):
    """See `penstock.client.admin.messages`."""

    by_key = blocking(MessageAdmin.by_key)
    by_unique_id = blocking(MessageAdmin.by_unique_id)
    by_offset_id = blocking(MessageAdmin.by_offset_id)
    by_id = blocking(MessageAdmin.by_id)
    page = blocking(MessageAdmin.page)
    at = blocking(MessageAdmin.at)
    units = blocking(MessageAdmin.units)
    consume_directly = blocking(MessageAdmin.consume_directly)


class Admin(Facade[admin.Admin]):
    """See `penstock.client.Admin`."""

    def __init__(self, namesrv: Namesrv = None) -> None:
        super().__init__(lambda: admin.Admin(namesrv), "penstock admin")
        self.cluster = _Cluster(self._inner.cluster, self._thread)
        self.topics = _Topics(self._inner.topics, self._thread)
        self.groups = _Groups(self._inner.groups, self._thread)
        self.offsets = _AdminOffsets(self._inner.offsets, self._thread)
        self.messages = _Messages(self._inner.messages, self._thread)
