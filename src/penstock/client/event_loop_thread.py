"""Blocking facades over asynchronous classes. Each method keeps its name and its types.

    class Producer(Facade[asynchronous.Producer]):
        send = blocking(asynchronous.Producer.send)

A facade runs its client on a `LoopThread`, an event loop in its own thread. The facade's methods are thread-safe and
return when the asynchronous method returns. They raise PenstockError when called on the loop's own thread, after
`close`, and in a forked process, which does not have that thread. Facades work in notebooks, where the main thread's
event loop is already running.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from penstock.errors import PenstockError
from penstock.remoting.event_loop import loop_factory

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class LoopThread:
    """An event loop in a daemon thread, which does not keep the program alive. It runs from creation until `close`."""

    def __init__(self, name: str) -> None:
        self.loop = loop_factory()()
        self._process = os.getpid()
        self._gate = threading.RLock()  # a signal handler may come while its thread holds it
        self._is_ending = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_ending

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return self._process != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop's own thread."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. If the caller is interrupted, the coroutine is cancelled."""
        if self.is_elsewhere:
            coroutine.close()
            raise PenstockError("a synchronous client was used in a forked process; create one after the fork")
        future = None
        if not self.is_current:
            with self._gate:
                if not self._is_ending:
                    future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        if future is None:
            coroutine.close()
            raise PenstockError(
                "a synchronous client was used after `close`, or from its own loop; use the asynchronous client there"
            )
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels running tasks and ends the thread. Does nothing in a forked process."""
        if self.is_elsewhere:
            return
        with self._gate:
            if not self._is_ending:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._gate:
                self._is_ending = True
            try:
                self.loop.run_until_complete(_cancel_all())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            finally:
                self.loop.close()


async def _cancel_all() -> None:
    """Cancels all other tasks of the loop, also those whose start was due before, and waits for their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class AsyncClient(Protocol):
    """The asynchronous class behind a facade."""

    async def start(self) -> object: ...

    async def close(self) -> None: ...


class Blocking(Generic[C]):
    """An asynchronous object and the thread of its loop."""

    def __init__(self, inner: C, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread


class blocking(Generic[P, R]):  # noqa: N801  # reads as a function where it is used
    """A descriptor that offers one coroutine method of the inner object as a blocking method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: Blocking[Any], owner: type | None = None) -> Callable[P, R]:
        if facade is None:
            return self  # accessed on the class, as help() does

        @wraps(self._method)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            return facade._thread.run(self._method(facade._inner, *arguments, **named))

        return call


K = TypeVar("K", bound=AsyncClient)


class Facade(Blocking[K]):
    """A blocking client. It is started when it is created; `with` closes it."""

    def __init__(self, make: Callable[[], K], name: str) -> None:
        self._closing = threading.RLock()
        thread = LoopThread(name)
        try:
            inner = thread.run(_start(make))
        except BaseException:
            thread.close()
            raise
        super().__init__(inner, thread)

    def close(self) -> None:
        """Closes the client and ends its thread. Idempotent: whoever calls it again waits for the same end. In a forked
        process it does nothing. Raises PenstockError on the loop's own thread.
        """
        if self._thread.is_closed or self._thread.is_elsewhere:
            return
        if self._thread.is_current:
            raise PenstockError("a synchronous client cannot be closed from its own loop; close it in another thread")
        with self._closing:
            if not self._thread.is_closed:
                try:
                    self._thread.run(self._inner.close())
                finally:
                    self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _start(make: Callable[[], K]) -> K:
    inner = make()
    try:
        await inner.start()
    except BaseException:
        await inner.close()
        raise
    return inner
