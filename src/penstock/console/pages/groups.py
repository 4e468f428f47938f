"""The Groups pages: lag by queue and over time, clients and subscriptions, and offset resets."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from penstock.console.chart_samples import SAMPLE_S
from penstock.console.cluster_commands import QueueMove
from penstock.console.cluster_figures import GroupRow
from penstock.console.console import Console
from penstock.console.pages import formatting, theme
from penstock.console.pages.frame import (
    PagedTable,
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

_MAX_LINES = 8


def add(console: Console) -> None:
    @ui.page("/groups")
    async def groups() -> None:
        with frame(console, "Groups"):
            title("Groups", "Consumer groups, largest lag first.")
            with ui.card().classes("p-card"):
                await prefill(_list(console).refresh)

    @ui.page("/groups/{name}")
    async def group(name: str) -> None:
        with frame(console, name, "Groups"):
            await prefill(_one(console, name))


def _list(console: Console) -> PagedTable[GroupRow]:
    async def find(text: str) -> list[GroupRow]:
        rows = [row for row in await console.view.groups() if text in row.name.lower()]
        return sorted(rows, key=lambda row: (-row.lag, row.name))

    async def fill(rows: list[GroupRow]) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "link": formatting.path("groups", row.name),
                "lag": formatting.count(row.lag),
                "behind": formatting.span(row.behind_ms),
                "rate": formatting.rate(row.consume_per_second),
                "last": formatting.moment(row.last_consumed_ms),
                "topics": ", ".join(row.topics[:4])
                + (f" and {len(row.topics) - 4} more" if len(row.topics) > 4 else ""),
            }
            for row in rows
        ]

    return PagedTable(
        [
            ("name", "group", "left"),
            ("lag", "Lag"),
            ("behind", "behind"),
            ("rate", "consumed/s"),
            ("last", "Last consumed at"),
            ("topics", "topics", "left"),
        ],
        find,
        fill,
        seconds=5.0,
    )


def _one(console: Console, name: str) -> Callable[[], Awaitable[None]]:
    """Builds the page of one group. Returns the function that fills it with data."""
    with ui.element("div").classes("p-row"):
        title(name)
        ui.space()
        ui.button("Reset offsets", icon="restore", on_click=lambda: _reset(console, name)).props("flat no-caps")
        ui.button(
            "Dead letters", icon="report", on_click=lambda: ui.navigate.to(formatting.path("dead-letters", name))
        ).props("flat no-caps")
    with ui.element("div").classes("p-stats"):
        figures = [stat(text) for text in ("Lag", "consumed/s", "clients", "model")]
    with ui.card().classes("p-card"):
        section("Lag by queue")
        chart = ui.echart(theme.lines([])).style("height: 15rem; width: 100%")
    with ui.card().classes("p-card"):
        section("Queues")
        queues = table(
            [
                ("queue", "queue", "left"),
                ("consumer", "group offset"),
                ("broker", "max offset"),
                ("lag", "Lag"),
                ("last", "Last consumed at"),
            ],
            "queue",
        ).props("data-mark=group-queues")
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("Clients")
            clients = table(
                [
                    ("id", "client", "left"),
                    ("address", "address", "left"),
                    ("language", "language", "left"),
                    ("version", "version", "left"),
                ],
                "id",
            ).props('no-data-label="No client is connected."')
        with ui.card().classes("p-card"):
            section("Subscriptions")
            subscriptions = table([("topic", "topic", "left"), ("expression", "expression", "left")], "topic").props(
                'no-data-label="Known while a client is connected."'
            )

    async def refresh() -> None:
        group = await console.view.group(name)
        console.chart_samples.add_group(group)
        texts = (formatting.count(group.lag), formatting.rate(group.consume_per_second), str(len(group.clients)))
        for shown, text in zip(figures, (*texts, group.model.lower() or formatting.NOTHING), strict=True):
            shown.set_text(text)
        queues.rows = [
            {
                "queue": f"{each.topic} {each.broker}:{each.queue_id}",
                "consumer": formatting.count(each.consumer_offset),
                "broker": formatting.count(each.broker_offset),
                "lag": formatting.count(each.lag),
                "last": formatting.moment(each.last_consumed_ms),
            }
            for each in group.queues
        ]
        clients.rows = [
            {"id": each.client_id, "address": each.address, "language": each.language, "version": each.version}
            for each in group.clients
        ]
        subscriptions.rows = [{"topic": topic, "expression": text} for topic, text in group.subscriptions.items()]
        _draw(console, name, chart)

    refresh_every(SAMPLE_S, refresh)
    return refresh


def _draw(console: Console, name: str, chart: ui.echart) -> None:
    """Draws the total lag and the queues with the largest lag."""
    kept = list(console.chart_samples.queue_lags.get(name, ()))
    total = list(console.chart_samples.lags.get(name, ()))
    worst = sorted(kept[-1][1].items(), key=lambda each: -each[1])[:_MAX_LINES] if kept else []
    seen = {at for at, _ in kept}
    total_lag = sorted(
        [*((at, lag) for at, lag in total if at not in seen), *((at, sum(by.values())) for at, by in kept)]
    )
    series: list[tuple[str, list[Any]]] = [("all queues", total_lag)]
    series += [(queue, [(at, by.get(queue)) for at, by in kept]) for queue, lag in worst if lag]
    options = theme.lines([label for label, _ in series])
    for line, (_, data) in zip(options["series"], series, strict=True):
        line["data"] = data
    chart.options.clear()
    chart.options.update(options)


# -- reset ---------------------------------------------------------------------------------------------------------


async def _reset(console: Console, name: str) -> None:
    """Opens a dialog that shows the effect of a reset, and then runs the reset if it is confirmed."""
    topics: list[str] = []
    with show_errors():
        group = await console.view.group(name)
        topics = sorted({each.topic for each in group.queues}, key=lambda each: (each.startswith("%"), each))
    if not topics:
        ui.notify("This group has no offsets to reset.", type="warning")
        return
    previewed: list[tuple[str, int]] = []
    with ui.dialog() as dialog, ui.card():
        section(f"Reset offsets of {name}")
        topic = ui.select(topics, value=topics[0], label="Topic").props("outlined dense").style("width: 100%")
        to = ui.toggle({"time": "To a time", "begin": "To the beginning", "end": "To the end"}, value="time").props(
            "no-caps unelevated"
        )
        at = ui.input("Time", value=formatting.moment(time.time_ns() // 1_000_000 - 3_600_000)).props("outlined dense")
        at.style("width: 100%").bind_visibility_from(to, "value", value="time")
        shown = table(
            [
                ("queue", "queue", "left"),
                ("current", "current"),
                ("target", "new"),
                ("repeated", "redelivered"),
                ("skipped", "skipped"),
            ],
            "queue",
        ).props("data-mark=preview")
        shown.set_visibility(False)
        summary = ui.label().classes("warn")

        def timestamp() -> int:
            ends = {"begin": 0, "end": -1}
            return ends[str(to.value)] if to.value in ends else formatting.when(at.value)

        async def preview() -> None:
            with show_errors():
                target = str(topic.value), timestamp()
                moves = await console.commands.preview_reset(name, *target)
                previewed[:] = [target]
                shown.rows = [_move(each) for each in moves]
                shown.set_visibility(True)
                repeated, skipped = sum(each.repeated for each in moves), sum(each.skipped for each in moves)
                summary.set_text(
                    f"{formatting.count(repeated)} messages will be delivered again, "
                    f"{formatting.count(skipped)} skipped."
                )
                reset_button.set_enabled(True)

        def changed() -> None:
            previewed.clear()
            reset_button.set_enabled(False)
            shown.set_visibility(False)
            summary.set_text("")

        for field in (topic, to, at):
            field.on_value_change(changed)
        with ui.row().style("justify-content: flex-end; width: 100%"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button("Preview", on_click=preview).props("outline no-caps")
            reset_button = ui.button("Reset", on_click=lambda: dialog.submit(True)).props(
                "unelevated no-caps color=negative"
            )
            reset_button.set_enabled(False)
    confirmed = await dialog
    dialog.delete()
    if confirmed and previewed:
        await run_command(console.commands.reset(name, *previewed[0]))


def _move(move: QueueMove) -> dict[str, str]:
    return {
        "queue": f"{move.broker} {move.queue_id}",
        "current": formatting.count(move.current),
        "target": formatting.count(move.target),
        "repeated": formatting.count(move.repeated),
        "skipped": formatting.count(move.skipped),
    }
