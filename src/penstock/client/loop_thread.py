"""An event loop in a thread of its own, for plain code that wants to use what is asynchronous.

    with LoopThread("my loop") as loop:
        answer = loop.run(some_coroutine())

`run` may be called from any thread but the loop's own. Works in notebooks, whose own loop is already running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

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
