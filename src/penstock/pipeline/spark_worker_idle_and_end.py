"""The Python processes of pyspark's daemon, in which Spark plans and reads: what they do between tasks, how they end.

The daemon forks a process and lets it do one task after the other. After each task it collects garbage. It looks up the
function that does a task by its name each time, and prints a traceback if that function cannot read or write.

Spark closes the connection to a process that it no longer needs: after a `limit` while the process still writes, or
when it was idle for a minute. The process then has nothing to report to anybody, so it ends without a word. Elsewhere
the functions here do nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_PIPE: Final = (signal.SIGPIPE,)
_DAEMON: Final = "pyspark.daemon"
_frozen = False


def until_unread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches. If Spark stops reading them, ends this process.

    pyspark's next write would raise BrokenPipeError. Instead, SIGPIPE ends the process, as it ends other programs, but
    only while this thread is in pyspark's code. The threads that the task starts inherit that the signal is blocked, so
    they go on ignoring it.
    """
    if not _is_forked_by_daemon():
        yield from batches
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PIPE)
    action = signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def restore() -> None:
        signal.signal(signal.SIGPIPE, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        for batch in batches:
            freeze_modules()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PIPE)
            yield batch
            signal.pthread_sigmask(signal.SIG_BLOCK, _PIPE)
    finally:  # pyspark still has to write that the task has ended, or why
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PIPE)
        end_without_next_task(restore)


def end_without_next_task(at_next_task: Callable[[], object] = lambda: None) -> None:
    """Makes this process end if Spark closes its connection before the next task; else calls `at_next_task` then."""
    if not _is_forked_by_daemon():
        return
    is_named = len(sys.argv) > 1 and sys.argv[1].startswith("pyspark")
    module: Any = importlib.import_module(sys.argv[1] if is_named else "pyspark.worker")
    run = module.main

    def main(infile: Any, outfile: Any) -> None:
        module.main = run
        has_task = False
        with contextlib.suppress(ConnectionError):
            has_task = bool(infile.peek(1))
        if not has_task:
            os._exit(0)
        at_next_task()
        run(infile, outfile)

    module.main = main


def _is_forked_by_daemon() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot change signals
    return in_main_thread and spec is not None and spec.name == _DAEMON


def freeze_modules() -> None:
    """Exempts all that this process has imported from garbage collection, once. To be called in the first task.

    Otherwise the collection after each task would walk the 50,000 objects of the modules, which takes half of the CPU
    time that a process spends on a small task.
    """
    global _frozen
    if not _frozen and _is_forked_by_daemon():
        _frozen = True
        gc.freeze()
