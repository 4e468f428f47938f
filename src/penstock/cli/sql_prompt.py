"""The prompt of `penstock sql`: reads queries line by line, with history and completion of names.

A query ends with a semicolon. `\\d` lists the views, `\\d NAME` the columns of one, `\\q` or the end of input leaves.
Ctrl-C ends a running query, or drops the lines so far. The history is in `penstock/sql_history` in $XDG_STATE_HOME, by
default ~/.local/state, readable by its owner only; without readline there is neither history nor completion.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.output import add_row, flush, show, table, write, write_note
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.sql.views import Views

_HISTORY_LINES: Final = 1000
_WORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "HAVING", "JOIN", "count(*)", "by_key("),
    *("DESCRIBE", "SUMMARIZE", "EXPLAIN"),
)
_HELP: Final = "end a query with ;   \\d lists the views   \\d NAME its columns   \\q leaves"


def prompt(run: Callable[[str], None], views: Views) -> None:
    """Reads queries and commands until the end of input. An error is one sentence, and the prompt goes on."""
    interactive = sys.stdin.isatty()
    if interactive:
        write(f"{_HELP}\n")
    with _line_editing(views) if interactive else contextlib.nullcontext():
        lines: list[str] = []
        while True:
            try:
                line = input(("sql> " if not lines else "...> ") if interactive else "")
            except EOFError:
                if "\n".join(lines).strip():
                    _run(run, "\n".join(lines))
                if interactive:
                    write("\n")
                return
            except KeyboardInterrupt:
                lines = []
                write("\n")
                continue
            command = line.strip()
            if not lines and command.startswith("\\"):
                if command == "\\q":
                    return
                _command(command, views)
                continue
            lines.append(line)
            if command.endswith(";"):
                _run(run, "\n".join(lines))
                lines = []


def _run(run: Callable[[str], None], query: str) -> None:
    try:
        run(query)
    except PenstockError as error:
        write_note(str(error), is_error=True)
    except KeyboardInterrupt:
        write_note("the query was interrupted")
    flush()


def _command(command: str, views: Views) -> None:
    from penstock.sql.views import columns_of

    word, _, name = command.partition(" ")
    if word != "\\d":
        write_note(f"there is no command {word}; {_HELP}")
        return
    try:
        if not name.strip():
            views.refresh()
            names, title = views.names, "view"
        else:
            names, title = list(columns_of(views.find(name.strip().strip('"')))), "column"
    except PenstockError as error:
        write_note(str(error), is_error=True)
        return
    grid = table("", title)
    grid.title = None
    for each in names:
        add_row(grid, each)
    show(grid)
    flush()


@contextlib.contextmanager
def _line_editing(views: Views) -> Iterator[None]:
    """Loads the history, completes names, and saves the history at the end."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock" / "sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer(completer(views))
    readline.set_completer_delims(" \t\n,()=<>;")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(path)


def completer(views: Views) -> Callable[[str, int], str | None]:
    """Returns readline's completer: views, columns and words of SQL that begin with a text, in any case."""
    from penstock.sql.views import FIXED, columns_of

    def complete(text: str, number: int) -> str | None:
        names = [*views.names, *dict.fromkeys(column for view in (*FIXED, "") for column in columns_of(view)), *_WORDS]
        found = [name for name in map(_quoted, names) if name.lower().strip('"').startswith(text.lower().strip('"'))]
        return found[number] if number < len(found) else None

    return complete


def _quoted(name: str) -> str:
    """Returns a name as a query has to write it: in quotes if it is not a plain word."""
    plain = name in _WORDS or (name.replace("_", "a").isalnum() and name.isascii() and not name[0].isdigit())
    return name if plain else '"' + name.replace('"', '""') + '"'
