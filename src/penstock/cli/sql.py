"""The verb `penstock sql`: queries over stores, in this process with DuckDB, or on Spark with --master."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import Config, Pairs, option
from penstock.cli.output import add_row, flush, show, table, write, write_note
from penstock.cli.progress import ProgressLine
from penstock.cli.verbs_on_spark import Confs, session, time_option
from penstock.errors import BadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.arrow_scan import ScanNotes, ScanOptions

_FORMATS: Final = ("table", "csv", "jsonl", "parquet")
_MAX_TABLE_ROWS: Final = 1000
_MAX_CELL: Final = 200
_PROGRESS_SECONDS: Final = 0.2

Store = Annotated[str, typer.Argument(metavar="PATH", help="The store's directory, or a glob.", show_default=False)]
Query = Annotated[
    str | None, typer.Argument(metavar="QUERY", help="The query; without one there is a prompt.", show_default=False)
]
Since = Annotated[str, option("--since", "TIME", "Only messages stored from this time on: 2026-11-16T08:00, now-1h.")]
Until = Annotated[str, option("--until", "TIME", "Only messages stored before this time.")]
Format = Annotated[str, option("--format", "NAME", "table (default), csv, jsonl or parquet.")]
Output = Annotated[
    Path | None, option("--output", "FILE", "Write the rows to this new file; its suffix implies the format.")
]
AllowFiles = Annotated[bool, typer.Option("--allow-files", help="Let queries read and write files.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=0, help="Threads; 0: one per core.")]
Master = Annotated[str | None, option("--master", "URL", "Run the query on this Spark master, such as local[*].")]


def sql(
    path: Store,
    query: Query = None,
    since: Since = "",
    until: Until = "",
    form: Format = "",
    output: Output = None,
    allow_files: AllowFiles = False,
    threads: Threads = 0,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Query stores with SQL, without a broker and without Java.

    Each topic is a view, beside `log` (everything, in the order of the log), `queues`, `groups` and by_key('topic',
    'key'). Columns are those of the Spark source, and body_text and body_json. Only the columns and topics that a query
    names are read. Works on a store in use, too. Without a query there is a prompt. With --master the same query runs
    on Spark.

    Examples:

    \b
      penstock sql data/store "SELECT tags, count(*) FROM orders GROUP BY tags"
      penstock sql data/store "SELECT * FROM by_key('orders', 'order_7')" --format jsonl
      penstock sql data/store "SELECT topic, body_text FROM log" --since now-1h --output hour.parquet
    """
    chosen = _format(form, output)
    given = _scan_options(path, since, until, threads, config, pairs)
    if output is not None and output.exists():
        raise BadSettings("the file exists; choose another name, or remove it", path=output)
    if chosen == "parquet" and output is None:
        raise BadSettings("--format parquet needs a file; give it with --output FILE")
    if master is not None or conf:
        _run_on_spark(given, query, master, conf, lambda rows: _write_rows(rows, chosen, output))
        return
    _hide_pandas()
    from penstock.sql.duckdb_engine import SqlSession

    with SqlSession(given, allow_files=allow_files) as database:

        def run(text: str) -> None:
            with _interruptible(database.interrupt), _reported(database.notes):
                for rows in database.run(text):
                    _write_rows(rows, chosen, output)

        if query is None:
            from penstock.cli.sql_prompt import prompt

            prompt(run, database.views)
        else:
            run(query)


def _format(form: str, output: Path | None) -> str:
    from difflib import get_close_matches

    if not form:
        suffixes = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
        return "table" if output is None else suffixes.get(output.suffix.lower(), "table")
    if form.lower() not in _FORMATS:
        close = get_close_matches(form.lower(), _FORMATS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BadSettings(f"--format '{form}': it must be one of {', '.join(_FORMATS)}{hint}")
    return form.lower()


def _scan_options(
    path: str, since: str, until: str, threads: int, config: Path | None, pairs: Sequence[str] | None
) -> ScanOptions:
    from penstock.pipeline.arrow_scan import ScanOptions

    return ScanOptions(
        paths=(path,),
        since_ms=time_option("--since", since),
        until_ms=time_option("--until", until),
        config="" if config is None else str(config),
        settings=tuple(pairs or ()),
        threads=threads,
    )


class _WithoutPandas:
    """A finder of modules for which pandas does not exist."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not imported here", name=name)


def _hide_pandas() -> None:
    """Keeps pyarrow from importing pandas, which it does if pandas is installed. That takes longer than most queries.

    Only if this process is the command itself, because pyarrow never asks again: neither DuckDB nor a scan needs it.
    """
    is_command = Path(sys.argv[0]).stem in ("penstock", "main")
    if is_command and "pandas" not in sys.modules and find_spec("pandas") is not None:
        sys.meta_path.insert(0, _WithoutPandas())


# -- a run -------------------------------------------------------------------------------------------------------------


@contextmanager
def _interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Calls `interrupt` at once when a signal such as Ctrl-C arrives.

    Python handles a signal in the main thread only, and DuckDB may keep that one for seconds.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def watch() -> None:
            while reader.recv(1) != b"\0":  # a signal writes its number
                interrupt()

        watcher = threading.Thread(target=watch, name="penstock-interrupt", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            writer.send(b"\0")
            watcher.join()


@contextmanager
def _reported(notes: ScanNotes) -> Iterator[None]:
    """Shows the progress of a query at a terminal, and says afterwards how many damaged places it met."""
    before, done, planned = notes.damaged, notes.bytes_done, notes.bytes_planned
    ended = threading.Event()
    with ProgressLine() as line:

        def watch() -> None:
            while not ended.wait(_PROGRESS_SECONDS):
                if notes.bytes_planned > planned:
                    line("reading", notes.bytes_done - done, notes.bytes_planned - planned)

        watcher = threading.Thread(target=watch, name="penstock-progress", daemon=True)
        if sys.stderr.isatty():
            watcher.start()
        try:
            yield
        finally:
            ended.set()
            if watcher.is_alive():
                watcher.join()
    found = notes.damaged - before
    if found:
        places = "damaged place" if found == 1 else "damaged places"
        write_note(f"{found} {places} without rows here, the first: {notes.first_damage}; `penstock verify` shows all")


def _run_on_spark(
    given: ScanOptions,
    query: str | None,
    master: str | None,
    conf: Sequence[str] | None,
    write_rows: Callable[[pa.RecordBatchReader], None],
) -> None:
    if query is None:
        raise BadSettings("--master needs a query; the prompt is for DuckDB only")
    from penstock.sql.spark_engine import SparkSqlSession

    with session("sql", master, conf) as spark:
        for rows in SparkSqlSession(spark, given).run(query):
            write_rows(rows)


def _write_rows(rows: pa.RecordBatchReader, form: str, output: Path | None) -> None:
    from penstock.sql.results import lines, with_distinct_names

    rows = with_distinct_names(rows)
    if output is None:
        if form == "table":
            _show_table(rows)
            return
        for text in lines(rows, form):
            write(text)
        flush()
        return
    new = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        count = _write_file(rows, form, new)
        new.replace(output)
    finally:
        new.unlink(missing_ok=True)
    write_note(f"{count} rows in {output}")


def _write_file(rows: pa.RecordBatchReader, form: str, path: Path) -> int:
    import pyarrow as pa

    from penstock.sql.results import lines, write_parquet

    if form == "parquet":
        return write_parquet(rows, path)
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in rows:
            count += batch.num_rows
            yield batch

    with path.open("w", encoding="utf-8") as file:
        for text in lines(
            pa.RecordBatchReader.from_batches(rows.schema, counted()), "csv" if form == "table" else form
        ):
            file.write(text)
    return count


def _show_table(rows: pa.RecordBatchReader) -> None:
    """Prints the first rows. The rest is not read: no one reads a table of a million rows."""
    import pyarrow as pa

    numbers = {
        field.name for field in rows.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }
    grid = table("", *rows.schema.names, right=tuple(numbers))
    grid.title = None
    left, more = _MAX_TABLE_ROWS, False
    for batch in rows:
        for row in batch.slice(0, left).to_pylist():
            add_row(grid, *(_cell(value) for value in row.values()))
        more = batch.num_rows > left
        left -= min(batch.num_rows, left)
        if more:
            break
    show(grid)
    if more:
        write_note(f"these are the first {_MAX_TABLE_ROWS} rows; --format csv or --output FILE gives all")


def _cell(value: Any) -> str:
    """Returns a value for a table: short, and bytes as text if they are."""
    from penstock.sql.results import simple

    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            text = value[: 4 * _MAX_CELL].decode()
        except UnicodeDecodeError:
            text = value[:_MAX_CELL].hex()
    elif isinstance(value, list | tuple | dict):
        import json

        pairs = isinstance(value, list) and value and all(isinstance(each, tuple) and len(each) == 2 for each in value)
        text = json.dumps(simple(dict(value) if pairs else value), ensure_ascii=False)
    else:
        text = str(simple(value))
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"
