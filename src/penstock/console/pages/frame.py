"""The parts that all pages share: header and navigation, elements, confirmation dialogs, error display, long tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from nicegui import context, ui
from nicegui.events import GenericEventArguments, KeyEventArguments

from penstock.console.cluster_commands import CommandResult
from penstock.console.console import Console
from penstock.console.health import check_health
from penstock.console.pages.theme import CSS
from penstock.errors import PenstockError
from penstock.observation.metrics import BrokerAvailability

PAGES: Final = (
    ("Overview", "/", "speed"),
    ("Topics", "/topics", "topic"),
    ("Groups", "/groups", "groups"),
    ("Messages", "/messages", "mail"),
    ("Dead letters", "/dead-letters", "report"),
    ("Store", "/store", "storage"),
    ("Pipeline", "/pipeline", "account_tree"),
)
_THEME: Final = "penstock_theme"
_THEMES: Final = {"light": False, "dark": True}
_STATE_S: Final = 5.0
_PREFILL_S: Final = 0.8
_COLOUR: Final = {
    BrokerAvailability.SERVING: "good",
    BrokerAvailability.READ_ONLY: "warn",
    BrokerAvailability.RECOVERING: "warn",
}


@contextlib.contextmanager
def frame(console: Console, title: str, here: str = "") -> Iterator[None]:
    """Builds a page's header and navigation. Elements created inside the `with` block are the page's content."""
    ui.page_title(f"{title} · Penstock")
    ui.add_css(CSS)
    ui.colors(primary="#0f766e", negative="#b91c1c", warning="#b45309", positive="#15803d")
    request = context.client.request
    dark = ui.dark_mode(_THEMES.get(request.cookies.get(_THEME, "")))
    with (
        ui.left_drawer(bordered=True).props("width=220 breakpoint=900 show-if-above") as drawer,
        ui.element("nav").props('aria-label="Pages"').style("width: 100%"),
    ):
        for number, (name, target, icon) in enumerate(PAGES, 1):
            with ui.link(target=target).classes("p-nav" + (" here" if name == (here or title) else "")):
                ui.icon(icon, size="1.2rem")
                ui.label(name)
                with ui.element("kbd"):
                    ui.label(str(number))
        with ui.link(target="/api/docs").classes("p-nav"):
            ui.icon("api", size="1.2rem")
            ui.label("API")
    with ui.header().classes("p-head"):
        ui.button(icon="menu", on_click=drawer.toggle).props('flat round dense aria-label="Menu"')
        ui.label("Penstock").classes("p-brand")
        ui.label(console.options.config.namesrv).classes("where")
        ui.space()
        state = ui.label("…").classes("p-chip").props("data-mark=state")
        ui.button(icon="contrast", on_click=lambda: _switch_theme(dark)).props(
            'flat round dense aria-label="Light or dark"'
        )
    ui.keyboard(on_key=_key)

    async def refresh() -> None:
        health = await check_health(console.view, console.parent)
        state.set_text(health.state.value)
        state.classes(replace=f"p-chip {_COLOUR.get(health.state, 'bad')}").tooltip(health.why or "All brokers serve.")

    ui.timer(_STATE_S, refresh, immediate=True)
    yield


def _switch_theme(dark: ui.dark_mode) -> None:
    """Switches to the next theme: light, dark, the system's."""
    order: list[tuple[str, bool | None]] = [("light", False), ("dark", True), ("auto", None)]
    at = next(number for number, (_, value) in enumerate(order) if value is dark.value)
    name, dark.value = order[(at + 1) % len(order)]
    ui.run_javascript(f'document.cookie = "{_THEME}={name}; path=/; max-age=31536000; samesite=strict"')
    ui.notify(f"Theme: {name}")


def _key(pressed: KeyEventArguments) -> None:
    if not pressed.action.keydown or pressed.modifiers.ctrl or pressed.modifiers.meta or pressed.modifiers.alt:
        return
    if pressed.key.name == "/":
        ui.run_javascript('document.querySelector("input[type=text], input:not([type])")?.focus()')
    elif pressed.key.number is not None and 1 <= pressed.key.number <= len(PAGES):
        ui.navigate.to(PAGES[pressed.key.number - 1][1])


# -- elements ------------------------------------------------------------------------------------------------------
def title(text: str, about: str = "") -> None:
    """Adds the page's title and a line about the page."""
    with ui.column().style("gap: .15rem"):
        with ui.element("h1"):
            ui.label(text)
        if about:
            ui.label(about).classes("soft small")


def section(text: str) -> None:
    with ui.element("h2"):
        ui.label(text)


def stat(name: str, value: str = "…") -> ui.label:
    """Adds a figure with its label below. Returns the figure's element."""
    with ui.element("div").classes("p-stat"):
        shown = ui.label(value).classes("v")
        ui.label(name).classes("l")
    return shown


def pairs(of: Sequence[tuple[str, str]]) -> None:
    with ui.element("div").classes("p-pairs"):
        for name, value in of:
            ui.label(name)
            ui.label(value)


def table(columns: Sequence[tuple[str, ...]], key: str, **options: Any) -> ui.table:
    """Adds an empty table. A column is (field, title) or, for text, (field, title, "left").

    If a row has the field `link`, its first column becomes a link.
    """
    element = ui.table(
        columns=[
            {
                "name": column[0],
                "field": column[0],
                "label": column[1],
                "align": column[2] if len(column) > 2 else "right",
            }
            for column in columns
        ],
        rows=[],
        row_key=key,
        **options,
    ).props("flat dense")
    element.add_slot(
        f"body-cell-{columns[0][0]}",
        '<q-td :props="props"><a v-if="props.row.link" :href="props.row.link">{{ props.value }}</a>'
        "<span v-else>{{ props.value }}</span></q-td>",
    )
    return element


# -- dialogs and errors --------------------------------------------------------------------------------------------
async def confirm(question: str, lines: Sequence[str], verb: str) -> bool:
    """Asks for confirmation and returns the answer. `verb` is the label of the confirming button."""
    with ui.dialog() as dialog, ui.card():
        section(question)
        for line in lines:
            ui.label(line)
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat autofocus no-caps")
            ui.button(verb, on_click=lambda: dialog.submit(True)).props("color=negative unelevated no-caps").mark(
                "confirm"
            )
    confirmed = await dialog
    dialog.delete()
    return bool(confirmed)


async def run_command(command: Awaitable[CommandResult]) -> bool:
    """Runs a command and shows its result or its error. Returns True on success."""
    with show_errors():
        result = await command
        ui.notify(result.did, type="positive", timeout=8000, multi_line=True)
        return True
    return False


@contextlib.contextmanager
def show_errors() -> Iterator[None]:
    """Shows a PenstockError or ValueError raised inside the block as a notification."""
    try:
        yield
    except (PenstockError, ValueError) as error:
        ui.notify(str(error), type="negative", timeout=10_000, multi_line=True, close_button=True)


async def prefill(refresh: Callable[[], Awaitable[None]]) -> None:
    """Refreshes before the page is sent, so that the page arrives with its rows. Gives up if that takes too long."""
    with contextlib.suppress(PenstockError, TimeoutError):
        await asyncio.wait_for(refresh(), _PREFILL_S)


def refresh_every(seconds: float, refresh: Callable[[], Awaitable[None]]) -> None:
    """Calls `refresh` every `seconds` while the page is open. Shows an error until the next refresh succeeds."""
    problem = ui.label().classes("bad").props("data-mark=problem")
    problem.set_visibility(False)

    async def run() -> None:
        try:
            await refresh()
        except PenstockError as error:
            problem.set_text(str(error))
            problem.set_visibility(True)
        else:
            problem.set_visibility(False)

    ui.timer(seconds, run, immediate=True)


T = TypeVar("T")
_ROWS = 25


class PagedTable(Generic[T]):
    """A long table that is fetched one page at a time, so that only visible rows cost requests.

    `find` returns all items that match a text, in order. `fill` turns the items of one page into rows.
    """

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
        self.table.props("binary-state-sort").on("request", self._page_requested)
        refresh_every(seconds, self.refresh)

    async def refresh(self) -> None:
        items = await self._find((self.search.value or "").lower())
        last = max(1, -(-len(items) // self._per_page)) if self._per_page else 1
        self._page = min(self._page, last)
        first = (self._page - 1) * self._per_page
        rows = await self._fill(items[first : first + self._per_page] if self._per_page else items)
        self.table.rows = rows
        self.table.pagination = {"page": self._page, "rowsPerPage": self._per_page, "rowsNumber": len(items)}

    async def _searched(self) -> None:
        self._page = 1
        with show_errors():
            await self.refresh()

    async def _page_requested(self, event: GenericEventArguments) -> None:
        pagination = event.args["pagination"]
        self._page = max(1, int(pagination.get("page") or 1))
        self._per_page = min(100, int(pagination.get("rowsPerPage") or 100))
        with show_errors():
            await self.refresh()
