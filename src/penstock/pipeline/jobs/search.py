"""Finding messages: by key through the index, and by id, body, property, tag and time by looking at all of them.

Nothing is left out silently: what could not be read comes back as a row that says so in `_corrupt`, and `Coverage` has
what was searched and what is not there any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.pipeline.jobs.matching import Wanted
from penstock.pipeline.jobs.where import Where
from penstock.pipeline.one_store import LOG
from penstock.pipeline.options import EARLIEST, Options
from penstock.pipeline.places import Task
from penstock.pipeline.planning import open_place, plan
from penstock.pipeline.ranges import Span
from penstock.pipeline.resolve import choose_queues, ends, spans_between, starts
from penstock.pipeline.rows import Shape
from penstock.pipeline.schema import known_columns, spark_schema
from penstock.pipeline.store_place import StorePlace
from penstock.pipeline.workers import in_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORRUPT: Final = "_corrupt"


class Coverage(msgspec.Struct, frozen=True):
    """What a search goes over."""

    places: list[Span]
    """Ranges of queues, or of logs (their topic is empty)."""
    gone: dict[str, int]
    """How many messages of a queue, or bytes of a log, are not there any more: nobody can search them."""
    through_index: bool
    """Whether only what the index proposes is looked at."""


class Found(msgspec.Struct, frozen=True):
    """What a search gives: rows with the columns of messages and `_corrupt`."""

    frame: DataFrame
    coverage: Coverage


class _Look:
    """What a worker does with one task. Pickled."""

    def __init__(self, shape: Shape, wanted: Wanted, schema: pa.Schema) -> None:
        self._shape, self._wanted, self._schema = shape, wanted, schema

    def __call__(self, task: Task) -> Iterator[pa.RecordBatch]:
        for batch in self._shape.batches(task, self._schema):
            unread = batch.column(CORRUPT).is_valid().to_numpy(zero_copy_only=False)
            hits = self._wanted.matches(batch) | unread
            if hits.any():
                yield batch.filter(pa.array(np.asarray(hits)))


def search(spark: SparkSession, wanted: Wanted, where: Where) -> Found:
    """Searches stores, or a cluster. Raises BadSettings, BadStore, Unreachable."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted.check()
    where.check()
    options = _options(wanted, where)
    tasks, coverage = _plan(options, wanted)
    names = list(known_columns(options))
    schema = spark_schema(names, options)
    shape = Shape.of(options, names)
    look = _Look(shape, wanted, to_arrow_schema(schema, timezone="UTC"))
    return Found(in_workers(spark, tasks, look, schema), coverage)


def _options(wanted: Wanted, where: Where) -> Options:
    """With a topic, its queues; without one, the log, which holds all of them. A cluster is read by queue."""
    if wanted.topic:
        return where.options(topic=wanted.topic, keys=wanted.keys)
    if where.namesrv:
        return where.options(subscribe_pattern=re.compile(".*"), keys=wanted.keys)
    return where.options(order="log", keys=wanted.keys)


def _plan(options: Options, wanted: Wanted) -> tuple[list[Task], Coverage]:
    place = open_place(options)
    try:
        queues = choose_queues(place, options)
        spans = spans_between(
            place, starts(place, queues, options, otherwise=EARLIEST), ends(place, queues, options), options
        )
        gone = {f"{q.broker}/{q.topic}/{q.queue_id}": place.bounds(q)[0] for q in queues if place.bounds(q)[0] > 0}
        through_index = bool(wanted.keys and wanted.topic) and isinstance(place, StorePlace)
        if through_index and isinstance(place, StorePlace):
            tasks = place.key_tasks(wanted.keys, spans)
        else:
            tasks = plan(place, spans, options)
        return tasks, Coverage(spans, gone, through_index)
    finally:
        place.close()


def describe(coverage: Coverage) -> list[str]:
    """What was searched and what was not, one sentence each."""
    logs = [span for span in coverage.places if span.queue.topic == LOG]
    queues = [span for span in coverage.places if span.queue.topic != LOG]
    said = []
    if coverage.through_index:
        said.append(f"searched through the index of {len({span.queue.broker for span in queues})} stores")
    elif logs:
        said.append(f"searched {sum(span.count for span in logs)} bytes of {len(logs)} logs, with every topic in them")
    else:
        said.append(f"searched {sum(span.count for span in queues)} messages of {len(queues)} queues")
    if coverage.gone:
        count = sum(coverage.gone.values())
        what = "bytes" if logs else "messages"
        said.append(f"not searched: {count} {what} of {len(coverage.gone)} that retention has deleted")
    return said
