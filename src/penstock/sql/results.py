"""Writes the rows of a query as CSV, JSON lines or Parquet, batch by batch, so memory does not grow with the result.

Times are ISO 8601 in UTC, bytes are base64, lists and maps are JSON, and nulls are empty in CSV and `null` in JSON.
"""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

FORMATS: Final = ("table", "csv", "jsonl", "parquet")
SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format that the name of a file implies."""


def with_distinct_names(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Returns the rows with a number after each name that an earlier column has, as in `body` and `body_1`.

    A join may give two columns one name, and a row of JSON lines or of a table has each name once.
    """
    names: list[str] = []
    taken = set(rows.schema.names)
    for name in rows.schema.names:
        unique, number = name, 0
        while unique in names or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, names, strict=True)])
    renamed = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows)
    return rows if len(taken) == len(names) else pa.RecordBatchReader.from_batches(schema, renamed)


def lines(rows: pa.RecordBatchReader, form: str) -> Iterator[str]:
    """Yields the rows as text, in pieces of whole lines; `form` is csv, which begins with a header, or jsonl."""
    names = rows.schema.names
    if form == "csv":
        yield _csv([names])
    for batch in rows:
        values = list(zip(*(_values(column) for column in batch.columns), strict=True))
        if form == "csv":
            yield _csv([[_cell(value) for value in row] for row in values])
        else:
            yield "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in values)


def write_parquet(rows: pa.RecordBatchReader, path: Path) -> int:
    """Writes the rows to a Parquet file. Returns their number."""
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _csv(rows: list[list[Any]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _values(column: pa.Array) -> list[Any]:
    """Returns the values of a column as JSON has them."""
    if isinstance(column.type, pa.MapType):
        return [
            None if value is None else {str(key): simple(each) for key, each in value} for value in column.to_pylist()
        ]
    return [simple(value) for value in column.to_pylist()]


def simple(value: Any) -> Any:
    """Returns a value as JSON has it: text for times, decimals and bytes."""
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="milliseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(name): simple(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [simple(each) for each in value]
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
