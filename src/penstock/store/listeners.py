"""Callbacks: the list of those that want to hear of an event, and the one that does nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


def noop() -> None:
    """A callback where there is nothing to call."""


class Listeners(Generic[P]):
    """Callbacks of one event, called in the order in which they were added.

    Any thread may add, remove and notify. A callback that is removed during a `notify` may still be called by it once.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._callbacks: tuple[Callable[P, object], ...] = ()

    def add(self, callback: Callable[P, object]) -> None:
        with self._gate:
            self._callbacks = (*self._callbacks, callback)

    def remove(self, callback: Callable[P, object]) -> None:
        """Removes a callback that was added; does nothing if it was not."""
        with self._gate:
            self._callbacks = tuple(each for each in self._callbacks if each != callback)

    def __bool__(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._callbacks)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in self._callbacks:
            callback(*args, **kwargs)
