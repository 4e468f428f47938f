"""The Store page: a map of the log files, queues and index with their fill, the next retention steps, and damage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nicegui import ui

from penstock.console.console import Console
from penstock.console.pages import formatting
from penstock.console.pages.frame import frame, pairs, refresh_every, section, show_errors, stat, table, title

_MAX_ROWS = 200


def add(console: Console) -> None:
    @ui.page("/store")
    async def store() -> None:
        with frame(console, "Store"):
            if console.options.store is None:
                _reported(console)
            else:
                await _local(console)


def _reported(console: Console) -> None:
    """Shows the stores from the brokers' reports."""
    title(
        "Store",
        "As reported by the brokers. To see every file, start the console with --store DIR on the broker's machine.",
    )
    with ui.card().classes("p-card"):
        shown = table(
            [
                ("name", "broker", "left"),
                ("log", "log"),
                ("begin", "from offset"),
                ("end", "to offset"),
                ("oldest", "oldest message"),
                ("disk", "disk used"),
                ("capacity", "capacity", "left"),
                ("flush", "not flushed yet"),
                ("dispatch", "not dispatched yet"),
            ],
            "name",
        )

    async def refresh() -> None:
        shown.rows = [
            {
                "name": each.name,
                "log": formatting.size(each.log_max_offset - each.log_min_offset),
                "begin": formatting.count(each.log_min_offset),
                "end": formatting.count(each.log_max_offset),
                "oldest": formatting.moment(each.earliest_ms),
                "disk": formatting.share(each.disk_used_ratio),
                "capacity": each.disk_capacity,
                "flush": formatting.size(each.flush_behind_bytes),
                "dispatch": formatting.behind(each.dispatch_behind_bytes, each.dispatch_behind_ms),
            }
            for each in await console.view.brokers()
        ]

    refresh_every(5.0, refresh)


async def _local(console: Console) -> None:
    with ui.element("div").classes("p-row"):
        title("Store", console.options.store.name if console.options.store else "")
        ui.space()
        ui.button("Refresh", icon="refresh", on_click=lambda: ui.navigate.to("/store")).props("flat no-caps")
    content = ui.column().style("width: 100%; gap: 1rem")
    with content:
        ui.spinner(size="lg")

    async def load() -> None:
        with show_errors():
            info, outlook = await asyncio.gather(console.store_info(), console.store_outlook())
            content.clear()
            with content:
                _show(info, outlook)

    ui.timer(0.1, load, once=True)


def _show(info: dict[str, Any], outlook: dict[str, Any]) -> None:
    log, recovery = info["commit_log"], info["recovery"]
    with ui.element("div").classes("p-stats"):
        stat("log", formatting.size(log["max_offset"] - log["min_offset"]))
        stat("on disk", formatting.size(info["allocated_bytes"]))
        stat("log files", formatting.count(len(log["files"])))
        stat("not dispatched yet", formatting.behind(info["dispatch_behind_bytes"], info["dispatch_behind_ms"]))
        stat("damaged ranges", formatting.count(len(recovery["damage"])))
        stat("Quarantine", formatting.size(sum(each["size"] for each in info["quarantine_folders"])))
    _log_map(info, outlook)
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("Next retention steps")
            _retention(outlook)
        with ui.card().classes("p-card"):
            section("Damage, recovery and repair")
            _condition(info)
    with ui.card().classes("p-card"):
        section("Index files")
        rows = [
            {
                "name": each["name"],
                "items": formatting.count(each["items_used"]),
                "full": formatting.share(each["items_used"] / max(1, each["items_capacity"])),
                "slots": formatting.share(each["slots_used"] / max(1, each["slots_capacity"])),
                "from": formatting.moment(each["begin_timestamp"]),
                "to": formatting.moment(each["end_timestamp"]),
            }
            for each in info["index"]["files"]
        ]
        columns = [("name", "file", "left"), ("items", "keys"), ("full", "full"), ("slots", "slots used")]
        table([*columns, ("from", "from"), ("to", "to")], "name", pagination=10).rows = rows
    with ui.card().classes("p-card"):
        section("Queues")
        queues = [
            {
                "queue": f"{topic['topic']} {queue['queue_id']}",
                "min": formatting.count(queue["min_offset"]),
                "max": formatting.count(queue["max_offset"]),
                "messages": formatting.count(queue["count"]),
                "size": formatting.size(queue["count"] * 20),
                "last": formatting.moment(queue["latest_store_timestamp"]),
            }
            for topic in info["topics"]
            for queue in topic["queues"]
        ]
        columns = [("queue", "queue", "left"), ("min", "min"), ("max", "max"), ("messages", "messages")]
        table([*columns, ("size", "units"), ("last", "last message")], "queue", pagination=15).rows = queues[:_MAX_ROWS]


def _log_map(info: dict[str, Any], outlook: dict[str, Any]) -> None:
    """Draws a box for each log file, filled in proportion to its written bytes."""
    log, damage = info["commit_log"], info["recovery"]["damage"]
    outlooks = {each["name"]: each for each in outlook["files"]}
    with ui.card().classes("p-card").props("data-mark=log-map"):
        section("Log files, oldest first")
        with ui.element("div").classes("p-map"):
            for name in log["files"]:
                begin = int(name)
                filled = min(1.0, max(0.0, (log["max_offset"] - begin) / log["file_size"]))
                damaged = sum(begin <= each["physical_offset"] < begin + log["file_size"] for each in damage)
                file = outlooks.get(name, {})
                classes = "p-file" + (" goes" if file.get("cause") else "") + (" damaged" if damaged else "")
                lines = [name, f"{filled:.0%} written", f"modified {formatting.moment(file.get('modified_ms'))}"]
                lines += [f"expires {formatting.moment(file['goes_ms'])}"] if file.get("goes_ms", -1) > 0 else []
                lines += [f"{damaged} damaged ranges"] if damaged else []
                with ui.element("div").classes(classes).style(f"--fill: {filled:.0%}").props("tabindex=0 role=img"):
                    ui.tooltip(" · ".join(lines))
        ui.label("Filled: written. Dashed: deleted by the next retention run. Red: damaged.").classes("soft small")


def _retention(outlook: dict[str, Any]) -> None:
    if outlook["puts_refused"]:
        ui.label(outlook["puts_refused"]).classes("bad")
    steps = [
        (
            f"disk of {Path(each['path']).name}",
            f"{each['used_ratio']:.0%} used, {formatting.size(each['free_bytes'])} free",
        )
        for each in outlook["disk"]
    ]
    for name, deletion in (
        ("now", outlook["now"]),
        (formatting.moment(outlook["next_hour"]["at_ms"]), outlook["next_hour"]),
    ):
        unread = sum(each["messages"] for each in deletion["unread"])
        text = "Nothing to delete"
        if deletion["files"]:
            text = f"Delete {len(deletion['files'])} files, {formatting.size(deletion['size'])}"
        if unread:
            text += f"; {formatting.count(unread)} of their messages are not consumed by all groups yet"
        steps.append((name, text))
    pairs(steps)
    ui.label("Based on RocketMQ's defaults, or on the broker.conf given to the console.").classes("soft small")


def _condition(info: dict[str, Any]) -> None:
    recovery, checkpoint = info["recovery"], info["checkpoint"] or {}
    pairs(
        [
            ("last exit", str(info["last_exit"])),
            ("torn tail", formatting.size(recovery["torn_bytes"])),
            (
                "checkpoint",
                ", ".join(f"{name} {formatting.moment(at)}" for name, at in checkpoint.items()) or formatting.NOTHING,
            ),
            *(
                (f"damage at {each['physical_offset']}", f"{each['size']} bytes: {each['reason']}")
                for each in recovery["damage"]
            ),
            *(("recovery note", note) for note in recovery["notes"]),
            *(
                ("Quarantine", f"{each['folder']}: {each['files']} files, {formatting.size(each['size'])}")
                for each in info["quarantine_folders"]
            ),
        ]
    )
    if recovery["damage"]:
        ui.label("Stop the broker and run `penstock store repair`.").classes("bad")
