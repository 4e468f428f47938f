"""Clients of the broker's core that have no connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.operations_as_plain_calls import Answer, Client
from penstock.errors import Unreachable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.fields import Fields


class PlainClient:
    """A client that is nothing but an address and, with access control, an account."""

    def __init__(self, host: str = "127.0.0.1", port: int = 1, account: str | None = None) -> None:
        self.peer = (host, port)
        self.local = ("127.0.0.1", 10911)
        self.is_loopback = host.startswith("127.")
        self.secure = False
        self.closed = False
        self.is_behind = False
        self.account = account
        self.on_close: list[Callable[[Any], None]] = []

    def close(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback(self)


class RecordedRequests:
    """What the core asks its clients: recorded, and answered with `answer`; without one, the client is gone."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.told: list[tuple[Client, Fields]] = []
        self.asked: list[tuple[Client, Fields]] = []

    def tell(self, client: Client, request: Fields, body: bytes | memoryview = b"") -> None:
        self.told.append((client, request))

    async def ask(self, client: Client, request: Fields, body: bytes | memoryview, timeout_s: float) -> Answer:
        self.asked.append((client, request))
        if self.answer is None:
            raise Unreachable("the client is gone")
        return self.answer


DONE = Answer(ResponseCode.SUCCESS, None, b"{}")
