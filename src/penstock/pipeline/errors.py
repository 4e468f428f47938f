"""Errors that a Spark user reads as one sentence, and Spark's errors as Penstock's.

Spark prints the traceback of whatever its Python processes raise, unless SPARK_HIDE_TRACEBACK is set. A process that
raises is about to end, so `user_error` sets the variable at that moment.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from penstock.errors import PenstockError

_SENTENCE: Final = re.compile(r"^.*?(?:rocketmq|penstock\.errors\.\w+): (.*?)\s*(?:SQLSTATE: \w+)?$", re.M)
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_RAISED: Final = re.compile(r"^[\w.]+: ")


class UserError(Exception):
    """Spark prints it as `rocketmq: <sentence>`."""


UserError.__module__, UserError.__qualname__ = "builtins", "rocketmq"


def user_error(sentence: str) -> NoReturn:
    """Raises a UserError, and hides the traceback from Spark's output."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    raise UserError(sentence) from None


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns PenstockError and OSError into UserError. For code that Spark calls."""
    try:
        yield
    except PenstockError as error:
        user_error(str(error))
    except OSError as error:
        user_error(f"{error.filename or 'the network'}: {error.strerror or error}")


@contextmanager
def from_spark_errors() -> Iterator[None]:
    """Turns what Spark raises into a PenstockError with one sentence. For code that calls Spark."""
    from pyspark.errors import PySparkException

    log = logging.getLogger("SQLQueryContextLogger")  # it would log the same error first, at length
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except PySparkException as error:
        raise PenstockError(one_sentence(str(error))) from error
    finally:
        log.disabled = was_disabled


def one_sentence(text: str) -> str:
    """Our own sentence in Spark's text, if there is one; otherwise the error of Python or Spark, without its traces."""
    sentences = _SENTENCE.findall(text)
    if sentences:
        return str(sentences[-1])
    _, separator, trace = text.rpartition("Traceback (most recent call last):")
    raised = next((line for line in trace.splitlines()[1:] if separator and line and not line[0].isspace()), "")
    first = _RAISED.sub("", raised) or text.strip().partition("\n")[0]
    return f"Spark says: {_CONDITION.sub('', first).partition(' SQLSTATE')[0]}"
