"""`scan_polars`: the messages of stores as a lazy frame of Polars, through its I/O plug-in. Needs polars.

Polars pushes the columns, the filter and the row limit of a query down to the scan. The scan makes the columns of the
filter first, lets Polars evaluate the filter, and makes the other columns for the rows that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from penstock.format.kernels import Longs
from penstock.pipeline.store_scan import Moment, StorePath, StoreScan, plan_scan, scan_options


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
        left = n_rows
        for batch in table.reader(columns, None if predicate is None else _PolarsFilter(predicate)):
            frame = _frame(batch)
            if left is not None:
                frame = frame.head(left)
                left -= len(frame)
            yield frame
            if left == 0:
                return

    return register_io_source(read, schema=_frame(table.schema.empty_table()).schema)


class _PolarsFilter:
    """An expression of Polars as a filter."""

    def __init__(self, predicate: pl.Expr) -> None:
        self._predicate = predicate
        self.names = tuple(predicate.meta.root_names())

    def matching(self, rows: pa.RecordBatch) -> Longs:
        return _frame(rows).select(pl.arg_where(self._predicate)).to_series().cast(pl.Int64).to_numpy()


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame), "a table is a frame"
    return frame
