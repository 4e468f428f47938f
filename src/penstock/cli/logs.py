"""The log lines of Penstock's programs: on stderr, as text or JSON, one line each.

A line may contain names that a client chose. `one_line` escapes and cuts every message, so that nobody can forge lines,
send control characters to a terminal, or fill the disk faster than the rate of lines allows.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from enum import StrEnum
from typing import Any, Final, TextIO

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


class _Text(logging.Formatter):
    """Formats log lines like `2026-01-31T12:00:00.123Z WARNING penstock.broker: …`, in UTC."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
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
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to(stream: TextIO = sys.stderr, form: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO) -> None:
    """Configures the root logger of this process."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)


def one_line(text: str) -> str:
    """Returns a text with at most MAX_LINE characters of it, and characters that are not printable escaped."""
    cut = f"… ({len(text) - MAX_LINE} more characters)" if len(text) > MAX_LINE else ""
    text = text[:MAX_LINE]
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return text + cut
