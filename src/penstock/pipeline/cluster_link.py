"""A client of a cluster for the pipeline's plain code, and how patient it is.

`ClusterAccess` is what a worker must know to reach a cluster; it is pickled, and shows no secret when printed. A
`ClusterLink` is the client itself: one event loop in a thread of its own. It belongs to whoever made it; only `run` is
for plain code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from penstock.client.config import ClientConfig
from penstock.client.credentials import Credentials
from penstock.client.fetch import Pull, PulledRecords, pull_records
from penstock.client.instance import ClientInstance
from penstock.client.loop_thread import LoopThread
from penstock.client.queue_offsets import QueueOffsets
from penstock.client.subscription import make_subscription
from penstock.errors import BadSettings, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.pipeline.options import Options
from penstock.pipeline.ranges import Queue
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.subscription import EVERYTHING

log = logging.getLogger("penstock.pipeline")

T = TypeVar("T")

_TIMEOUT_S: Final = 10.0
"""For one request: a page from a cold disk takes a broker longer than what clients usually wait."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_AT_ONCE: Final = 256
"""Requests that wait for their answers."""
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Where a cluster is, who reads it, and in which group's name."""

    namesrv: str
    group: str
    credentials: Credentials | None = None
    patience_s: float = 30.0
    """How long a broker that was there may be away before that is an error."""

    @classmethod
    def of(cls, options: Options) -> Self:
        """Raises BadSettings if half of an account is given."""
        if bool(options.access_key) != bool(options.secret_key):
            given, missing = ("accessKey", "secretKey") if options.access_key else ("secretKey", "accessKey")
            raise BadSettings(f"{given} is given without {missing}; give both, or none of them")
        account = Credentials(options.access_key, options.secret_key) if options.access_key else None
        return cls(options.namesrv, options.consumer_group, account)


class ClusterLink:
    """A client that runs from its making until `close`. Raises BadSettings for an address that is none."""

    def __init__(self, access: ClusterAccess, *, reached: bool = False) -> None:
        """`reached`: somebody has reached the cluster lately, so it is worth waiting for."""
        self._access = access
        self._reached = reached
        config = ClientConfig(access.namesrv, credentials=access.credentials, timeout_s=_TIMEOUT_S)
        self._thread = LoopThread("penstock pipeline")
        self.instance = self._thread.run(_make(config))
        self.offsets = QueueOffsets(self.instance)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; an interrupt cancels it."""
        return self._thread.run(work)

    def close(self) -> None:
        """Does nothing the second time."""
        if not self._thread.is_closed:
            try:
                self._thread.run(self.instance.close())
            finally:
                self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- within its loop -------------------------------------------------------------------------------------

    async def steadily(self, ask: Callable[[], Awaitable[T]], doing: str, topics: tuple[str, ...] = ()) -> T:
        """What `ask` returns, which is called again while the cluster is away for a moment.

        A cluster that was never reached is not waited for: its address is more likely wrong. `doing` is for the error,
        as in "while … were read"; the routes of `topics` are asked for anew in between.
        """
        clock = asyncio.get_running_loop().time
        began, pause = clock(), _FIRST_PAUSE_S
        while True:
            try:
                found = await ask()
            except (Unreachable, NoAnswer, NoRoute, Refused) as error:
                if not self._may_pass(error):
                    raise
                waited = clock() - began
                if waited >= self._access.patience_s:
                    raise Unreachable(
                        f"{error}; {doing}, and to wait {waited:.0f} s did not change that; check that all brokers run"
                    ) from None
                log.debug("asking again: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                await self.instance.routes.refresh(topics)
            else:
                self._reached = True
                return found

    async def pull(self, queue: Queue, offset: int, most: int, tags: str = EVERYTHING) -> PulledRecords:
        """A page from the queue's master, which alone has everything. Steadily."""
        pull = Pull(
            group=self._access.group,
            queue=message_queue(queue),
            offset=offset,
            subscription=make_subscription(queue.topic, tags),
            max_messages=most,
        )

        async def ask() -> PulledRecords:
            routes = self.instance.routes
            await routes.find(queue.topic)
            return await pull_records(self.instance, pull, routes.address(queue.broker))

        doing = f"topic {queue.topic} queue {queue.queue_id} of broker {queue.broker} was being read from {offset} on"
        return await self.steadily(ask, doing, (queue.topic,))

    async def min_offset(self, queue: Queue) -> int:
        """Of the oldest message that is still there. Steadily."""
        doing = f"the oldest message of topic {queue.topic} queue {queue.queue_id} was being asked for"
        return await self.steadily(lambda: self.offsets.min_offset(message_queue(queue)), doing, (queue.topic,))

    def _may_pass(self, error: PenstockError) -> bool:
        """Whether the same request may be answered a little later."""
        if isinstance(error, Refused):
            return error.code in _BUSY
        return self._reached


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them return, a limited number at a time; the first error ends the others."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await each

    given = list(work)
    tasks = [asyncio.create_task(one(each)) for each in given]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in given:
            each.close()  # what was not begun


def message_queue(queue: Queue) -> MessageQueue:
    """The same queue as clients call it."""
    return MessageQueue(broker_name=queue.broker, queue_id=queue.queue_id, topic=queue.topic)


async def _make(config: ClientConfig) -> ClientInstance:
    return ClientInstance(config)
