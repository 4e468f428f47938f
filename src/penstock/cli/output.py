"""Where text goes: data to stdout through `write`, sentences for people to stderr through `say`.

Texts from a store are not trusted: names and bodies may hold control characters or bytes that are not UTF-8, and
reach a terminal only through `plain`. JSON is ASCII, so it survives any terminal and any locale.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli import exits

_WIDE = 1000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
    return exits.READER_GONE


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


def moment(milliseconds: int) -> str:
    """A time as people write it, in local time; `-` for none."""
    if milliseconds <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def in_units(count: int) -> str:
    """A number of bytes, in the unit that suits it."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
