"""The arguments of every request and reply: one struct per shape, grouped by concern.

`REQUESTS` and `REPLIES` map a request code to its struct. A code that is in neither has no arguments.
"""

from __future__ import annotations

from typing import Final, TypeVar

from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Fields, Reply, Request
from penstock.protocol.headers import admin, groups, namesrv, offsets, pull, send

F = TypeVar("F", bound=Fields)


def _by_code(base: type[F]) -> dict[RequestCode, type[F]]:
    return {
        code: kind
        for module in (admin, groups, namesrv, offsets, pull, send)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, base)
        for code in kind.codes
    }


REQUESTS: Final = _by_code(Request)
REPLIES: Final = _by_code(Reply)
