"""Topics: how they stand; making, changing and deleting them, and sending a test message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from penstock.console.console import Console
from penstock.console.figures import TopicFigures, TopicKind, TopicRow
from penstock.console.pages import formatting
from penstock.console.pages.frame import (
    PagedTable,
    ask,
    at_once,
    every,
    frame,
    section,
    stat,
    table,
    tell,
    telling,
    title,
)

_PERMS = {6: "read and write", 4: "read only", 2: "write only"}


def add(console: Console) -> None:
    @ui.page("/topics")
    async def topics() -> None:
        with frame(console, "Topics"):
            with ui.element("div").classes("p-row"):
                title("Topics")
                ui.space()
                ui.button("New topic", icon="add", on_click=lambda: _change(console)).props("unelevated no-caps")
            with ui.card().classes("p-card"):
                await at_once(_list(console).refresh)

    @ui.page("/topics/{name}")
    async def topic(name: str) -> None:
        with frame(console, name, "Topics"):
            await at_once(_one(console, name))


def _list(console: Console) -> PagedTable[TopicRow]:
    kinds: dict[str, bool] = {}

    async def find(text: str) -> list[TopicRow]:
        wanted = {TopicKind.NORMAL} | {kind for kind in TopicKind if kinds.get(kind.value)}
        return [row for row in await console.view.topics() if row.kind in wanted and text in row.name.lower()]

    async def fill(rows: list[TopicRow]) -> list[dict[str, Any]]:
        figures = await console.view.topic_page(row.name for row in rows)
        total = sum(broker.log_max_offset - broker.log_min_offset for broker in await console.view.brokers())
        return [_row(row, found, total) for row, found in zip(rows, figures, strict=True)]

    switches = ui.element("div").classes("p-row")
    paged = PagedTable(
        [
            ("name", "topic", "left"),
            ("kind", "kind", "left"),
            ("queues", "queues"),
            ("perm", "perm", "left"),
            ("messages", "messages"),
            ("rate", "in/s"),
            ("size", "about"),
            ("share", "of the log"),
            ("last", "last message"),
        ],
        find,
        fill,
        seconds=5.0,
    )

    async def switched(kind: str, on: bool) -> None:
        kinds[kind] = on
        with telling():
            await paged.refresh()

    with switches:
        for kind in (TopicKind.RETRY, TopicKind.DEAD_LETTERS, TopicKind.SYSTEM):
            ui.switch(kind.value, on_change=lambda event, kind=kind: switched(kind.value, bool(event.value))).mark(
                f"kind-{kind.value}"
            )
    return paged


def _row(row: TopicRow, found: TopicFigures | None, total: int) -> dict[str, Any]:
    about = None if found is None else found.bytes_about
    return {
        "name": row.name,
        "link": formatting.path("topics", row.name),
        "kind": row.kind.value,
        "queues": str(row.write_queues)
        if row.write_queues == row.read_queues
        else f"{row.read_queues}/{row.write_queues}",
        "perm": _PERMS.get(row.perm & 6, "none"),
        "messages": formatting.NOTHING if found is None else formatting.count(found.messages),
        "rate": formatting.NOTHING if found is None else formatting.rate(found.in_per_second),
        "size": formatting.size(about),
        "share": formatting.share(min(1.0, about / total)) if about is not None and total else formatting.NOTHING,
        "last": formatting.NOTHING if found is None else formatting.ago(found.last_update_ms),
    }


def _one(console: Console, name: str) -> Callable[[], Awaitable[None]]:
    """What is returned fills it."""
    is_system = TopicKind.of(name) is TopicKind.SYSTEM
    with ui.element("div").classes("p-row"):
        title(name)
        ui.space()
        ui.button(
            "Look at messages",
            icon="mail",
            on_click=lambda: ui.navigate.to(f"/messages?{formatting.query(topic=name)}"),
        ).props("flat no-caps")
        if not is_system:
            ui.button("Send a test message", icon="send", on_click=lambda: _send(console, name)).props("flat no-caps")
            ui.button("Change", icon="tune", on_click=lambda: _change(console, name)).props("flat no-caps")
            ui.button("Delete", icon="delete", on_click=lambda: _delete(console, name)).props(
                "flat no-caps color=negative"
            )
    with ui.element("div").classes("p-stats"):
        figures = [stat(text) for text in ("messages", "in a second", "average size", "last message")]
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("Queues")
            queues = table(
                [
                    ("queue", "queue", "left"),
                    ("min", "min"),
                    ("max", "max"),
                    ("messages", "messages"),
                    ("last", "last message"),
                ],
                "queue",
            ).props("data-mark=queues")
        with ui.card().classes("p-card"):
            section("Groups that consume it")
            groups = table([("name", "group", "left"), ("lag", "to be consumed")], "name")

    async def refresh() -> None:
        found = await console.view.topic(name)
        texts = (
            formatting.count(found.messages),
            formatting.rate(found.in_per_second),
            formatting.size(found.average_size),
        )
        for shown, text in zip(figures, (*texts, formatting.ago(found.last_update_ms)), strict=True):
            shown.set_text(text)
        queues.rows = [
            {
                "queue": f"{each.broker} {each.queue_id}",
                "min": formatting.count(each.min_offset),
                "max": formatting.count(each.max_offset),
                "messages": formatting.count(each.messages),
                "last": formatting.ago(each.last_update_ms),
            }
            for each in found.queues
        ]
        progress = await console.view.progress()
        groups.rows = [
            {
                "name": group,
                "link": formatting.path("groups", group),
                "lag": formatting.count(sum(each.lag for each in progress[group].queues if each.queue.topic == name)),
            }
            for group in await console.view.topic_groups(name)
            if group in progress
        ]

    every(2.0, refresh)
    return refresh


# -- changes -------------------------------------------------------------------------------------------------------


async def _change(console: Console, name: str = "") -> None:
    """A form for a topic that is new, or is to be changed."""
    now = None
    with telling():
        now = next((row for row in await console.view.topics() if row.name == name), None)
    with ui.dialog() as dialog, ui.card():
        section(f"Change {name}" if name else "New topic")
        topic = (
            ui.input("Name", value=name)
            .props("outlined dense autofocus")
            .style("width: 100%")
            .props("data-mark=topic-name")
        )
        topic.set_enabled(not name)
        per_broker = 4 if now is None else max(1, now.write_queues // max(1, len(now.brokers)))
        queues = ui.number("Queues at each broker", value=per_broker, min=1, max=1024, precision=0).props(
            "outlined dense"
        )
        perm = ui.select(_PERMS, value=6 if now is None else now.perm & 6 or 6, label="May be").props("outlined dense")
        for field in (queues, perm):
            field.style("width: 100%")
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Leave it", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Change it" if name else "Make it", on_click=lambda: dialog.submit(True)).props(
                "unelevated no-caps"
            ).props("data-mark=agree")
    agreed = await dialog
    values = str(topic.value or "").strip(), int(queues.value or 0), int(perm.value or 0)
    dialog.delete()
    if agreed and await tell(console.changes.create_topic(values[0], queues=values[1], perm=values[2])) and not name:
        ui.navigate.to(formatting.path("topics", values[0]))


async def _delete(console: Console, name: str) -> None:
    lines = []
    with telling():
        found = await console.view.topic(name)
        gone = f"{formatting.count(found.messages)} messages cannot be consumed any more"
        lines.append(f"{gone}; they stay on disk until their files go.")
        groups = await console.view.topic_groups(name)
        lines += [f"It is consumed by {', '.join(groups[:10])}."] if groups else []
    if not lines:
        return
    if await ask(f"Delete topic {name}?", lines, "Delete it") and await tell(console.changes.delete_topic(name)):
        ui.navigate.to("/topics")


async def _send(console: Console, name: str) -> None:
    with ui.dialog() as dialog, ui.card():
        section(f"Send a test message to {name}")
        ui.label("Every group that consumes the topic gets it.").classes("soft small")
        body = (
            ui.textarea("Body", value="test")
            .props("outlined dense autofocus")
            .style("width: 100%")
            .props("data-mark=test-body")
        )
        tags = ui.input("Tag").props("outlined dense").style("width: 100%")
        keys = ui.input("Keys, with spaces").props("outlined dense").style("width: 100%").props("data-mark=test-keys")
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Leave it", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Send it", on_click=lambda: dialog.submit(True)).props("unelevated no-caps").props(
                "data-mark=agree"
            )
    agreed = await dialog
    values = body.value or "", tags.value or "", keys.value or ""
    dialog.delete()
    if agreed:
        await tell(console.changes.send_test(name, values[0], tags=values[1], keys=values[2]))
