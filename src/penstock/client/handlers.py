"""The user's side of a push consumer: handlers, their outcomes, how they are called, and messages for `async for`.

A coroutine function runs on the client's event loop. Any other handler runs in a thread pool, so it may block. A
handler that exceeds its timeout counts as failed: a coroutine is cancelled, but a thread keeps running. The classes are
not thread-safe: use them from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

from penstock.client.message import ReceivedMessage, check_delay_level
from penstock.errors import BadSettings
from penstock.protocol.bodies.queues import MessageQueue

log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True)
class Later:
    """A handler's result for a message that it could not consume and that must be delivered again later.

    `delay_level` 0 lets the broker choose the delay, which grows with each retry. Levels 1 to 18 are those of
    `Message.delay_level`. Ordered consumers retry in place, whatever the level. `reason` is for the log.
    """

    delay_level: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        check_delay_level(self.delay_level)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A handler's result for a message that must not be retried: it becomes a dead letter of the group at once.

    `reason` is for the log.
    """

    reason: str = ""


Outcome: TypeAlias = Later | DeadLetter | None
"""A handler's result. None means that the message is consumed."""
MessageHandler: TypeAlias = Callable[[ReceivedMessage], Awaitable[Outcome] | Outcome]
"""A function or a coroutine function. If it raises, the message is not consumed and is retried later."""
BatchOutcome: TypeAlias = Outcome | Sequence[Outcome]
"""The outcome of all messages of a batch, or one for each."""
BatchHandler: TypeAlias = Callable[[list[ReceivedMessage]], Awaitable[BatchOutcome] | BatchOutcome]
"""A handler of a consumer with `batch_size`. If it raises, no message of the batch is consumed."""
AnyHandler: TypeAlias = MessageHandler | BatchHandler


class _Call(NamedTuple):
    """How to call a handler."""

    function: Callable[[Any], Any]
    is_async: bool
    timeout_s: float | None
    is_batch: bool


class HandlerRunner:
    """Calls the handler of a message's topic, else the consumer's own one.

    A handler that is not a coroutine function runs in a pool of `max_threads` threads. With a `batch_size`, handlers
    are called with lists of up to so many messages.
    """

    def __init__(
        self, handler: AnyHandler | None, max_threads: int, timeout_s: float, batch_size: int | None = None
    ) -> None:
        """Without a `handler`, messages of topics without one are taken from `stream`."""
        self.batch_size = batch_size or 1
        """Limit of the messages of one call."""
        self.stream = MessageStream()
        self._is_batch = batch_size is not None
        self._max_threads = max_threads
        self._timeout_s = timeout_s
        self._threads: ThreadPoolExecutor | None = None
        self._by_topic: dict[str, _Call] = {}
        self._default = _Call(self.stream.hand_over, True, None, False) if handler is None else self._call(handler)

    def add(self, topic: str, handler: AnyHandler) -> None:
        """Sets the handler of a topic. Raises BadSettings if it cannot be called."""
        self._by_topic[topic] = self._call(handler)

    def _call(self, handler: AnyHandler) -> _Call:
        if not callable(handler):
            raise BadSettings(f"the handler of a push consumer must be a function, not {handler!r}")
        call = getattr(handler, "__call__", None)  # noqa: B004  # of an object with an asynchronous __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        return _Call(handler, is_async, self._timeout_s, self._is_batch)

    async def run(self, messages: Sequence[ReceivedMessage]) -> list[Outcome]:
        """Calls the handler with messages of one topic, at most `batch_size`, and returns the outcome of each. An
        exception or a timeout becomes `Later`.
        """
        call = self._by_topic.get(messages[0].topic, self._default)
        if call.is_batch:
            return _outcomes(await self._run(call, list(messages), messages[0]), messages)
        outcomes = []
        for message in messages:
            result = await self._run(call, message, message)
            outcomes.append(None if result is None else _outcome(result, message))
        return outcomes

    async def _run(self, call: _Call, argument: object, first: ReceivedMessage) -> object:
        try:
            async with asyncio.timeout(call.timeout_s):
                if call.is_async:
                    return await call.function(argument)
                result = await asyncio.get_running_loop().run_in_executor(self._pool(), call.function, argument)
                return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            return Later(reason=f"the handler took longer than {call.timeout_s:g} s, or raised TimeoutError")
        except Exception as error:
            log.debug("the handler failed with %r", first, exc_info=True)
            return Later(reason=_describe(error))

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_threads, "penstock handler")
        return self._threads

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _outcome(result: object, message: ReceivedMessage) -> Outcome:
    if result is None or isinstance(result, (Later, DeadLetter)):
        return result
    log.warning("%r: the handler returned %r instead of None, Later or DeadLetter; consumed", message, result)
    return None


def _outcomes(result: object, messages: Sequence[ReceivedMessage]) -> list[Outcome]:
    if not isinstance(result, (list, tuple)):
        return [_outcome(result, message) for message in messages]
    if len(result) != len(messages):
        reason = f"the handler returned {len(result)} outcomes for {len(messages)} messages"
        return [Later(reason=reason) for _ in messages]
    return [_outcome(each, message) for each, message in zip(result, messages, strict=True)]


def _describe(error: Exception) -> str:
    """Returns an error in one line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


# -- async for -------------------------------------------------------------------------------------------------------


class MessageStream:
    """The messages of a consumer without a handler, on their way to those who iterate over it.

    A message counts as being handled from `hand_over` until `finish`. `close` leaves the others as they are: they are
    not consumed, and come again.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[ReceivedMessage, asyncio.Future[Outcome]]] = deque()
        self._taken: dict[ReceivedMessage, asyncio.Future[Outcome]] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    async def hand_over(self, message: ReceivedMessage) -> Outcome:
        """The handler: returns the outcome that `finish` sets. It is cancelled by `close` and `withdraw`."""
        if self._closed:
            raise asyncio.CancelledError
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, done))
        self._arrived.set()
        try:
            return await done
        finally:
            self._taken.pop(message, None)

    async def take(self) -> ReceivedMessage | None:
        """Returns the next message, or None after `close`."""
        while not self._closed:
            while self._waiting:
                message, done = self._waiting.popleft()
                if not done.done():
                    self._taken[message] = done
                    return message
            self._arrived.clear()
            await self._arrived.wait()
        return None

    def put_back(self, message: ReceivedMessage) -> None:
        """Makes a message that was taken and has no outcome the next one to be taken."""
        done = self._taken.pop(message, None)
        if done is not None and not done.done():
            self._waiting.appendleft((message, done))
            self._arrived.set()

    def withdraw(self, queue: MessageQueue) -> None:
        """Cancels `hand_over` of the messages of a queue that nobody has taken: the consumer loses the queue."""
        for message, done in self._waiting:
            if message.queue == queue:
                done.cancel()

    def finish(self, message: ReceivedMessage, outcome: Outcome) -> bool:
        """Sets the outcome of a message that was taken. Returns False if it has one already."""
        done = self._taken.pop(message, None)
        if done is None or done.done():
            return False
        done.set_result(outcome)
        return True

    def close(self) -> None:
        self._closed = True
        self._arrived.set()
        for done in (*self._taken.values(), *(done for _, done in self._waiting)):
            done.cancel()
        self._waiting.clear()
