"""The store's background threads (`Worker`, `reporting_death`) and the callbacks of its events (`Listeners`)."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

P = ParamSpec("P")
Died = Callable[[str, BaseException], object]
"""Called with the name of a thread that ended by an exception, and that exception."""


def noop() -> None:
    """Does nothing. The default callback."""


@contextlib.contextmanager
def reporting_death(name: str, died: Died | None) -> Iterator[None]:
    """Around all that a thread does: calls `died`, on that thread, if an exception ends it, whatever it is.

    Without a supervisor (None) the exception leaves, and would end the thread unnoticed.
    """
    try:
        yield
    except BaseException as error:
        if died is None:
            raise
        died(name, error)


class Listeners(Generic[P]):
    """Callbacks of one event, called in the order in which they were added.

    Thread-safe. A callback removed during a `notify` may still be called once.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._callbacks: tuple[Callable[P, object], ...] = ()

    def add(self, callback: Callable[P, object]) -> None:
        with self._gate:
            self._callbacks = (*self._callbacks, callback)

    def remove(self, callback: Callable[P, object]) -> None:
        """Removes a callback; does nothing if it was not added."""
        with self._gate:
            self._callbacks = tuple(each for each in self._callbacks if each != callback)

    def __bool__(self) -> bool:
        """Whether there are callbacks."""
        return bool(self._callbacks)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in self._callbacks:
            callback(*args, **kwargs)


class Worker(ABC):
    """A thread that runs `work` in rounds: when woken, or every `interval` seconds (None: only when woken).

    `wakeable=False` makes `wake` do nothing. `first` is the interval before the first round; default: `interval`.
    A supervised worker reports its own death (`reporting_death`).
    """

    def __init__(self, name: str, interval: float | None, wakeable: bool = True, *, first: float | None = None) -> None:
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._interval = interval
        self._first = interval if first is None else first
        self._wakeable = wakeable
        self._died: Died | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def supervise(self, died: Died) -> None:
        """Calls `died`, on the worker's thread, if an exception ends it. To be called before `start`."""
        self._died = died

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        if self._wakeable:
            self._wake.set()

    def _run(self) -> None:
        with reporting_death(self._thread.name, self._died):
            wait = self._first
            while not self._stopping.is_set():
                self._wake.wait(wait)
                self._wake.clear()
                self.work()
                wait = self._interval
            self.finish()

    @abstractmethod
    def work(self) -> None:
        """Does one round, on the worker's thread."""

    def finish(self) -> None:
        """Does the last round, on the worker's thread, after `stop` was called."""
        self.work()

    def stop(self) -> None:
        """Ends the thread. Returns after its last round (`finish`)."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
