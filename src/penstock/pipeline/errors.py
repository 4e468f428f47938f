"""Converts Penstock's errors to one-sentence errors for Spark's users, and Spark's errors to PenstockError.

Spark prints a traceback with each exception of its Python processes, unless SPARK_HIDE_TRACEBACK is set. `user_error`
sets this variable just before it raises, because a process that raises is about to end.
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
    """An error for Spark's user. Spark prints it as `rocketmq: <sentence>`."""


UserError.__module__, UserError.__qualname__ = "builtins", "rocketmq"


def user_error(sentence: str) -> NoReturn:
    """Raises a UserError and hides its traceback from Spark's output."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    raise UserError(sentence) from None


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns a PenstockError or OSError of the block into a UserError. For code that Spark calls."""
    try:
        yield
    except PenstockError as error:
        user_error(str(error))
    except OSError as error:
        user_error(f"{error.filename or 'the network'}: {error.strerror or error}")


@contextmanager
def from_spark_errors() -> Iterator[None]:
    """Turns a PySparkException of the block into a PenstockError with one sentence. For code that calls Spark."""
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
    """Returns Penstock's own sentence in Spark's text, or else Python's or Spark's error without its traceback."""
    sentences = _SENTENCE.findall(text)
    if sentences:
        return str(sentences[-1])
    _, separator, trace = text.rpartition("Traceback (most recent call last):")
    raised = next((line for line in trace.splitlines()[1:] if separator and line and not line[0].isspace()), "")
    first = _RAISED.sub("", raised) or text.strip().partition("\n")[0]
    return f"Spark says: {_CONDITION.sub('', first).partition(' SQLSTATE')[0]}"
