"""Calls the user's handler for a message, wherever that has to run, and says what came of it.

An asynchronous handler runs on the client's loop, a plain one in a thread of its own pool, so that it may block. A
handler that takes longer than its time counts as failed: an asynchronous one is cancelled, a thread cannot be.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from penstock.client.message import ReceivedMessage

log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True)
class Later:
    """What a handler returns for a message that it could not consume: it is to come again.

    `delay_level` is how much later: 0 leaves it to the broker, longer each time; 1 to 18 as for a delayed message; a
    negative one sends it to the dead letters at once. Ordered consumers retry in place and take no level but that.
    """

    delay_level: int = 0


Outcome: TypeAlias = Later | None
"""None: the message is consumed."""
MessageHandler: TypeAlias = Callable[[ReceivedMessage], Awaitable[Outcome] | Outcome]
"""What consumes a message: a function or a coroutine function. What it raises means: not consumed, try again later."""


class Handling:
    """Runs one handler, at most `max_in_flight` times at once in threads."""

    def __init__(self, handler: MessageHandler, max_in_flight: int, timeout_s: float) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        call = getattr(handler, "__call__", None)  # noqa: B004  # of an object with an asynchronous __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._threads = None if is_async else ThreadPoolExecutor(max_in_flight, "penstock handler")

    async def run(self, message: ReceivedMessage) -> Outcome:
        """What the handler says; Later for whatever it raises, which is logged."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._threads is None:
                    result = self._handler(message)
                else:
                    result = await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, message)
                if inspect.isawaitable(result):
                    result = await result
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            log.warning(
                "%r was not consumed: its handler took longer than %g s, or timed out", message, self._timeout_s
            )
            return Later()
        except Exception:
            log.warning("%r was not consumed, its handler failed", message, exc_info=True)
            return Later()
        if result is None or isinstance(result, Later):
            return result
        log.warning(
            "%r: the handler returned %r, which is neither None nor Later; it counts as consumed", message, result
        )
        return None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
