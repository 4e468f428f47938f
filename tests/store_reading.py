"""What tests of reading stores into rows share: a read as Spark does it, without Spark.

Tasks are pickled between planning and reading, as on their way to a worker.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from arrow_batches import expected_row, rows_of
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.format.record import Record
from penstock.pipeline.options import Options
from penstock.pipeline.places import Task
from penstock.pipeline.planning import plan_batch
from penstock.pipeline.rows import Shape
from penstock.pipeline.schema import known_columns, schema_of
from penstock.store import MessageStore

Rows = list[dict[str, Any]]
CORRUPT = "_corrupt"


def options_for(path: Path | str, **given: object) -> Options:
    """Options as a user gives them: numbers and flags become text."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    options = Options.read({"path": str(path), **texts})
    options.check_reading()
    return options


def sent(tasks: Iterable[Task]) -> list[Task]:
    """The tasks as they arrive at workers."""
    return [pickle.loads(pickle.dumps(task)) for task in tasks]


def read_table(options: Options, tasks: Iterable[Task], names: Sequence[str] = ()) -> pa.Table:
    """What tasks return, one after the other. `names` are the columns, as `.schema(...)` says them."""
    schema = schema_of(options)
    if names:
        known = known_columns(options)
        schema = StructType([StructField(name, known[name]) for name in names])
    shape, arrow = pickle.loads(pickle.dumps(Shape.of(options, schema.names))), to_arrow_schema(schema, timezone="UTC")
    batches: list[pa.RecordBatch] = [batch for task in sent(tasks) for batch in shape.batches(task, arrow)]
    assert all(batch.num_rows and batch.schema == arrow for batch in batches)
    return pa.Table.from_batches(batches, arrow)


def read_tasks(options: Options, tasks: Iterable[Task], names: Sequence[str] = ()) -> Rows:
    """The same as rows that are valid in every respect."""
    return [row for batch in read_table(options, tasks, names).to_batches() for row in rows_of(batch)]


def read(path: Path | str, names: Sequence[str] = (), **given: object) -> Rows:
    """A batch read from beginning to end."""
    options = options_for(path, **given)
    return read_tasks(options, plan_batch(options), names)


def row_of(record: Record, broker: str = "store") -> dict[str, Any]:
    """The row that a message must be; its body as it is stored."""
    row = expected_row(record)
    return {"topic": row.pop("topic"), "broker": broker, **row}


def as_rows(records: Iterable[Record], broker: str = "store") -> Rows:
    return [row_of(record, broker) for record in records]


def every_record(store: MessageStore) -> list[Record]:
    """Every record of a log, one by one, in log order."""
    found: list[Record] = []
    offset = max(store.log.min_offset, 0)
    while offset < store.log.confirmed_offset:
        page = store.log_arrow(offset, columns=["physical_offset"])
        for each in page.batch.column("physical_offset").to_pylist():
            record = store.look_up(each)
            assert record is not None
            found.append(record)
        offset = page.next_offset
    return found
