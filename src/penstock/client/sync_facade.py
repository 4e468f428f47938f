"""An event loop in a thread of its own, for plain code that wants to use what is asynchronous.

    with LoopThread("my loop") as loop:
        answer = loop.run(some_coroutine())

`run` may be called from any thread but the loop's own. Works in notebooks, whose own loop is already running.


Makes an asynchronous class usable from plain code, method by method, types included.

    class Producer(Facade[asynchronous.Producer]):
        send = blocking(asynchronous.Producer.send)

A facade runs its client on a loop in a thread of its own. Its methods may be called from any thread, also from several
at once; each returns when the asynchronous one has.
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


class LoopThread:
    """Runs from its making until `close`; a program that forgets to close it ends all the same."""

    def __init__(self, name: str) -> None:
        self.loop = loop_factory()()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; an interrupt of the caller cancels it."""
        if threading.current_thread() is self._thread or self.loop.is_closed():
            work.close()
            raise PenstockError(
                "a synchronous client was called after its end or from its own loop; use the asynchronous one there"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what is still running, and ends the thread."""
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


P = ParamSpec("P")
R = TypeVar("R")


class AsyncClient(Protocol):
    """What a facade can stand before."""

    async def start(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C")


class Blocking(Generic[C]):
    """Something asynchronous, and the loop that it lives on."""

    def __init__(self, inner: C, thread: LoopThread) -> None:
        self.inner = inner
        """The asynchronous object; belongs to the loop's thread."""
        self._thread = thread


class blocking(Generic[P, R]):  # noqa: N801  # reads as a function where it is used
    """One coroutine method of the inner object as a plain method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: Blocking[Any], owner: type | None = None) -> Callable[P, R]:
        if facade is None:
            return self  # asked of the class, as help() does

        @wraps(self._method)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            return facade._thread.run(self._method(facade.inner, *arguments, **named))

        return call


K = TypeVar("K", bound=AsyncClient)


class Facade(Blocking[K]):
    """A client that runs from its making; `with` closes it."""

    def __init__(self, make: Callable[[], K], name: str) -> None:
        thread = LoopThread(name)
        try:
            inner = thread.run(_make(make))
        except BaseException:
            thread.close()
            raise
        super().__init__(inner, thread)

    def close(self) -> None:
        """Ends the client and its thread; it cannot be used afterwards. Does nothing the second time."""
        if not self._thread.is_closed:
            try:
                self._thread.run(self.inner.close())
            finally:
                self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _make(make: Callable[[], K]) -> K:
    inner = make()
    try:
        await inner.start()
    except BaseException:
        await inner.close()
        raise
    return inner
