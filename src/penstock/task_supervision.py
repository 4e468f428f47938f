"""Supervision of background tasks: whatever ends one, its owner notices, the log says why, and health shows it.

    tasks = Supervisor(logging.getLogger("penstock.broker"))
    tasks.every(10.0, "expiry of clients", clients.expire)
    tasks.run("following the master", follow)
    ...
    await tasks.stop()

A task that an exception ends (`run`) is restarted after a pause, which doubles each time up to half a minute; or, under
`OnDeath.LEAVE`, its server has to leave: it stops as at SIGTERM. A round that fails (`every`) is followed by the next
one. An expected error (a PenstockError) is logged as one
line, any other with its traceback, and neither again while it repeats. Timers and other callbacks of the loop are
supervised by `guard`. A Supervisor is not thread-safe: use it from the thread of its event loop only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final, ParamSpec

from penstock.errors import PenstockError

P = ParamSpec("P")
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
FORGET_S: Final = 60.0
"""Seconds after which a failure that did not repeat is no problem any more. More than the longest pause."""
_EVENT_LOOP: Final = "event loop"


class OnDeath(Enum):
    """What follows the unexpected end of a task."""

    RESTART = "restart"
    LEAVE = "leave"


class Supervisor:
    """Owns the background tasks of one server, each under a name of its own."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forget: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._watched: asyncio.AbstractEventLoop | None = None
        self._next_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self.problems: dict[str, str] = {}
        """By task: why it failed the last time, as a sentence. Empty if all is well."""
        self.on_leave: list[Callable[[], object]] = []
        """Called once, when the server has to leave."""
        self.has_left = False
        """Whether a task has ended without which the server must not go on."""

    # -- tasks -----------------------------------------------------------------------------------------------

    def every(self, seconds: float | Callable[[], float], name: str, work: Callable[[], object]) -> None:
        """Calls `work`, a function or a coroutine function, every `seconds` until `stop`, also after a failure."""

        async def rounds() -> None:
            while True:
                await asyncio.sleep(seconds() if callable(seconds) else seconds)
                try:
                    result = work()
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    self.failed(name, error)
                else:
                    self.recovered(name)

        self.run(name, rounds)

    def run(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], on_death: OnDeath = OnDeath.RESTART
    ) -> None:
        """Runs the coroutine that `work` makes, and makes it again if an exception ends it. A return ends the task.

        Does nothing after `stop`, or while a task of this name runs.
        """
        running = self._tasks.get(name)
        if not self._stopped and (running is None or running.done()):
            self._tasks[name] = asyncio.create_task(self._supervise(name, work, on_death))

    async def _supervise(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], on_death: OnDeath) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await work()
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                pause_s = pause_s if name in self.problems else FIRST_PAUSE_S
                self.failed(name, error, on_death)
            else:
                self.recovered(name)
                return
            if on_death is OnDeath.LEAVE:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def end(self, name: str) -> None:
        """Ends one task. Returns when it has ended."""
        task = self._tasks.pop(name, None)
        await self._cancel([] if task is None else [task])

    async def stop(self) -> None:
        """Ends all tasks. Returns when they have ended. From then on no task starts."""
        self._stopped = True
        await self._cancel(list(self._tasks.values()))
        self._tasks.clear()
        for timer in self._forget.values():
            timer.cancel()
        if self._watched is not None:
            self._watched.set_exception_handler(self._next_handler)
            self._watched = None

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- callbacks -------------------------------------------------------------------------------------------

    def guard(self, name: str, callback: Callable[P, object], on_death: OnDeath) -> Callable[P, None]:
        """Returns `callback` for the loop to call: an exception is reported as the end of a task is."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self.failed(name, error, on_death)

        return guarded

    def watch_loop(self) -> None:
        """Reports each callback of the running loop that fails, whatever scheduled it, until `stop`.

        The handler that the loop has now is called as well. An OSError is a connection's matter, and is not reported.
        """
        self._watched = loop = asyncio.get_running_loop()
        self._next_handler = loop.get_exception_handler()
        loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.failed(_EVENT_LOOP, error)
        if self._next_handler is None:
            loop.default_exception_handler(context)
        else:
            self._next_handler(loop, context)

    # -- reports ---------------------------------------------------------------------------------------------

    def failed(self, name: str, error: BaseException, on_death: OnDeath = OnDeath.RESTART) -> None:
        """Logs that a task or a round of it failed, and shows it as a problem until it recovers.

        It has recovered if it says so, or FORGET_S seconds after its last failure.
        """
        expected = isinstance(error, PenstockError)
        problem = f"{name}: {error if expected else repr(error)}"
        leaves = on_death is OnDeath.LEAVE and not self.has_left
        if leaves:
            self._log.critical("%s; this server cannot go on, and stops", problem, exc_info=error)
        elif self.problems.get(name) != problem:
            level = logging.WARNING if expected else logging.ERROR
            self._log.log(level, "%s; retrying", problem, exc_info=None if expected else error)
        self.problems[name] = problem
        self._cancel_timer(name)
        if not self._stopped and on_death is OnDeath.RESTART:
            self._forget[name] = asyncio.get_running_loop().call_later(FORGET_S, self.recovered, name)
        if leaves:
            self.has_left = True
            for left in self.on_leave:
                left()

    def recovered(self, name: str) -> None:
        """Says that a task works again. Does nothing if it had not failed."""
        if self.problems.pop(name, None) is not None:
            self._cancel_timer(name)
            self._log.info("%s: works again", name)

    def _cancel_timer(self, name: str) -> None:
        timer = self._forget.pop(name, None)
        if timer is not None:
            timer.cancel()
