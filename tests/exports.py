"""What tests of exports and replays share: a store with known content, and what an export holds of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from store_home import StoreHome

from penstock.pipeline.jobs.export import Export
from penstock.pipeline.jobs.export.iceberg import open_catalog
from penstock.store import Message

DAY_MS = 86_400_000


def fill(home: StoreHome, start: int, count: int, *, close: bool = True) -> list[tuple[str, str, bytes]]:
    """Messages of two topics over some days; (topic, day, body) of each."""
    put = []
    with home.open() as store:
        for number in range(start, start + count):
            home.clock.now += DAY_MS // 7
            message = Message(
                ("orders", "%RETRY%g")[number % 2],
                b'{"id": %d, "name": "n%d"}' % (number, number),
                tags="red",
                keys=(f"k{number}",),
                properties={"color": f"c{number}"},
                queue_id=number % 4 // 2,
            )
            assert store.put(message).ok
            day = datetime.fromtimestamp(home.clock.now / 1000, UTC).date().isoformat()
            put.append((message.topic, day, bytes(message.body)))
    return put


def held(spark: SparkSession, wish: Export) -> list[tuple[str, str, bytes]]:
    """(topic, day, body) of each row of an export, as a reader of its format sees them."""
    if wish.format == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(wish.to).to_pyarrow_table().to_pylist()
    elif wish.format == "iceberg":
        rows = open_catalog(wish).load_table(wish.table).scan().to_arrow().to_pylist()
        rows = [{**row, "date": row["store_timestamp"].astimezone(UTC).date()} for row in rows]
    elif wish.format == "parquet":
        rows = ds.dataset(wish.to, format="parquet", partitioning="hive", exclude_invalid_files=False).to_table()
        rows = rows.to_pylist()
    else:
        schema = "topic string, date date, body binary"
        rows = [row.asDict() for row in spark.read.schema(schema).json(wish.to).collect()]
    return sorted((row["topic"], str(row["date"]), bytes(row["body"])) for row in rows)


def files_of(root: str | Path) -> list[str]:
    """The data files of an export."""
    root = Path(root)
    return sorted(str(path.relative_to(root)) for path in root.rglob("batch-*") if "_penstock" not in path.parts)


def bad_rows(spark: SparkSession, wish: Export) -> list[dict[str, Any]]:
    reader = spark.read.json if wish.format == "json" else spark.read.parquet
    return [row.asDict() for row in reader(f"{wish.to}/_bad").orderBy("queue_offset").collect()]
