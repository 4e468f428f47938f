"""Makes an asynchronous class usable from plain code, method by method, types included.

    class Producer(Facade[asynchronous.Producer]):
        send = blocking(asynchronous.Producer.send)

A facade runs its client on a loop in a thread of its own. Its methods may be called from any thread, also from several
at once; each returns when the asynchronous one has.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from penstock.client.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")


class Client(Protocol):
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


K = TypeVar("K", bound=Client)


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
