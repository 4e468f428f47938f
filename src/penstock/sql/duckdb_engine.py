"""`SqlSession`: runs queries over the views of stores with DuckDB, in this process. Needs duckdb.

DuckDB asks each view that a query names for the columns and rows that its plan needs, and reads nothing else. It has
no access to files, to the network or to this program's variables, cannot install extensions, and its settings are
locked; with `allow_files` it may read and write files. What exceeds its memory goes to a temporary folder of its own,
which is removed at the end. The database is empty and in memory: what a query creates ends with the session.

One thread uses a session; another may `interrupt` its query, which leaves the session usable.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import BadQuery, BadSettings
from penstock.pipeline.arrow_dataset import StoreDataset
from penstock.pipeline.arrow_scan import ScanNotes, ScanOptions, StoreScan, find_topic
from penstock.sql.views import BODY_JSON, GROUPS, QUEUES, Views, replace_key_views, told_apart

_MEMORY: Final = "96MB"
"""DuckDB's own memory. The threads of a scan have about as much."""
_BATCH_ROWS: Final = 8192
_SETTINGS: Final[dict[str, str | bool]] = {
    "memory_limit": _MEMORY,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
_VIEW: Final = (
    "CREATE OR REPLACE TEMP VIEW {view} AS SELECT *, "
    f"CASE WHEN json_valid(body_text) THEN body_text::JSON END AS {BODY_JSON} FROM {{table}}"
)
_MACROS: Final = ("CREATE TEMP MACRO get_json_object(value, path) AS json_extract_string(value, path)",)
"""Functions of Spark SQL that DuckDB has under another name."""
_INTERRUPTED: Final = "Query interrupted"
"""The text of the RuntimeError that DuckDB raises for an interrupt."""
_NO_TABLE: Final = re.compile(r'Table with name (?:")?(.+?)(?:")? does not exist')
_PLACE: Final = re.compile(r"\nLINE (\d+): ([^\n]*)\n( *)\^")


class SqlSession:
    """Queries over the stores of `options`. `notes` counts what their scans read."""

    def __init__(self, options: ScanOptions, *, allow_files: bool = False) -> None:
        """Raises BadStore or BadSettings if the stores cannot be read."""
        self.notes = ScanNotes()
        self.views = Views(options)
        self._options = options
        self._spill = Path(tempfile.mkdtemp(prefix="penstock-sql-"))
        settings: dict[str, str | bool | int | float | list[str]] = {**_SETTINGS, "temp_directory": str(self._spill)}
        if options.threads:
            settings["threads"] = options.threads
        self._database = duckdb.connect(config=settings)
        for statement in ("SET TimeZone = 'UTC'", *_MACROS):
            self._database.execute(statement)
        if not allow_files:
            self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")
        self._without_views: duckdb.DuckDBPyConnection | None = None
        self._has_views = False

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def interrupt(self) -> None:
        """Ends the query that runs, which raises KeyboardInterrupt. Any thread may call it."""
        self._database.interrupt()

    def close(self) -> None:
        self._database.interrupt()
        self._database.close()
        if self._without_views is not None:
            self._without_views.close()
        shutil.rmtree(self._spill, ignore_errors=True)

    def run(self, text: str) -> Iterator[pa.RecordBatchReader]:
        """Runs the statements of a text one after the other, and yields the rows of each.

        The rows of a statement must be read before the next one runs. Raises BadQuery, and what scans raise.
        """
        query, key_views = replace_key_views(text, quote)
        for view in key_views:
            self._add_messages(view.name, self.views.scan_of_key(view))
        with self._as_sentences(query):
            statements = self._database.extract_statements(query)
        for statement in statements:
            with self._as_sentences(query):
                self._add_views(statement.query)
                relation = self._database.sql(statement.query)
                if relation is None:  # a statement without rows, such as CREATE TABLE
                    continue
                reader = relation.to_arrow_reader(_BATCH_ROWS)
            yield pa.RecordBatchReader.from_batches(reader.schema, self._checked(reader, query))

    def _checked(self, reader: pa.RecordBatchReader, query: str) -> Iterator[pa.RecordBatch]:
        with self._as_sentences(query):
            yield from reader

    # -- views -----------------------------------------------------------------------------------------------

    def _add_views(self, statement: str) -> None:
        """Adds the views that a statement names. One that names no table, such as SHOW TABLES, gets all topics."""
        try:
            named = self._names_in(statement)
        except duckdb.Error:  # PIVOT becomes several statements
            named = {name for name in self.views.names if name.lower() in statement.lower()}
        if not named:
            self.views.refresh()
        views = []
        for name in named or self.views.names:
            try:
                views.append(self.views.find(name))
            except BadSettings:  # a table of the query's own, or an error that DuckDB shows with its place
                continue
        for view in told_apart(views, statement) if named else views:
            if view not in (QUEUES, GROUPS):
                self._add_messages(view, self.views.scan_of(view))
            elif named:
                self._database.register(view, self.views.table_of(view))

    def _names_in(self, statement: str) -> set[str]:
        """Returns the tables that a statement names.

        DuckDB leaves out views that exist, so an empty database is asked from the second statement on. Opening it takes
        as long as a short query. Raises duckdb.Error.
        """
        if not self._has_views:
            self._has_views = True
            return self._database.get_table_names(statement)
        if self._without_views is None:
            settings: dict[str, str | bool | int | float | list[str]] = {**_SETTINGS, "threads": 1}
            self._without_views = duckdb.connect(config=settings | {"enable_external_access": False})
        return self._without_views.get_table_names(statement)

    def _add_messages(self, name: str, scanned: ScanOptions) -> None:
        table = f"messages of {name}"
        self._database.register(table, StoreDataset(StoreScan(scanned, self.notes)))
        self._database.execute(_VIEW.format(view=quote(name), table=quote(table)))

    # -- errors ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_sentences(self, query: str) -> Iterator[None]:
        """Turns an error of DuckDB into BadQuery, or into the error of the scan that caused it."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, RuntimeError, KeyboardInterrupt) as error:
            self._database.interrupt()  # the threads of the query may still run
            cause, self.notes.error = self.notes.error, None
            if cause is not None:
                raise cause from None
            if isinstance(error, duckdb.InterruptException | KeyboardInterrupt) or str(error) == _INTERRUPTED:
                raise KeyboardInterrupt from None
            raise BadQuery(self._sentence(str(error), query)) from None

    def _sentence(self, message: str, query: str) -> str:
        """Returns DuckDB's message as one sentence, with the line and column of the query if it has them."""
        place = _PLACE.search(message)
        where = "" if place is None else _where(query, int(place[1]), place[2], len(place[3]))
        missing = _NO_TABLE.search(message)
        if missing is not None:
            try:
                find_topic(missing[1], self.views.names)
            except BadSettings as error:
                return f"{where}{error}"
        lines = (message if place is None else message[: place.start()]).strip().split("\n")
        kind, colon, text = lines[0].partition(": ")
        first = text if colon and kind.endswith("Error") else lines[0]
        hints = [line.strip() for line in lines[1:] if line.startswith(("Did you mean", "Candidate bindings"))]
        sentence = "; ".join([first.rstrip("!. "), *hints])
        if "disabled by configuration" in sentence:
            sentence += "; --allow-files lets a query use files"
        return f"{where}{sentence}"


def _where(query: str, line: int, shown: str, caret: int) -> str:
    """Returns the place of an error. DuckDB shows a part of a long line, after `...`, with a caret below it."""
    lines = query.split("\n")
    column = caret - len(f"LINE {line}: ")
    if shown.startswith("...") and line <= len(lines):
        column += max(lines[line - 1].find(shown[3:].removesuffix("...")), 0) - 3
    return f"line {line}, column {column + 1}: "


def quote(name: str) -> str:
    """Returns a name as DuckDB's quoted identifier."""
    return '"' + name.replace('"', '""') + '"'
