"""What Spark's processes print, as lines of this program's log.

Java and its Python workers inherit stderr. In the block of `spark_output_as_log` that is a pipe, from which the thread
penstock-spark-output logs line by line until the last of them has ended. One kind of trace is dropped: Spark closes the
connections of idle workers, which then end with a BrokenPipeError, and that is no error.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_STDERR: Final = 2
_LOST_READER: Final = "PySpark daemon failed to flush the output to the worker process"


@contextmanager
def spark_output_as_log(logger: logging.Logger) -> Iterator[None]:
    """Processes that are started in the block write to the log, at the level info, in place of stderr.

    The handlers of `logger` must not write to descriptor 2 itself.
    """
    reader, writer = os.pipe()
    threading.Thread(target=_log_lines, args=(reader, logger), name="penstock-spark-output", daemon=True).start()
    kept = os.dup(_STDERR)
    os.dup2(writer, _STDERR)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _log_lines(reader: int, logger: logging.Logger) -> None:
    with open(reader, encoding="utf-8", errors="replace") as lines:
        for line in without_lost_readers(lines):
            logger.info("Spark: %s", line)


def without_lost_readers(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines that are not empty, without line ends, and without each traceback of a BrokenPipeError."""
    held: list[str] = []
    for line in map(str.rstrip, lines):
        if line.startswith("Traceback ("):
            yield from held
            held = [line]
        elif held:
            held.append(line)
            if line and not line[0].isspace():
                yield from () if line.startswith("BrokenPipeError") else held
                held = []
        elif line and not line.startswith(_LOST_READER):
            yield line
    yield from held
