"""Runs an export: the stream or the one batch, and what is told of it. Needs pyspark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.errors import heard
from penstock.pipeline.jobs.common import Notes, Where, read_once, read_stream, run_batches
from penstock.pipeline.jobs.export.batch import ExportBatch, json_columns
from penstock.pipeline.jobs.export.spec import BatchNote, Export, ExportFolder
from penstock.pipeline.jobs.export.tables import check_delta, check_iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has added to an export."""

    to: str
    rows: int
    undecoded: int
    """Kept aside: their body does not decode."""
    unread: int
    """Kept aside: they could not be read."""
    batches: int
    files: int
    by_topic: dict[str, int]
    all_rows: int
    """Of all runs so far."""


def export(spark: SparkSession, wish: Export, where: Where) -> Exported:
    """Exports what is there now and was not exported before. Raises BadSettings, BadStore, Unreachable, DataLost..."""
    wish.check()
    where.check()
    if wish.format == "delta":
        check_delta()
    elif wish.format == "iceberg":
        check_iceberg(wish)
    if wish.decode is not None and wish.decode.kind == "json" and wish.decode.schema:
        json_columns(wish.decode)
    folder = ExportFolder(wish.to)
    notes = Notes(folder.notes, BatchNote)
    with folder.owned(wish):
        before = {number for number, batch in notes.all() if batch.done}
        each = ExportBatch(wish)
        if wish.once:
            if before:
                raise BadSettings(
                    f"--to {folder.root}: there is an export already; "
                    "name a new folder, or leave --once out to go on with it"
                )
            with heard():
                each(read_once(spark, where, wish.topics, since_ms=wish.since_ms, until_ms=wish.until_ms), 0)
        else:
            stream = read_stream(
                spark,
                where,
                wish.topics,
                folder=folder.own,
                since_ms=wish.since_ms,
                allow_loss=wish.allow_loss,
            )
            run_batches(stream, each, folder.checkpoint)
        return _told(str(folder.root), dict(notes.all()), before)


def _told(to: str, notes: dict[int, BatchNote], before: set[int]) -> Exported:
    new = [batch for number, batch in notes.items() if number not in before]
    by_topic: Counter[str] = Counter()
    for batch in new:
        for file in batch.good:
            by_topic[file.topic] += file.rows
    return Exported(
        to=to,
        rows=sum(batch.rows for batch in new),
        undecoded=sum(batch.undecoded for batch in new),
        unread=sum(batch.unread for batch in new),
        batches=len(new),
        files=sum(len(batch.files) for batch in new),
        by_topic=dict(sorted(by_topic.items())),
        all_rows=sum(batch.rows for batch in notes.values()),
    )
