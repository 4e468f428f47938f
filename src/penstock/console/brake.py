"""Slows those who guess tokens, by the address that they come from.

A wrong token is answered a little later than it could be, and counts. An address may be wrong so often at once, and so
often a second from then on; beyond that what is wrong is turned away. What is right always passes: behind a proxy all
people have one address, and one page left open with a cookie of yesterday must not lock the others out. So the brake
keeps noise and load down; that a token cannot be guessed is due to its length alone. Cookies count as well: they are
derived from the token. A fixed number of addresses is remembered, those that were wrong last. Belongs to the loop's
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 40
A_SECOND: Final = 5.0
_PAUSE_S: Final = 0.1
MOST_ADDRESSES: Final = 4096


class Brake:
    """How many wrong tokens each address has left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, pause_s: float = _PAUSE_S) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._left: dict[str, tuple[float, float]] = {}
        """By address: how many are left, and as of when."""

    def __len__(self) -> int:
        """How many addresses were wrong lately."""
        return len(self._left)

    def is_stopped(self, address: str) -> bool:
        """Whether this address was wrong so often that it is turned away when it is wrong once more."""
        return address in self._left and self._now(address) < 1.0

    async def wrong(self, address: str) -> None:
        """Counts a wrong token; returns when it may be answered."""
        left = self._now(address)
        self._left.pop(address, None)
        if len(self._left) >= MOST_ADDRESSES:
            del self._left[next(iter(self._left))]
        self._left[address] = max(0.0, left - 1.0), self._clock()
        await asyncio.sleep(self._pause_s)

    def _now(self, address: str) -> float:
        left, at = self._left.get(address, (float(AT_ONCE), 0.0))
        return min(float(AT_ONCE), left + (self._clock() - at) * A_SECOND)
