"""Errors that a Spark user reads as one sentence.

Spark shows what its Python processes raise together with their traceback, unless it is told to hide it. A process that
has raised is done for, so it may as well be told at the last moment.
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
    """What Spark shows as `rocketmq: <sentence>`."""


UserError.__module__, UserError.__qualname__ = "builtins", "rocketmq"


def user_error(sentence: str) -> NoReturn:
    """Ends what Spark is doing with one sentence for its user."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    raise UserError(sentence) from None


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Has errors of Penstock, and what the system refuses, said as one sentence."""
    try:
        yield
    except PenstockError as error:
        user_error(str(error))
    except OSError as error:
        user_error(f"{error.filename or 'the network'}: {error.strerror or error}")


@contextmanager
def from_spark_errors() -> Iterator[None]:
    """The way back: what Spark raises, as an error of Penstock's with one sentence. For whoever runs a job."""
    from pyspark.errors import PySparkException

    log = logging.getLogger("SQLQueryContextLogger")  # it would say the same before, at length
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except PySparkException as error:
        raise PenstockError(one_sentence(str(error))) from error
    finally:
        log.disabled = was_disabled


def one_sentence(text: str) -> str:
    """What one of Penstock's processes said, if it was one; otherwise what Python or Spark did, without its traces."""
    sentences = _SENTENCE.findall(text)
    if sentences:
        return str(sentences[-1])
    _, separator, trace = text.rpartition("Traceback (most recent call last):")
    raised = next((line for line in trace.splitlines()[1:] if separator and line and not line[0].isspace()), "")
    first = _RAISED.sub("", raised) or text.strip().partition("\n")[0]
    return f"Spark says: {_CONDITION.sub('', first).partition(' SQLSTATE')[0]}"
