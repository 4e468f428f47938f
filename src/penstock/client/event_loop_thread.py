"""Blocking facades over asynchronous classes. Each method keeps its name and its types.

    class Producer(Facade[asynchronous.Producer]):
        send = blocking(asynchronous.Producer.send)

A facade runs its client on a `LoopThread`, an event loop in its own thread. The facade's methods are thread-safe and
return when the asynchronous method returns. They raise PenstockError when called on the loop's own thread. Facades work
in notebooks, where the main thread's event loop is already running.
"""

from __future__ import annotations

import asyncio
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
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. If the caller is interrupted, the coroutine is cancelled."""
        if threading.current_thread() is self._thread or self.loop.is_closed():
            coroutine.close()
            raise PenstockError(
                "a synchronous client was used after `close`, or from its own loop; use the asynchronous client there"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels running tasks and ends the thread."""
        if not self.loop.is_closed():
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
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


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
        thread = LoopThread(name)
        try:
            inner = thread.run(_start(make))
        except BaseException:
            thread.close()
            raise
        super().__init__(inner, thread)

    def close(self) -> None:
        """Closes the client and ends its thread. Idempotent."""
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
