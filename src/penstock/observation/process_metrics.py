"""What every observed process has: a version, CPU time, memory, open files, and an event loop that may hang."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from penstock import __version__
from penstock.observation.metrics import Family

T = TypeVar("T")
LOOP_S: Final = 5.0
"""Seconds after which an event loop that has not answered is reported."""
SILENT_LOOP: Final = f"the event loop has not answered for {LOOP_S:g} seconds"
_STARTED: Final = time.time()


async def ask_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], T]) -> T:
    """Calls a function on the loop of another thread. Raises TimeoutError if that loop does not turn."""
    answer: Future[T] = Future()

    def call() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(read())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError as error:  # the loop is closed
        raise TimeoutError from error
    return await asyncio.wait_for(asyncio.wrap_future(answer), LOOP_S)


def process_metrics() -> Iterator[Family]:
    """Yields the version, and the process's CPU time, memory, files and start, by Prometheus' names."""
    build = Family("penstock_build_info", "gauge", "1, with the version.", ["version"])
    build.add([__version__], 1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = [
        ("process_cpu_seconds_total", "counter", "CPU time, user and system.", used.ru_utime + used.ru_stime),
        ("process_start_time_seconds", "gauge", "Start of the process, since the epoch.", _STARTED),
    ]
    with suppress(OSError, ValueError, IndexError):  # only Linux has /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        figures.append(("process_resident_memory_bytes", "gauge", "Memory in use.", memory))
        figures.append(("process_open_fds", "gauge", "Open files.", len(list(Path("/proc/self/fd").iterdir()))))
    yield build
    for name, kind, about, value in figures:
        family = Family(name, kind, about)
        family.add((), value)
        yield family
