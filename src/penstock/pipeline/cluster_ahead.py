"""Several ranges pulled at the same time and handed out one after the other.

A broker gives 32 messages a pull unless it is told otherwise, so one pull at a time mostly waits. Spans are cut into
short ranges, a few of which are on their way at once; what comes early waits here. Each range holds back once it has
`_MOST_HELD` bytes waiting, so memory does not depend on how large messages are, nor on how slow the reader is. Belongs
to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Final

from penstock.pipeline.cluster_pull import Piece, RangePuller
from penstock.pipeline.ranges import Span

_RANGE: Final = 256
"""Messages of one range."""
_AT_ONCE: Final = 4
_MOST_HELD: Final = 1 << 20


class PulledAhead:
    """The pieces of some spans, in order. Made within the loop; closed once."""

    def __init__(self, puller: RangePuller, spans: Iterable[Span]) -> None:
        self._puller = puller
        self._ranges = _ranges(spans)
        self._under_way: deque[_Range] = deque()

    async def next(self) -> Piece | None:
        """The next piece, None behind the last. Raises what the pulling of it raised."""
        while True:
            while len(self._under_way) < _AT_ONCE and (following := next(self._ranges, None)) is not None:
                self._under_way.append(_Range(self._puller.pieces(*following)))
            if not self._under_way:
                return None
            piece = await self._under_way[0].take()
            if piece is not None:
                return piece
            self._under_way.popleft()

    async def close(self) -> None:
        """Stops whatever is under way."""
        for under_way in self._under_way:
            under_way.task.cancel()
        await asyncio.gather(*(under_way.task for under_way in self._under_way), return_exceptions=True)
        self._under_way.clear()


class _Range:
    """One range on its way. The last thing it gives is None, or the error that ended it."""

    def __init__(self, pieces: AsyncGenerator[Piece, None]) -> None:
        self._pieces = pieces
        self._waiting: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        self._held = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.task = asyncio.create_task(self._fill())

    async def take(self) -> Piece | None:
        found = await self._waiting.get()
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self._held -= len(found.records)
            if self._held < _MOST_HELD:
                self._has_room.set()
        return found

    async def _fill(self) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    self._waiting.put_nowait(piece)
                    self._held += len(piece.records)
                    if self._held >= _MOST_HELD:
                        self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:  # `take` raises it
            self._waiting.put_nowait(error)
        else:
            self._waiting.put_nowait(None)


def _ranges(spans: Iterable[Span]) -> Iterator[tuple[Span, int, int]]:
    for span in spans:
        for start in range(span.start, span.stop, _RANGE):
            yield span, start, min(start + _RANGE, span.stop)
