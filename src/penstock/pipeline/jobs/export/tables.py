"""Commits the files of a micro-batch to a Delta or an Iceberg table, exactly once. Needs deltalake or pyiceberg.

Delta: a commit has an application transaction, with the query as its id and the batch number as its version. Batches
come in order, so the table already has a batch if the version in the table is not lower. The commit writes only the
table's log, not the data files.

Iceberg: a table property has the last batch's number. The transaction that adds the files sets it. Unless the user
names a catalog, a SQLite catalog is created in the export's folder. Iceberg stores absolute paths, so the folder must
not be moved.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import BadSettings, MissingPackage
from penstock.pipeline.jobs.export.spec import Export, ExportedBatch, ExportFolder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


# -- Delta -----------------------------------------------------------------------------------------------------------


def commit_delta(root: Path, batch: ExportedBatch) -> None:
    """Commits a batch's files to the Delta table, unless the table has the batch. Idempotent. Raises MissingPackage."""
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


# -- Iceberg ---------------------------------------------------------------------------------------------------------


def commit_iceberg(spec: Export, batch: ExportedBatch) -> None:
    """Commits a batch's files to the Iceberg table, unless the table has the batch. Idempotent. Raises BadSettings."""
    if not batch.good:
        return
    root = ExportFolder(spec.to).root
    paths = [str(root / file.path) for file in batch.good]
    table = _table(spec, root, paths[0])
    mark = f"penstock.export.{batch.query}"
    if int(table.properties.get(mark, -1)) >= batch.number:
        return
    with table.transaction() as change:
        change.add_files(paths, {"penstock.batch": str(batch.number)}, check_duplicate_files=False)
        change.set_properties({mark: str(batch.number)})


def open_catalog(spec: Export) -> Catalog:
    """Opens the user's catalog, or the catalog in the export's folder. Raises BadSettings."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NotInstalledError, RESTError
    from sqlalchemy.exc import SQLAlchemyError

    if not spec.catalog:
        folder = ExportFolder(spec.to)
        return SqlCatalog("penstock", uri=f"sqlite:///{folder.own}/iceberg.db", warehouse=folder.root.as_uri())
    try:
        return load_catalog(spec.catalog)
    except (ValueError, KeyError, OSError, NotInstalledError, RESTError, SQLAlchemyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise BadSettings(f"--catalog {spec.catalog} cannot be used: {first}; check its settings") from None


def _table(spec: Export, root: Path, first: str) -> Table:
    import pyarrow.parquet as pq
    from pyiceberg.transforms import DayTransform, IdentityTransform

    catalog = open_catalog(spec)
    if not catalog.table_exists(spec.table):
        catalog.create_namespace_if_not_exists(spec.table.rpartition(".")[0])
        schema = pq.read_schema(first).remove_metadata()
        with (
            catalog.create_table_transaction(spec.table, schema, location=root.as_uri()) as change,
            change.update_spec() as partitions,
        ):
            partitions.add_field("topic", IdentityTransform(), "topic")
            partitions.add_field("store_timestamp", DayTransform(), "store_day")
    return catalog.load_table(spec.table)


def check_iceberg(spec: Export) -> None:
    """Raises MissingPackage without pyiceberg, BadSettings if the user's catalog cannot be opened."""
    try:
        import pyiceberg  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ModuleNotFoundError:
        raise MissingPackage("Iceberg tables need the package pyiceberg: pip install 'penstock[iceberg]'") from None
    if spec.catalog:
        open_catalog(spec)
