"""All output of the commands: data to stdout (`write`), notes of one sentence to stderr (`write_note`), tables, JSON
and messages. There are colours at a terminal only, and none if NO_COLOR is set.

Text from a store is untrusted: names and bodies may contain control characters or bytes that are not UTF-8. Such text
must pass through `plain` before it is printed to a terminal. JSON is ASCII, so it is safe in every terminal and locale.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import exit_codes
from penstock.errors import PenstockError
from penstock.human_units import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from penstock.format.record import Record

_WIDE = 1000
_PREVIEW = 60


def write(text: str) -> None:
    """Writes to stdout. Ends the program without an error message if the reader has closed the pipe."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise SystemExit(_silence_stdout()) from None


def flush() -> None:
    """Flushes stdout. Ends the program without an error message if the reader has closed the pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise SystemExit(_silence_stdout()) from None


def _silence_stdout() -> int:
    """Redirects stdout to /dev/null, so that the interpreter's flush at exit does not fail on the closed pipe again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    return exit_codes.READER_GONE


def write_note(sentence: str, *, is_error: bool = False) -> None:
    """Writes one sentence to stderr, on one line. At a terminal the start of an error is red."""
    name = "penstock:"
    if is_error and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        name = f"\x1b[31m{name}\x1b[0m"
    print(f"{name} {plain(' '.join(sentence.split()))}", file=sys.stderr)


def write_json(value: Any) -> None:
    """Writes one JSON document on one line."""
    write(json.dumps(value) + "\n")


def show(*parts: RenderableType) -> None:
    """Prints tables and texts, cut to the width of the terminal. Cuts nothing if stdout is not a terminal."""
    from rich.console import Console

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
    """Returns an empty table. The columns in `right` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    return grid


class Colored(NamedTuple):
    """A cell that has a colour at a terminal."""

    value: object
    color: str


def warn_above_zero(count: int) -> Colored | int:
    """Returns a cell with a count of what should be zero, such as a lag: yellow if it is not."""
    return Colored(count, "yellow") if count > 0 else count


def add_row(grid: Table, *cells: object) -> None:
    """Adds a row to a table and escapes untrusted text."""
    from rich.text import Text

    colored = (cell if isinstance(cell, Colored) else Colored(cell, "") for cell in cells)
    grid.add_row(*(Text(plain(str(cell.value)), style=cell.color) for cell in colored))


def plain(text: str) -> str:
    """Escapes all characters that are not printable, so that the text cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


# -- messages --


def message_object(record: Record, code: int, *, body: bool = True) -> dict[str, Any]:
    """Returns a message as a JSON object, with the field order of the reference page. `code` is its tags code."""
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
        fields["body_text"] = _body_text(record)
    return {**fields, "body_crc": record.body_crc, "msg_id": record.msg_id}


def _body_text(record: Record) -> str | None:
    """Returns the decompressed body if it is UTF-8, else None."""
    from penstock.protocol.compression import MAX_SIZE, inflate_body

    try:
        return inflate_body(record.body, record.sys_flag, MAX_SIZE).decode()
    except (PenstockError, UnicodeDecodeError):
        return None


def message_line(record: Record, *, body: bool = True) -> str:
    """Returns a message as one line: store time, queue, offsets, size in bytes, tag, keys, start of the body."""
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
