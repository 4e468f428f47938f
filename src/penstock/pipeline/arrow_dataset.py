"""`StoreDataset`: a scan of stores as a pyarrow Dataset, so that engines push columns and filters down to it.

DuckDB and Polars take a Dataset as they take Parquet: they call `scanner` with the columns and the filter of a query.
Only what a scan can do is implemented: `schema`, `scanner` and what pyarrow derives from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.pipeline.arrow_scan import ExpressionFilter, Moment, StorePath, StoreScan, plan_scan, scan_options


class StoreScanner(ds.Scanner):  # type: ignore[misc]
    """One read of a scan: its columns, its filter."""

    def __init__(self, scan: StoreScan, columns: Sequence[str] | None, filter_: pc.Expression | None) -> None:
        self._scan = scan
        self._columns = columns
        self._filter = None if filter_ is None else ExpressionFilter(filter_)

    @property
    def dataset_schema(self) -> pa.Schema:
        return self._scan.schema

    @property
    def projected_schema(self) -> pa.Schema:
        names = self._scan.schema.names if self._columns is None else self._columns
        return pa.schema([self._scan.schema.field(name) for name in names])

    def to_reader(self) -> pa.RecordBatchReader:
        return self._scan.reader(self._columns, self._filter)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_reader())

    def to_table(self) -> pa.Table:
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        batches, rows = [], 0
        for batch in self.to_reader():
            batches.append(batch.slice(0, num_rows - rows))
            rows += batches[-1].num_rows
            if rows >= num_rows:
                break
        return pa.Table.from_batches(batches, self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._scan.reader(["queue_id"], self._filter))


class StoreDataset(ds.Dataset):  # type: ignore[misc]
    """A scan that engines read with columns and filters of their choice, as often as they like."""

    def __init__(self, scan: StoreScan) -> None:
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **unused: Any,
    ) -> StoreScanner:
        """Returns a read of some columns, or of all, and of the rows for which `filter` is true."""
        return StoreScanner(self._scan, columns, filter)

    def to_reader(self) -> pa.RecordBatchReader:
        return self.scanner().to_reader()

    def to_batches(self, **arguments: Any) -> Iterator[pa.RecordBatch]:
        return self.scanner(**arguments).to_batches()

    def to_table(self, **arguments: Any) -> pa.Table:
        return self.scanner(**arguments).to_table()

    def head(self, num_rows: int, **arguments: Any) -> pa.Table:
        return self.scanner(**arguments).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **unused: Any) -> int:  # noqa: A002
        return self.scanner(filter=filter).count_rows()


def dataset(
    path: StorePath | Sequence[StorePath],
    topics: str | Sequence[str] | None = None,
    since: Moment = None,
    until: Moment = None,
    *,
    keys: str | Sequence[str] = (),
    config: StorePath | None = None,
    settings: Sequence[str] = (),
    threads: int = 0,
) -> StoreDataset:
    """Returns what `penstock.scan` reads as a Dataset, which an engine reads with columns and filters of its own."""
    given = scan_options(path, topics, keys, since, until, config, settings, threads)
    plan_scan(given)  # so that an error comes now, not in the middle of a query
    return StoreDataset(StoreScan(given))
