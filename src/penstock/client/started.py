"""What all clients have in common: they are started once and closed once, and `async with` does both."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Started:
    """Starts when an `async with` block is entered, and closes when it is left, however that is."""

    async def start(self) -> Self:
        raise NotImplementedError("each client says how it starts")

    async def close(self) -> None:
        raise NotImplementedError("each client says how it ends")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
