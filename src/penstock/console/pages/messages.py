"""The Messages pages: search by key, id, time or offset; and one message in full, with the groups that have consumed
it.

A body is shown as text, JSON or hex, and never as markup.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nicegui import ui

from penstock.client.message import ReceivedMessage
from penstock.console.console import Console
from penstock.console.message_search import body_of, clean, describe
from penstock.console.pages import formatting
from penstock.console.pages.frame import frame, pairs, refresh_every, section, show_errors, table, title

MAX_SHOWN: Final = 64 << 10
_MAX_PREVIEWED: Final = 1 << 20
"""Limit of a body in a list, in bytes. A body that inflates to more is shown as stored."""
"""Limit of a body's shown part, in bytes. The download contains the whole body."""
_PER_LINE: Final = 16


_BY = {"newest": "newest", "key": "key", "id": "id", "time": "time", "offset": "queue offset"}
_PREVIEW = 120
_MAX_CHOICES = 300


def add(console: Console) -> None:
    @ui.page("/messages")
    async def messages(topic: str = "", by: str = "newest", value: str = "") -> None:
        with frame(console, "Messages"):
            title("Messages", "Read-only: browsing does not change offsets.")
            await _search(console, topic, by if by in _BY else "newest", value)

    @ui.page("/message/{msg_id}")
    async def message(msg_id: str) -> None:
        with frame(console, "Message", "Messages"):
            with show_errors():
                matches = await console.search.by_id(msg_id)
                if matches:
                    _one(console, matches[0])
                    return
            title("Message not found", msg_id)


def list_columns() -> list[tuple[str, ...]]:
    return [
        ("id", "id", "left"),
        ("stored", "stored", "left"),
        ("place", "queue and offset", "left"),
        ("tags", "tag", "left"),
        ("keys", "keys", "left"),
        ("body", "body", "left"),
    ]


def list_row(message: ReceivedMessage) -> dict[str, Any]:
    """Returns a message as a row of the result table."""
    body, _ = body_of(message, _MAX_PREVIEWED)
    start = body[:_PREVIEW]
    text = start.hex(" ") if best_form(body) is Form.HEX else start.decode("utf-8", "replace")
    return {
        "id": message.msg_id,
        "key": message.offset_msg_id,
        "link": formatting.path("message", message.offset_msg_id),
        "stored": formatting.moment(message.store_timestamp),
        "place": f"{message.queue_id} at {message.queue_offset}",
        "tags": clean(message.tags),
        "keys": clean(" ".join(message.keys)),
        "body": " ".join(text.split()) + ("…" if len(body) > _PREVIEW else ""),
    }


def _topic_field(names: list[str], topic: str) -> ui.select | ui.input:
    """Adds a drop-down list of topics. For many topics, adds an input with completion, which is faster to draw."""
    if len(names) <= _MAX_CHOICES:
        return ui.select(names, label="Topic", value=topic if topic in names else None, with_input=True)
    return ui.input("Topic", value=topic, autocomplete=names)


async def _search(console: Console, topic: str, by: str, value: str) -> None:
    names: list[str] = []
    with show_errors():
        names = [row.name for row in await console.view.topics()]
    brokers: list[str] = []
    with show_errors():
        brokers = sorted({broker.name for broker in await console.view.brokers()})
    now = time.time_ns() // 1_000_000
    with ui.card().classes("p-card"), ui.element("div").classes("p-row"):
        of = _topic_field(names, topic)
        of.props("outlined dense options-dense").style("width: min(22rem, 100%)")
        how = ui.select(_BY, label="By", value=by).props("outlined dense").style("width: 9rem")
        text = ui.input("Key", value=value if by == "key" else "").props("outlined dense").style("width: 18rem")
        text.bind_visibility_from(how, "value", value="key")
        msg_id = ui.input("Message id", value=value if by == "id" else "").props("outlined dense").style("width: 24rem")
        msg_id.bind_visibility_from(how, "value", value="id")
        begin = ui.input("From", value=formatting.moment(now - 3_600_000)).props("outlined dense").style("width: 13rem")
        end = ui.input("To", value=formatting.moment(now + 60_000)).props("outlined dense").style("width: 13rem")
        for field in (begin, end):
            field.bind_visibility_from(how, "value", value="time")
        broker = ui.select(brokers, label="Broker", value=brokers[0] if brokers else None).props("outlined dense")
        queue = ui.number("Queue", value=0, min=0, precision=0).props("outlined dense").style("width: 6rem")
        offset = ui.number("Offset", value=0, min=0, precision=0).props("outlined dense").style("width: 9rem")
        for each in (broker, queue, offset):
            each.bind_visibility_from(how, "value", value="offset")
        find = ui.button("Find", icon="search").props("unelevated no-caps")
    with ui.card().classes("p-card"):
        summary = ui.label("").classes("soft small").props("data-mark=summary")
        shown = table(list_columns(), "key").props("data-mark=found wrap-cells")

    async def search() -> None:
        with show_errors():
            name = str(of.value or "")
            if not name and how.value != "id":
                raise ValueError("Select a topic first.")
            if how.value == "key":
                messages = await console.search.by_key(name, str(text.value or ""))
            elif how.value == "id":
                messages = await console.search.by_id(str(msg_id.value or "").strip(), name or None)
            elif how.value == "time":
                messages = await console.search.by_time(name, formatting.when(begin.value), formatting.when(end.value))
            elif how.value == "offset":
                position = str(broker.value or ""), int(queue.value or 0), int(offset.value or 0)
                messages = await console.search.by_offset(name, *position)
            else:
                messages = await console.search.newest(name)
            shown.rows = [list_row(each) for each in messages]
            summary.set_text(f"{len(messages)} found" if messages else "None found.")

    find.on_click(search)
    for typed in (text, msg_id, begin, end):
        typed.on("keydown.enter", search)
    if topic in names or (by == "id" and value):
        await search()


def _one(console: Console, message: ReceivedMessage) -> None:
    described = describe(message)
    body = b64decode(described.body)
    title(described.msg_id, f"{described.topic}, queue {described.queue_id} at offset {described.queue_offset}")
    with ui.card().classes("p-card"):
        with ui.element("div").classes("p-row"):
            section("Body")
            ui.label(f"{formatting.size(described.body_size)} {described.note}").classes("soft small")
            ui.space()
            forms = ui.toggle({form: form.value for form in Form}, value=best_form(body)).props(
                "no-caps dense unelevated"
            )
            ui.button(
                icon="download", on_click=lambda: ui.download.content(body, f"{described.offset_msg_id}.bin")
            ).props('flat round dense aria-label="Download"')
        with ui.element("pre").classes("p-body").props("data-mark=body tabindex=0") as box:
            shown = ui.label().style("display: inline")
        cut = ui.label("Only the beginning is shown; the download is complete.").classes("soft small")

        def draw() -> None:
            view = show(body, Form(forms.value))
            shown.set_text(view.text)
            cut.set_visibility(view.is_cut)
            box.classes(replace=f"p-body {'hex' if view.form is Form.HEX else ''}")

        forms.on_value_change(draw)
        draw()
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("Headers")
            pairs(
                [
                    ("topic", described.topic),
                    ("tag", described.tags or formatting.NOTHING),
                    ("keys", " ".join(described.keys) or formatting.NOTHING),
                    ("born", f"{formatting.moment(described.born_ms)} at {described.born_host}"),
                    ("stored", f"{formatting.moment(described.stored_ms)} at {described.store_host}"),
                    ("offset id", described.offset_msg_id),
                    ("physical offset", formatting.count(described.physical_offset)),
                    ("size", formatting.size(described.size)),
                    ("Failed deliveries", str(described.reconsume_times)),
                ]
            )
        with ui.card().classes("p-card"):
            section("Properties")
            pairs(sorted(described.properties.items()))
        with ui.card().classes("p-card"):
            section("Consumers")
            groups = table(
                [("group", "group", "left"), ("state", "state", "left"), ("offset", "group offset")], "group"
            ).props('no-data-label="No group consumes this topic." data-mark=consumers')

    async def refresh() -> None:
        groups.rows = [
            {
                "group": each.group,
                "link": formatting.path("groups", each.group),
                "state": each.state,
                "offset": formatting.count(each.consumer_offset) if each.consumer_offset >= 0 else formatting.NOTHING,
            }
            for each in await console.search.consumers(message)
        ]

    refresh_every(3.0, refresh)


# -- body ------------------------------------------------------------------------------------------------------------


class Form(StrEnum):
    TEXT = "text"
    JSON = "JSON"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body, or its beginning, rendered in one form: text, JSON or hex."""

    form: Form
    text: str
    is_cut: bool


def best_form(body: bytes) -> Form:
    """Returns the most readable form for a body."""
    if _as_json(body) is not None:
        return Form.JSON
    try:
        text = body[:MAX_SHOWN].decode()
    except UnicodeDecodeError as error:
        if error.start < min(len(body), MAX_SHOWN) - 4:  # unless the cut splits a character
            return Form.HEX
        text = ""
    control = sum(not (each.isprintable() or each in "\r\n\t") for each in text)
    return Form.HEX if control > len(text) // 10 else Form.TEXT


def show(body: bytes, form: Form | None = None) -> ShownBody:
    """Renders a body in `form`, by default in its most readable form."""
    form = form or best_form(body)
    if form is Form.JSON:
        text = _as_json(body)
        if text is not None:
            return ShownBody(form, text[:MAX_SHOWN], len(text) > MAX_SHOWN)
        form = Form.TEXT
    part = body[:MAX_SHOWN]
    is_cut = len(body) > MAX_SHOWN
    if form is Form.HEX:
        return ShownBody(form, _as_hex(part), is_cut)
    return ShownBody(form, part.decode("utf-8", "replace"), is_cut)


def _as_json(body: bytes) -> str | None:
    """Returns indented JSON; None if the body is too long, or not a JSON object or array."""
    if len(body) > MAX_SHOWN or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _as_hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _PER_LINE):
        row = body[at : at + _PER_LINE]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{_PER_LINE * 3 - 1}}  {text}")
    return "\n".join(lines)
