"""`scan_polars`: the messages of stores as a lazy frame of Polars, through its I/O plug-in. Needs polars.

Polars pushes the columns, the filter and the row limit of a query down to the scan. The scan makes the columns of the
filter first, lets Polars evaluate the filter, and makes the other columns for the rows that are left. A row limit that
Polars pushes down beside a filter counts the rows before the filter: the rows are then filtered as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from penstock.format.kernels import Longs
from penstock.pipeline.arrow_scan import Moment, StorePath, StoreScan, plan_scan, scan_options

_ANY_COLUMN: Final = "queue_id"
"""A column that is cheap to make, for a filter that needs none: it counts the rows."""
_ROW: Final = "_row"


def scan_polars(
    path: StorePath | Sequence[StorePath],
    topics: str | Sequence[str] | None = None,
    since: Moment = None,
    until: Moment = None,
    *,
    keys: str | Sequence[str] = (),
    config: StorePath | None = None,
    settings: Sequence[str] = (),
    threads: int = 0,
) -> pl.LazyFrame:
    """Returns what `penstock.scan` reads as a LazyFrame. Each collect reads the messages that exist at that moment."""
    options = scan_options(path, topics, keys, since, until, config, settings, threads)
    plan_scan(options)  # so that an error comes now, not in the middle of a query
    table = StoreScan(options)

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        if n_rows is None:
            for batch in table.reader(columns, None if predicate is None else _PolarsFilter(predicate)):
                yield _frame(batch)
            return
        wanted = table.schema.names if columns is None else columns
        tested = [] if predicate is None else [name for name in _columns_of(predicate) if name not in wanted]
        left = n_rows
        for batch in table.reader([*wanted, *tested]):
            frame = _frame(batch).head(left)
            left -= len(frame)
            yield frame if predicate is None else frame.filter(predicate).select(wanted)
            if left == 0:
                return

    return register_io_source(read, schema=_frame(table.schema.empty_table()).schema)


class _PolarsFilter:
    """An expression of Polars as a filter."""

    def __init__(self, predicate: pl.Expr) -> None:
        self._predicate = predicate
        self.names = _columns_of(predicate) or (_ANY_COLUMN,)

    def matching(self, rows: pa.RecordBatch) -> Longs:
        numbered = _frame(rows).with_row_index(_ROW)  # a constant is one value for all rows, as `filter` takes it
        return numbered.filter(self._predicate).get_column(_ROW).cast(pl.Int64).to_numpy()


def _columns_of(predicate: pl.Expr) -> tuple[str, ...]:
    return tuple(dict.fromkeys(predicate.meta.root_names()))  # Polars names a column as often as it is used


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame), "a table is a frame"
    return frame
