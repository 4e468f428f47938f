"""Store: a map of the log's files, queues and index with their fill, what goes next, and what is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nicegui import ui

from penstock.console.pages import words
from penstock.console.pages.frame import every, frame, pairs, section, stat, table, telling, title
from penstock.console.parts import Console

_MOST_ROWS = 200


def add(console: Console) -> None:
    @ui.page("/store")
    async def store() -> None:
        with frame(console, "Store"):
            if console.options.store is None:
                _from_afar(console)
            else:
                await _here(console)


def _from_afar(console: Console) -> None:
    """What brokers tell of their stores."""
    title("Store", "As the brokers tell it; a console with --store DIR on their machine shows every file.")
    with ui.card().classes("p-card"):
        shown = table(
            [
                ("name", "broker", "left"),
                ("log", "log"),
                ("begin", "from offset"),
                ("end", "to offset"),
                ("oldest", "oldest message"),
                ("disk", "disk used"),
                ("capacity", "", "left"),
                ("flush", "not flushed yet"),
                ("dispatch", "not dispatched yet"),
            ],
            "name",
        )

    async def refresh() -> None:
        shown.rows = [
            {
                "name": each.name,
                "log": words.size(each.log_max_offset - each.log_min_offset),
                "begin": words.count(each.log_min_offset),
                "end": words.count(each.log_max_offset),
                "oldest": words.moment(each.earliest_ms),
                "disk": words.share(each.disk_used_ratio),
                "capacity": each.disk_capacity,
                "flush": words.size(each.flush_behind_bytes),
                "dispatch": words.size(each.dispatch_behind_bytes),
            }
            for each in await console.view.brokers()
        ]

    every(5.0, refresh)


async def _here(console: Console) -> None:
    with ui.element("div").classes("p-row"):
        title("Store", console.options.store.name if console.options.store else "")
        ui.space()
        ui.button("Look again", icon="refresh", on_click=lambda: ui.navigate.to("/store")).props("flat no-caps")
    place = ui.column().style("width: 100%; gap: 1rem")
    with place:
        ui.spinner(size="lg")

    async def load() -> None:
        with telling():
            info, outlook = await asyncio.gather(console.store_info(), console.store_outlook())
            place.clear()
            with place:
                _show(info, outlook)

    ui.timer(0.1, load, once=True)


def _show(info: dict[str, Any], outlook: dict[str, Any]) -> None:
    log, recovery = info["commit_log"], info["recovery"]
    with ui.element("div").classes("p-stats"):
        stat("log", words.size(log["max_offset"] - log["min_offset"]))
        stat("on disk", words.size(info["allocated_bytes"]))
        stat("files of the log", words.count(len(log["files"])))
        stat("not dispatched yet", words.size(info["dispatch_behind_bytes"]))
        stat("damaged ranges", words.count(len(recovery["damage"])))
        stat("kept aside", words.size(sum(each["size"] for each in info["quarantine_folders"])))
    _log_map(info, outlook)
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("What retention does next")
            _retention(outlook)
        with ui.card().classes("p-card"):
            section("Damage, recovery and repair")
            _condition(info)
    with ui.card().classes("p-card"):
        section("Index files")
        rows = [
            {
                "name": each["name"],
                "items": words.count(each["items_used"]),
                "full": words.share(each["items_used"] / max(1, each["items_capacity"])),
                "slots": words.share(each["slots_used"] / max(1, each["slots_capacity"])),
                "from": words.moment(each["begin_timestamp"]),
                "to": words.moment(each["end_timestamp"]),
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
                "min": words.count(queue["min_offset"]),
                "max": words.count(queue["max_offset"]),
                "messages": words.count(queue["count"]),
                "size": words.size(queue["count"] * 20),
                "last": words.moment(queue["latest_store_timestamp"]),
            }
            for topic in info["topics"]
            for queue in topic["queues"]
        ]
        columns = [("queue", "queue", "left"), ("min", "min"), ("max", "max"), ("messages", "messages")]
        table([*columns, ("size", "units"), ("last", "last message")], "queue", pagination=15).rows = queues[
            :_MOST_ROWS
        ]


def _log_map(info: dict[str, Any], outlook: dict[str, Any]) -> None:
    """A box for each file of the log, filled as far as it is written."""
    log, damage = info["commit_log"], info["recovery"]["damage"]
    goes = {each["name"]: each for each in outlook["files"]}
    with ui.card().classes("p-card").props("data-mark=log-map"):
        section("The log's files, oldest first")
        with ui.element("div").classes("p-map"):
            for name in log["files"]:
                begin = int(name)
                filled = min(1.0, max(0.0, (log["max_offset"] - begin) / log["file_size"]))
                harmed = sum(begin <= each["physical_offset"] < begin + log["file_size"] for each in damage)
                told = goes.get(name, {})
                classes = "p-file" + (" goes" if told.get("cause") else "") + (" damaged" if harmed else "")
                lines = [name, f"{filled:.0%} written", f"changed {words.moment(told.get('modified_ms'))}"]
                lines += [f"goes {words.moment(told['goes_ms'])}"] if told.get("goes_ms", -1) > 0 else []
                lines += [f"{harmed} damaged ranges"] if harmed else []
                with ui.element("div").classes(classes).style(f"--fill: {filled:.0%}").props("tabindex=0 role=img"):
                    ui.tooltip(" · ".join(lines))
        ui.label("Filled: written. Dashed: retention deletes it now. Red: damaged.").classes("soft small")


def _retention(outlook: dict[str, Any]) -> None:
    if outlook["puts_refused"]:
        ui.label(outlook["puts_refused"]).classes("bad")
    found = [
        (f"disk of {Path(each['path']).name}", f"{each['used_ratio']:.0%} used, {words.size(each['free_bytes'])} free")
        for each in outlook["disk"]
    ]
    for name, going in (("now", outlook["now"]), (words.moment(outlook["next_hour"]["at_ms"]), outlook["next_hour"])):
        unread = sum(each["messages"] for each in going["unread"])
        text = f"{len(going['files'])} files go, {words.size(going['size'])}" if going["files"] else "nothing goes"
        found.append(
            (name, text + (f"; {words.count(unread)} messages of it are unread by some group" if unread else ""))
        )
    pairs(found)
    ui.label("By RocketMQ's defaults, or the broker.conf that the console was started with.").classes("soft small")


def _condition(info: dict[str, Any]) -> None:
    recovery, checkpoint = info["recovery"], info["checkpoint"] or {}
    pairs(
        [
            ("state", str(info["last_exit"])),
            ("torn at the end", words.size(recovery["torn_bytes"])),
            ("checkpoint", ", ".join(f"{name} {words.moment(at)}" for name, at in checkpoint.items()) or words.NOTHING),
            *(
                (f"damage at {each['physical_offset']}", f"{each['size']} bytes: {each['reason']}")
                for each in recovery["damage"]
            ),
            *(("a start would report", note) for note in recovery["notes"]),
            *(
                ("kept aside", f"{each['folder']}: {each['files']} files, {words.size(each['size'])}")
                for each in info["quarantine_folders"]
            ),
        ]
    )
    if recovery["damage"]:
        ui.label("Stop the broker and run `penstock store repair`.").classes("bad")
