"""The guard that logs what administrators change, who did it, and from where; also what was refused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from penstock.broker.operations_as_plain_calls import Call, Client, Operation
from penstock.errors import PenstockError
from penstock.observation.administrators_log import describe, log_act

log = logging.getLogger("penstock.broker")


class ActLog:
    """Wraps operations of administrators that change something. Others are called directly."""

    def __call__(self, operation: Operation) -> Call:
        if not operation.changes:
            return operation.call
        act, call = operation.name, operation.call

        def logged(client: Client, *arguments: Any) -> Any:
            values, account = describe(*arguments), client.account
            try:
                outcome = call(client, *arguments)
            except PenstockError as error:
                log_act(log, act, values, client.peer, account, str(error))
                raise
            if hasattr(outcome, "__await__"):
                return _later(act, values, client, account, outcome)
            log_act(log, act, values, client.peer, account)
            return outcome

        return logged


async def _later(act: str, values: str, client: Client, account: str | None, outcome: Awaitable[Any]) -> Any:
    try:
        result = await outcome
    except PenstockError as error:
        log_act(log, act, values, client.peer, account, str(error))
        raise
    log_act(log, act, values, client.peer, account)
    return result
