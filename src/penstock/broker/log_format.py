"""The log's lines: text for people, or one JSON object a line for programs. They never hold a body or a secret."""

from __future__ import annotations

import json
import logging
import sys
import time
from enum import StrEnum
from typing import TextIO


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00.123Z WARNING penstock.broker: …`, in UTC."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime


class _Json(_Text):
    """Time, level, logger and message; `trace` where an error nobody expected was met."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to(stream: TextIO = sys.stderr, form: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO) -> None:
    """Has this process log to a stream; the loop's own complaints as well."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
