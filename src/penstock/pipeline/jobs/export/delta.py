"""Commits the files of a micro-batch to a Delta table, once. Needs deltalake; the table's log is all it writes.

The commit carries Delta's own mark for this, an application's transaction: the query as its id, the batch as its
version. Batches come in order, so one whose version is there already is in the table.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from penstock.errors import MissingPackage
from penstock.pipeline.jobs.export.data_files import Batch


def commit_delta(root: Path, batch: Batch) -> None:
    """Does nothing if the batch is in the table. Raises MissingPackage."""
    check_delta()
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction

    if not batch.good:
        return
    if DeltaTable.is_deltatable(str(root)):
        table = DeltaTable(str(root))
        schema = table.schema()
    else:
        columns = list(pq.read_schema(root / batch.good[0].path).remove_metadata())
        fields = [pa.field("topic", pa.string()), pa.field("date", pa.date32()), *columns]
        schema = Schema.from_arrow(pa.schema(fields))
        table = DeltaTable.create(str(root), schema, partition_by=["topic", "date"], name=root.name)
    app = f"penstock-export-{batch.query}"
    last = table.transaction_version(app)
    if last is not None and last >= batch.number:
        return
    now = int(time.time() * 1000)
    added = [
        AddAction(
            path=file.path,  # encoded by deltalake itself
            size=file.size,
            partition_values={"topic": file.topic, "date": file.date or None},
            modification_time=now,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in batch.good
    ]
    table.create_write_transaction(
        list(added),
        "append",
        schema,
        ["topic", "date"],
        commit_properties=CommitProperties(
            app_transactions=[Transaction(app, batch.number)], custom_metadata={"penstock.batch": str(batch.number)}
        ),
    )


def check_delta() -> None:
    """Raises MissingPackage without deltalake."""
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError:
        raise MissingPackage("Delta tables need the package deltalake: pip install 'penstock[delta]'") from None
