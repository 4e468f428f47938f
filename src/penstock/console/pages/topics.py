"""The Topics pages: figures of topics; creating, changing and deleting a topic; sending a test message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from penstock.console.cluster_figures import TopicFigures, TopicKind, TopicRow
from penstock.console.console import Console
from penstock.console.pages import formatting
from penstock.console.pages.frame import (
    PagedTable,
    confirm,
    frame,
    prefill,
    refresh_every,
    run_command,
    section,
    show_errors,
    stat,
    table,
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
                ui.button("New topic", icon="add", on_click=lambda: _edit(console)).props("unelevated no-caps")
            with ui.card().classes("p-card"):
                await prefill(_list(console).refresh)

    @ui.page("/topics/{name}")
    async def topic(name: str) -> None:
        with frame(console, name, "Topics"):
            await prefill(_one(console, name))


def _list(console: Console) -> PagedTable[TopicRow]:
    kinds: dict[str, bool] = {}

    async def find(text: str) -> list[TopicRow]:
        wanted = {TopicKind.NORMAL} | {kind for kind in TopicKind if kinds.get(kind.value)}
        return [row for row in await console.view.topics() if row.kind in wanted and text in row.name.lower()]

    async def fill(rows: list[TopicRow]) -> list[dict[str, Any]]:
        figures = await console.view.topic_page(row.name for row in rows)
        total = sum(broker.log_max_offset - broker.log_min_offset for broker in await console.view.brokers())
        return [_row(row, topic, total) for row, topic in zip(rows, figures, strict=True)]

    switches = ui.element("div").classes("p-row")
    paged = PagedTable(
        [
            ("name", "topic", "left"),
            ("kind", "kind", "left"),
            ("queues", "queues"),
            ("perm", "Permission", "left"),
            ("messages", "messages"),
            ("rate", "in/s"),
            ("size", "size (estimated)"),
            ("share", "share of log"),
            ("last", "last message"),
        ],
        find,
        fill,
        seconds=5.0,
    )

    async def switched(kind: str, on: bool) -> None:
        kinds[kind] = on
        with show_errors():
            await paged.refresh()

    with switches:
        for kind in (TopicKind.RETRY, TopicKind.DEAD_LETTERS, TopicKind.SYSTEM):
            ui.switch(kind.value, on_change=lambda event, kind=kind: switched(kind.value, bool(event.value))).mark(
                f"kind-{kind.value}"
            )
    return paged


def _row(row: TopicRow, figures: TopicFigures | None, total: int) -> dict[str, Any]:
    about = None if figures is None else figures.bytes_about
    return {
        "name": row.name,
        "link": formatting.path("topics", row.name),
        "kind": row.kind.value,
        "queues": str(row.write_queues)
        if row.write_queues == row.read_queues
        else f"{row.read_queues}/{row.write_queues}",
        "perm": _PERMS.get(row.perm & 6, "none"),
        "messages": formatting.NOTHING if figures is None else formatting.count(figures.messages),
        "rate": formatting.NOTHING if figures is None else formatting.rate(figures.in_per_second),
        "size": formatting.size(about),
        "share": formatting.share(min(1.0, about / total)) if about is not None and total else formatting.NOTHING,
        "last": formatting.NOTHING if figures is None else formatting.ago(figures.last_update_ms),
    }


def _one(console: Console, name: str) -> Callable[[], Awaitable[None]]:
    """Builds the page of one topic. Returns the function that fills it with data."""
    is_system = TopicKind.of(name) is TopicKind.SYSTEM
    with ui.element("div").classes("p-row"):
        title(name)
        ui.space()
        ui.button(
            "Browse messages",
            icon="mail",
            on_click=lambda: ui.navigate.to(f"/messages?{formatting.query(topic=name)}"),
        ).props("flat no-caps")
        if not is_system:
            ui.button("Send test message", icon="send", on_click=lambda: _send(console, name)).props("flat no-caps")
            ui.button("Edit", icon="tune", on_click=lambda: _edit(console, name)).props("flat no-caps")
            ui.button("Delete", icon="delete", on_click=lambda: _delete(console, name)).props(
                "flat no-caps color=negative"
            )
    with ui.element("div").classes("p-stats"):
        figures = [stat(text) for text in ("messages", "in/s", "average size", "last message")]
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
            section("Consumer groups")
            groups = table([("name", "group", "left"), ("lag", "Lag")], "name")

    async def refresh() -> None:
        topic = await console.view.topic(name)
        texts = (
            formatting.count(topic.messages),
            formatting.rate(topic.in_per_second),
            formatting.size(topic.average_size),
        )
        for shown, text in zip(figures, (*texts, formatting.ago(topic.last_update_ms)), strict=True):
            shown.set_text(text)
        queues.rows = [
            {
                "queue": f"{each.broker} {each.queue_id}",
                "min": formatting.count(each.min_offset),
                "max": formatting.count(each.max_offset),
                "messages": formatting.count(each.messages),
                "last": formatting.ago(each.last_update_ms),
            }
            for each in topic.queues
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

    refresh_every(2.0, refresh)
    return refresh


# -- changes -------------------------------------------------------------------------------------------------------


async def _edit(console: Console, name: str = "") -> None:
    """Opens a dialog that creates a topic or, given a name, changes the topic."""
    current = None
    with show_errors():
        current = next((row for row in await console.view.topics() if row.name == name), None)
    with ui.dialog() as dialog, ui.card():
        section(f"Edit {name}" if name else "New topic")
        topic = (
            ui.input("Name", value=name)
            .props("outlined dense autofocus")
            .style("width: 100%")
            .props("data-mark=topic-name")
        )
        topic.set_enabled(not name)
        per_broker = 4 if current is None else max(1, current.write_queues // max(1, len(current.brokers)))
        queues = ui.number("Queues per broker", value=per_broker, min=1, max=1024, precision=0).props("outlined dense")
        perm = ui.select(_PERMS, value=6 if current is None else current.perm & 6 or 6, label="Permission").props(
            "outlined dense"
        )
        for field in (queues, perm):
            field.style("width: 100%")
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Save" if name else "Create", on_click=lambda: dialog.submit(True)).props(
                "unelevated no-caps"
            ).props("data-mark=confirm")
    confirmed = await dialog
    values = str(topic.value or "").strip(), int(queues.value or 0), int(perm.value or 0)
    dialog.delete()
    if (
        confirmed
        and await run_command(console.commands.create_topic(values[0], queues=values[1], perm=values[2]))
        and not name
    ):
        ui.navigate.to(formatting.path("topics", values[0]))


async def _delete(console: Console, name: str) -> None:
    lines = []
    with show_errors():
        topic = await console.view.topic(name)
        count = formatting.count(topic.messages)
        lines.append(f"{count} messages can no longer be consumed. They stay on disk until their files expire.")
        groups = await console.view.topic_groups(name)
        lines += [f"Consumer groups: {', '.join(groups[:10])}."] if groups else []
    if not lines:
        return
    if await confirm(f"Delete topic {name}?", lines, "Delete") and await run_command(
        console.commands.delete_topic(name)
    ):
        ui.navigate.to("/topics")


async def _send(console: Console, name: str) -> None:
    with ui.dialog() as dialog, ui.card():
        section(f"Send test message to {name}")
        ui.label("Every group that consumes the topic receives it.").classes("soft small")
        body = (
            ui.textarea("Body", value="test")
            .props("outlined dense autofocus")
            .style("width: 100%")
            .props("data-mark=test-body")
        )
        tags = ui.input("Tag").props("outlined dense").style("width: 100%")
        keys = (
            ui.input("Keys, separated by spaces")
            .props("outlined dense")
            .style("width: 100%")
            .props("data-mark=test-keys")
        )
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Send", on_click=lambda: dialog.submit(True)).props("unelevated no-caps").props(
                "data-mark=confirm"
            )
    confirmed = await dialog
    values = body.value or "", tags.value or "", keys.value or ""
    dialog.delete()
    if confirmed:
        await run_command(console.commands.send_test(name, values[0], tags=values[1], keys=values[2]))
