"""A handler that gathers what it is given, and tells a test when there is enough."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from penstock.client import Later, ReceivedMessage

SOON_S = 120.0
"""More than anything here takes, so that a test that fails does not hang."""


class Gathered:
    """Consumes messages; those that `fails` says so of fail."""

    def __init__(self, fails: Callable[[ReceivedMessage], Later | None] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails
        self._came = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> Later | None:
        self.messages.append(message)
        self._came.set()
        return None if self._fails is None else self._fails(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(self.bodies)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Returns when there is enough, as the test sees it."""
        async with asyncio.timeout(SOON_S):
            while not enough():
                self._came.clear()
                await self._came.wait()

    async def until_count(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)

    async def until_has(self, bodies: set[bytes]) -> None:
        await self.until(lambda: bodies <= set(self.bodies))


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something that has no event of its own is so."""
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.005)
