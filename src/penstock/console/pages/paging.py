"""A long table of which one page is asked for at a time: as many rows as there are, each costs only when it is seen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from nicegui import ui
from nicegui.events import GenericEventArguments

from penstock.console.pages.frame import every, table, telling

T = TypeVar("T")

_ROWS = 25


class PagedTable(Generic[T]):
    """`find` gives all that match a text, in order; `fill` makes the rows of one page."""

    def __init__(
        self,
        columns: Sequence[tuple[str, ...]],
        find: Callable[[str], Awaitable[list[T]]],
        fill: Callable[[list[T]], Awaitable[list[dict[str, Any]]]],
        *,
        seconds: float,
    ) -> None:
        self._find = find
        self._fill = fill
        self._page, self._per_page = 1, _ROWS
        self.search = (
            ui.input(placeholder="Name contains …  ( / )", on_change=self._searched)
            .props("dense outlined clearable debounce=200 type=text")
            .style("width: min(24rem, 100%)")
            .props("data-mark=search")
        )
        self.table = table(columns, "name", pagination={"page": 1, "rowsPerPage": _ROWS, "rowsNumber": 0})
        self.table.props("binary-state-sort").on("request", self._asked)
        every(seconds, self.refresh)

    async def refresh(self) -> None:
        found = await self._find((self.search.value or "").lower())
        last = max(1, -(-len(found) // self._per_page)) if self._per_page else 1
        self._page = min(self._page, last)
        first = (self._page - 1) * self._per_page
        rows = await self._fill(found[first : first + self._per_page] if self._per_page else found)
        self.table.rows = rows
        self.table.pagination = {"page": self._page, "rowsPerPage": self._per_page, "rowsNumber": len(found)}

    async def _searched(self) -> None:
        self._page = 1
        with telling():
            await self.refresh()

    async def _asked(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self._page = max(1, int(wanted.get("page") or 1))
        self._per_page = min(100, int(wanted.get("rowsPerPage") or 100))
        with telling():
            await self.refresh()
