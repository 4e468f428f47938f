"""The log lines about what administrators do: which act, with which values, from where, by which account.

    administration: delete topic topic=orders by=127.0.0.1:50412 account=operations
    administration refused: reset offsets group=g topic=orders by=…: no consumer of group 'g' is connected

The broker logs its operations with a guard, `broker.admin.administrators_log.ActLog`; the name server wraps its
handlers. Values of secrets are never logged, and the length of a line is limited. Functions; any thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.config.java_properties import parse_properties

_SECRET: Final = re.compile("secret|passw|token|signature", re.IGNORECASE)
_MAX_VALUE: Final = 200
_MAX_VALUES: Final = 1000


def log_act(
    logger: logging.Logger, act: str, values: str, peer: tuple[str, int], account: str | None, refusal: str = ""
) -> None:
    """Logs one act, done or refused."""
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    who = f"by={host}:{peer[1]}" + ("" if account is None else f" account={account}")
    what = f"{act} {values}" if values else act
    if refusal:
        logger.warning("administration refused: %s %s: %s", what, who, refusal)
    else:
        logger.info("administration: %s %s", what, who)


def describe(*arguments: Any) -> str:
    """Returns `name=value` for each field of a request that is not at its default, and each line of a properties file.

    An argument is a msgspec struct, a mapping of texts, or the bytes of a properties file.
    """
    texts = ", ".join(f"{name}={_shown(name, value)}" for each in arguments for name, value in _values(each).items())
    return texts if len(texts) <= _MAX_VALUES else f"{texts[:_MAX_VALUES]}…"


def is_secret(name: str) -> bool:
    """Whether the value of a field or setting of this name must not be shown."""
    return _SECRET.search(name) is not None


def _shown(name: str, value: object) -> str:
    text = "***" if is_secret(name) else str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _values(argument: Any) -> Mapping[str, object]:
    if isinstance(argument, bytes | memoryview):
        try:
            return {entry.name: entry.value for entry in parse_properties(bytes(argument))}
        except ValueError:
            return {}
    if isinstance(argument, Mapping):
        return argument
    if not isinstance(argument, msgspec.Struct):
        return {}
    defaults = {field.name: field.default for field in msgspec.structs.fields(argument)}
    values = ((name, getattr(argument, name)) for name in argument.__struct_fields__)
    return {name: value for name, value in values if value != defaults[name] and value not in (None, "", {}, [])}
