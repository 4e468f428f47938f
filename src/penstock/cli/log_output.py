"""The log lines of Penstock's programs: on stderr, as text or JSON, one line each.

A line may contain names that a client chose. `one_line` escapes and cuts every message, so that no client can forge
lines, send control characters to a terminal, or fill the disk faster than the rate of lines allows. Everything in a
process has the same format: warnings of Python, errors that nothing caught (`log_uncaught`), and the reason why a
program cannot start (`errors_as_log`). Errors inside the console's web framework are one line each, without traceback.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import Annotated, Any, Final, TextIO, TypeAlias

import typer

from penstock.cli import exit_codes
from penstock.cli.options import option
from penstock.errors import PenstockError

MAX_LINE: Final = 2000
"""Limit of a log message, in characters."""
MAX_TRACE: Final = 16_000
"""Limit of a traceback, in characters. Its end is kept."""


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption: TypeAlias = Annotated[
    LogLevel, option("--log-level", "LEVEL", "debug, info, warning or error; default: info.")
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat, option("--log-format", "text|json", "Format of the log on stderr; default: text.")
]


class _Text(logging.Formatter):
    """Formats log lines like `2026-01-31T12:00:00.123Z WARNING penstock.broker: …`, in UTC."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, source: str = "") -> None:
        """`source` is a name that each line has before that of its logger."""
        shown = f"{source} " if source else ""
        super().__init__(f"%(asctime)s %(levelname)s {shown}%(name)s: %(message)s")
        self.source = source
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, error: Any) -> str:  # noqa: N802  # logging's name
        return super().formatException(error)[-MAX_TRACE:]


class _Json(_Text):
    """Formats each log line as a JSON object: time, level, logger, message, and for an unexpected error `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        if self.source:
            line["broker"] = self.source
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


FRAMEWORKS: Final = frozenset({"nicegui", "uvicorn", "fastapi", "starlette", "socketio", "engineio", "asyncio"})
"""The loggers of the console's web framework, and of the loop that it runs on."""


class _WithoutTraceback(logging.Filter):
    """Turns an error of the web framework into one line that says what failed and where."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.name.partition(".")[0] in FRAMEWORKS:
            kind, error, trace = record.exc_info
            frames = traceback.extract_tb(trace)
            where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            text = record.getMessage()
            detail = "" if str(error) in text else f"{error}; "
            name = "" if kind is None else kind.__name__
            record.msg, record.args = f"{text} ({detail}{name}{where})", ()
            record.exc_info = record.exc_text = None
        return True


def log_to(
    stream: TextIO = sys.stderr,
    form: LogFormat = LogFormat.TEXT,
    level: LogLevel = LogLevel.INFO,
    *,
    framework_traces: bool = True,
    source: str = "",
) -> None:
    """Configures the root logger of this process. `framework_traces`: whether errors of `FRAMEWORKS` have a traceback;
    at the level debug they always have. `source` is the broker that writes, where several write to one log.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json(source) if form is LogFormat.JSON else _Text(source))
    if not framework_traces and level is not LogLevel.DEBUG:
        handler.addFilter(_WithoutTraceback())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)


@contextmanager
def logging_to_stderr(form: LogFormat, level: LogLevel) -> Iterator[None]:
    """In the block, what Penstock logs goes to stderr in this format, and only there.

    It goes there even if descriptor 2 is replaced meanwhile.
    """
    try:
        stream: TextIO = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError):  # it has no descriptor
        stream = sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logger = logging.getLogger("penstock")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level.value.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        if stream is not sys.stderr:
            stream.close()


def log_uncaught() -> None:
    """From now on errors that nothing caught, in any thread, and Python's warnings are log lines."""
    logger = logging.getLogger("penstock")

    def in_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        logger.critical("an unexpected error ended the program", exc_info=(kind, error, trace))

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        name = "" if arguments.thread is None else arguments.thread.name
        error = arguments.exc_value
        logger.critical("an unexpected error ended the thread %s", name, exc_info=error)

    sys.excepthook, threading.excepthook = in_main, in_thread
    logging.captureWarnings(True)


@contextmanager
def errors_as_log(form: LogFormat) -> Iterator[None]:
    """With JSON, logs the reason why a program ends, and ends it with status 2. As text, the command line says it."""
    try:
        yield
    except (PenstockError, OSError) as error:
        if form is not LogFormat.JSON:
            raise
        logging.getLogger("penstock").critical("%s", error)
        raise typer.Exit(exit_codes.NOT_RUN) from None


def one_line(text: str) -> str:
    """Returns a text with at most MAX_LINE characters of it, and characters that are not printable escaped."""
    cut = f"… ({len(text) - MAX_LINE} more characters)" if len(text) > MAX_LINE else ""
    text = text[:MAX_LINE]
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return text + cut
