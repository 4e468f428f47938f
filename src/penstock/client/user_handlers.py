"""The user's side of a push consumer: handlers, their outcomes, how they are called, and messages for `async for`.

A coroutine function runs on the client's event loop. Any other handler runs in a thread pool, so it may block. While
many messages wait, a thread hands several to the handler before it returns to the loop. A handler that exceeds its
timeout counts as failed: a coroutine is cancelled, but a thread keeps running. The classes are not thread-safe, except
`ThreadHop`: use them from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Final, TypeAlias, TypeVar

from penstock.client.message import ReceivedMessage, check_delay_level
from penstock.errors import BadSettings
from penstock.protocol.bodies.queues import MessageQueue

log = logging.getLogger("penstock.client")
T = TypeVar("T")


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


@dataclass(slots=True)
class _Call:
    """How to call a handler."""

    function: Callable[[Any], Any]
    is_async: bool
    has_timeout: bool
    """False only for `MessageStream.hand_over`, which is cancelled to give its message up."""
    is_batch: bool
    is_quick: bool = True
    """Whether the last call of a coroutine function returned without waiting for anything."""


class CallWatch:
    """The timeouts of handler calls: one timer for all calls that run. A call that is late is cancelled.

    A task has one call at a time.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._running: dict[asyncio.Task[Any], float] = {}
        """The deadline of each call, the earliest first, because all calls have the same time."""
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Task[Any]:
        """Starts the time of a call of the current task. Returns the task, for `end`."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._running[task] = deadline = loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)
        return task

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Ends the time of a call. Returns whether it was late, and only therefore cancelled."""
        if self._running.pop(task, None) is not None or task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() == 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for task, deadline in list(self._running.items()):
            if deadline > now:
                self._timer = loop.call_at(deadline, self._expire)
                return
            del self._running[task]
            self._late.add(task)
            task.cancel()


class ThreadHop:
    """Messages that one thread hands to a handler, one after the other. `reclaim` may be called from another thread."""

    def __init__(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> None:
        self._function = function
        self._pending = deque(arguments)
        self.results: list[object] = []
        """What the handler returned, in order; an exception that it raised is in place of its result."""

    def run(self) -> None:
        ends_at = time.monotonic() + HOP_S
        while self._pending:
            try:
                argument = self._pending.popleft()
            except IndexError:  # reclaimed meanwhile
                return
            try:
                self.results.append(self._function(argument))
            except BaseException as error:
                self.results.append(error)
            if time.monotonic() >= ends_at:
                return

    def reclaim(self) -> list[Any]:
        """Returns what the handler has not been called with, and now will not be."""
        left: deque[Any] = deque()
        with contextlib.suppress(IndexError):
            while True:
                left.appendleft(self._pending.pop())
        return list(left)


HOP_S: Final = 0.01
"""How long a handler gets further messages before the outcomes of the first ones are recorded."""
_MAX_HOP: Final = 32
"""Messages of one hop at most."""
_MIN_TIMEOUT_S: Final = 1.0
"""With a shorter timeout a hop has one message, because the time of a hop counts for each of its messages."""
GiveBack: TypeAlias = Callable[[list[ReceivedMessage]], None]
"""Takes back messages that were not handed to the handler."""


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
        self._watch = CallWatch(timeout_s)
        self._threads: ThreadPoolExecutor | None = None
        self._by_topic: dict[str, _Call] = {}
        self._default = _Call(self.stream.hand_over, True, False, False) if handler is None else self._call(handler)

    def add(self, topic: str, handler: AnyHandler) -> None:
        """Sets the handler of a topic. Raises BadSettings if it cannot be called."""
        self._by_topic[topic] = self._call(handler)

    def _call(self, handler: AnyHandler) -> _Call:
        if not callable(handler):
            raise BadSettings(f"the handler of a push consumer must be a function, not {handler!r}")
        call = getattr(handler, "__call__", None)  # noqa: B004  # of an object with an asynchronous __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        return _Call(handler, is_async, True, self._is_batch)

    def limit(self, topic: str, waiting: int) -> int:
        """Returns how many messages of a topic one `run` may have if so many of all topics wait for the handlers.

        A coroutine function gets several, one after the other, as long as it does not wait for anything, because then
        no other call could run meanwhile. A thread gets several only if there are more than all threads can begin with.
        """
        if self._is_batch:
            return self.batch_size
        call = self._by_topic.get(topic, self._default)
        if call.is_async:
            return _MAX_HOP if call.is_quick else 1
        if self._watch.timeout_s < _MIN_TIMEOUT_S:
            return 1
        return max(1, min(_MAX_HOP, waiting // self._max_threads))

    async def run(self, messages: Sequence[ReceivedMessage], give_back: GiveBack | None = None) -> list[Outcome]:
        """Calls the handler with messages of one topic, at most `batch_size`, and returns the outcome of each. An
        exception or a timeout becomes `Later`.

        With `give_back`, there may be as many as `limit` says. Messages that the handler was not called with are given
        back, from the end, and have no outcome.
        """
        first = messages[0]
        call = self._by_topic.get(first.topic, self._default)
        if call.is_batch:
            return _outcomes(await self._run(call, list(messages), first), messages)
        if give_back is not None and (call.is_async or len(messages) > 1):
            run_some = self._run_until_one_waits if call.is_async else self._run_hop
            return await run_some(call, messages, give_back)
        outcomes = []
        for message in messages:
            result = await self._run(call, message, message)
            outcomes.append(None if result is None else _outcome(result, message))
        return outcomes

    async def _run(self, call: _Call, argument: object, first: ReceivedMessage) -> object:
        task = self._watch.begin() if call.has_timeout else None
        try:
            if call.is_async:
                return await call.function(argument)
            result = await asyncio.get_running_loop().run_in_executor(self._pool(), call.function, argument)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError as error:
            if task is None:
                raise
            if self._watch.end(task):
                return self._too_late()
            if task.cancelling():
                raise
            return self._failed(error, first)  # the handler waited for something that was cancelled
        except TimeoutError:
            return self._too_late()
        except Exception as error:
            return self._failed(error, first)
        except BaseException as error:
            if call.is_async and _ends_program():
                raise
            return self._failed(error, first)
        finally:
            if task is not None:
                self._watch.end(task)

    async def _run_until_one_waits(
        self, call: _Call, messages: Sequence[ReceivedMessage], give_back: GiveBack
    ) -> list[Outcome]:
        """Calls a coroutine function with one message after the other, until a call has to wait. Gives back the others,
        so that they do not wait for that call, and also when `HOP_S` is over.
        """
        outcomes: list[Outcome] = []
        ends_at = time.monotonic() + HOP_S
        for number, message in enumerate(messages, 1):
            try:
                running = call.function(message)
                if not hasattr(running, "send"):
                    running = _wait_for(running)  # not a coroutine, but something else that can be awaited
                awaited = running.send(None)
            except StopIteration as returned:
                result = returned.value
            except TimeoutError:
                result = self._too_late()
            except asyncio.CancelledError as error:
                if not call.has_timeout:
                    raise
                result = self._failed(error, message)
            except BaseException as error:
                if not isinstance(error, Exception) and _ends_program():
                    raise
                result = self._failed(error, message)
            else:
                if call.is_quick or number < len(messages):
                    call.is_quick = False
                    give_back(list(messages[number:]))
                result = await self._run(replace(call, function=partial(_resume, running)), awaited, message)
                outcomes.append(None if result is None else _outcome(result, message))
                return outcomes
            outcomes.append(None if result is None else _outcome(result, message))
            if time.monotonic() >= ends_at:
                break
        call.is_quick = True
        if len(outcomes) < len(messages):
            give_back(list(messages[len(outcomes) :]))
        return outcomes

    async def _run_hop(self, call: _Call, messages: Sequence[ReceivedMessage], give_back: GiveBack) -> list[Outcome]:
        """Runs a handler in a thread with several messages. What the thread does not begin in `HOP_S` is given back."""
        loop, hop, given_back = asyncio.get_running_loop(), ThreadHop(call.function, messages), 0

        def reclaim() -> None:
            nonlocal given_back
            left = hop.reclaim()
            given_back += len(left)
            if left:
                give_back(left)

        timer = loop.call_later(HOP_S, reclaim)
        task = self._watch.begin()
        late = False
        try:
            await loop.run_in_executor(self._pool(), hop.run)
        except asyncio.CancelledError:
            late = self._watch.end(task)
            if not late:
                raise
        finally:
            self._watch.end(task)
            timer.cancel()
            reclaim()
        outcomes: list[Outcome] = []
        for message, result in zip(messages, list(hop.results), strict=False):
            outcomes.append(await self._outcome_of(result, message))
        if late and len(outcomes) < len(messages) - given_back:
            outcomes.append(self._too_late())
        return outcomes

    async def _outcome_of(self, result: object, message: ReceivedMessage) -> Outcome:
        """Returns the outcome for what a handler in a thread returned or raised."""
        if inspect.isawaitable(result):
            result = await self._run(_Call(_identity, True, True, False), result, message)
        if isinstance(result, TimeoutError):
            return self._too_late()
        if isinstance(result, BaseException):
            return self._failed(result, message)
        return None if result is None else _outcome(result, message)

    @staticmethod
    def _failed(error: BaseException, message: ReceivedMessage) -> Later:
        log.debug("the handler failed with %r", message, exc_info=error)
        return Later(reason=_describe(error))

    def _too_late(self) -> Later:
        return Later(reason=f"the handler took longer than {self._watch.timeout_s:g} s, or raised TimeoutError")

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_threads, "penstock handler")
        return self._threads

    def close(self) -> None:
        self._watch.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _ends_program() -> bool:
    """Whether SystemExit ends the program here, and not only a thread, which may be that of a synchronous client."""
    return threading.current_thread() is threading.main_thread()


async def _wait_for(awaitable: Awaitable[T]) -> T:
    return await awaitable


@types.coroutine
def _resume(running: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Goes on with a coroutine that has begun and waits for `awaited`."""
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = running.throw(error)
            else:
                awaited = running.send(value)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]


def _outcome(result: object, message: ReceivedMessage) -> Outcome:
    if result is None or isinstance(result, (Later, DeadLetter)):
        return result
    log.warning("%r: the handler returned %r instead of None, Later or DeadLetter; consumed", message, result)
    return None


def _outcomes(result: object, messages: Sequence[ReceivedMessage]) -> list[Outcome]:
    if result is None:
        return [None] * len(messages)
    if not isinstance(result, (list, tuple)):
        return [_outcome(result, message) for message in messages]
    if len(result) != len(messages):
        reason = f"the handler returned {len(result)} outcomes for {len(messages)} messages"
        return [Later(reason=reason) for _ in messages]
    return [_outcome(each, message) for each, message in zip(result, messages, strict=True)]


def _identity(value: T) -> T:
    return value


def _describe(error: BaseException) -> str:
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
        """Cancels `hand_over` of the messages of a queue that no handler has taken: the consumer loses the queue."""
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
