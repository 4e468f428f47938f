"""Where text goes: data to stdout through `write`, sentences for people to stderr through `say`.

Texts from a store are not trusted: names and bodies may hold control characters or bytes that are not UTF-8, and
reach a terminal only through `plain`. JSON is ASCII, so it survives any terminal and any locale.


Messages on their way out: as the JSON object that all verbs share, or as one line for people.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli import exit_codes
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.record import Record, decode_record, tags_code
from penstock.store import MessageStore
from penstock.store.consume_queue import ConsumeQueue, QueueExtensions
from penstock.store.io import Files
from penstock.store.records import belongs_to
from penstock.units import format_time

_WIDE = 1000


def write(text: str) -> None:
    """Sends text to stdout; ends the program quietly when nobody reads it any more."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise SystemExit(_reader_gone()) from None


def flush() -> None:
    """Sends what is still buffered."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise SystemExit(_reader_gone()) from None


def _reader_gone() -> int:
    """Keeps the interpreter from complaining about the closed pipe once more when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return exit_codes.READER_GONE


def say(sentence: str) -> None:
    """Tells a person one thing, on one line."""
    print(f"penstock: {plain(' '.join(sentence.split()))}", file=sys.stderr)


def write_json(value: Any) -> None:
    """One JSON document on one line."""
    write(json.dumps(value) + "\n")


def show(*parts: RenderableType) -> None:
    """Tables and texts as a terminal shows them best; uncut where stdout is not a terminal."""
    terminal = sys.stdout.isatty()
    page = StringIO()
    console = Console(
        file=page,
        width=None if terminal else _WIDE,
        force_terminal=terminal,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    write("\n".join(line.rstrip() for line in page.getvalue().split("\n")))


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns named in `right` hold numbers."""
    made = Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    return made


def add_row(to: Table, *cells: object) -> None:
    """One row; numbers and foreign texts alike."""
    to.add_row(*(Text(plain(str(cell))) for cell in cells))


def plain(text: str) -> str:
    """Text that cannot steer a terminal: what is not printable stands as an escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


_PAGE = 4096
_PREVIEW = 60


def message_object(record: Record, code: int, *, body: bool = True) -> dict[str, Any]:
    """The fields of a message, in the order of the reference page."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "tags_code": code,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "properties": record.properties,
    }
    if body:
        fields["body"] = b64encode(record.body).decode()
    return {**fields, "body_crc": record.body_crc, "msg_id": record.msg_id}


def message_line(record: Record, *, body: bool = True) -> str:
    """One line: when, which queue and offset, where in the log, tag, keys, and how the body begins."""
    parts = [
        format_time(record.store_timestamp),
        f"{record.topic}/{record.queue_id}",
        f"offset {record.queue_offset}",
        f"at {record.physical_offset}",
        f"{record.size} bytes",
    ]
    if record.tags:
        parts.append(f"tag {record.tags}")
    if record.keys:
        parts.append(f"keys {' '.join(record.keys)}")
    if body:
        parts.append(_preview(record.body))
    return plain("  ".join(parts))


def write_message(record: Record, code: int, *, as_json: bool, body: bool = True) -> None:
    if as_json:
        write_json(message_object(record, code, body=body))
    else:
        write(message_line(record, body=body) + "\n")


def _preview(body: bytes) -> str:
    start = body[:_PREVIEW]
    try:
        text = start.decode()
    except UnicodeDecodeError:
        text = start.hex()
    return text if len(body) <= _PREVIEW else f"{text}…"


class QueueReader:
    """Reads queues with the tags codes that their units hold, through the extension files where there are any."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        size = store.settings.mapped_file_size_consume_queue_ext
        self._extensions = QueueExtensions(Files(), store.layout.consume_queue_ext, size)

    def messages(self, queue: ConsumeQueue, begin: int) -> Iterator[tuple[Record, int]]:
        """Messages from a queue offset on; units whose record is gone or damaged are left out."""
        topic, offset = queue.topic.encode(), max(begin, queue.min_offset)
        per_file = queue.files.file_size // UNIT_SIZE
        while offset < queue.max_offset:
            units = queue.page(offset, _PAGE)
            if units is None:
                offset += per_file - offset % per_file
                continue
            codes = self._extensions.resolve(queue.topic, queue.queue_id, units["tags_code"]).tolist()
            for place, (physical, size, _) in enumerate(units.tolist()):
                data = None if size == NO_RECORD_SIZE else self._store.records.raw(physical, size)[0]
                if data is not None and belongs_to(data, topic, queue.queue_id, offset + place):
                    yield decode_record(data), codes[place]
            offset += len(units)

    def code_of(self, record: Record) -> int:
        """The tags code of a message's unit; computed where it has none."""
        queue = self._store.queues.find(record.topic, record.queue_id)
        unit = None if queue is None or record.queue_offset < 0 else queue.page(record.queue_offset, 1)
        if unit is None or int(unit["offset"][0]) != record.physical_offset:
            return tags_code(record, self._store.settings.delay_levels)
        return int(self._extensions.resolve(record.topic, record.queue_id, unit["tags_code"])[0])
