"""Errors that a Spark user reads as one sentence.

Spark shows what its Python processes raise together with their traceback, unless it is told to hide it. A process that
has raised is done for, so it may as well be told at the last moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from penstock.errors import PenstockError


class UserError(Exception):
    """What Spark shows as `rocketmq: <sentence>`."""


UserError.__module__, UserError.__qualname__ = "builtins", "rocketmq"


def say(sentence: str) -> NoReturn:
    """Ends what Spark is doing with one sentence for its user."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    raise UserError(sentence) from None


@contextmanager
def said() -> Iterator[None]:
    """Has errors of Penstock, and what the system refuses, said as one sentence."""
    try:
        yield
    except PenstockError as error:
        say(str(error))
    except OSError as error:
        say(f"{error.filename or 'the network'}: {error.strerror or error}")
