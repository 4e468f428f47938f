"""Finds messages by key through the index, and by id, body, property, tag and time by scanning.

The job skips nothing silently. An unreadable message becomes a row with the reason in `_corrupt`. `Coverage` says which
ranges were searched, and how much retention has deleted. Matching is pure and runs on workers, column by column, or in
this process (`search_here`). Needs pyarrow; on Spark, pyspark too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadSettings
from penstock.format.message_id import decode_message_id
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.offset_ranges import OffsetRange, ReadTask
from penstock.pipeline.options import EARLIEST, Options
from penstock.pipeline.scan_plan import choose_queues, end_offsets, open_source, plan, spans_between, start_offsets
from penstock.pipeline.session import map_in_workers
from penstock.pipeline.source_rows import ROW_SCHEMA, RowShape
from penstock.pipeline.store_source import LOG, StoreSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- the query -------------------------------------------------------------------------------------------------------

Mask = npt.NDArray[np.bool_]


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a search; a message must meet all of them.

    `since_ms` and `until_ms` (exclusive) limit the store time, in epoch milliseconds.
    """

    topic: str = ""
    keys: tuple[str, ...] = ()
    """The message has one of these, as a key or as the unique key."""
    msg_id: str = ""
    text: str = ""
    """A text that the body contains, in UTF-8."""
    pattern: str = ""
    """A regular expression that matches somewhere in the body."""
    json: tuple[tuple[str, str], ...] = ()
    """Pairs of path and value. The body is JSON, and has this value at the path. A value is JSON, or a plain text."""
    properties: tuple[tuple[str, str], ...] = ()
    tag: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """Raises BadSettings if there are no conditions, or invalid conditions."""
        if self == SearchQuery():
            raise BadSettings(
                "nothing to search for: give one of --key, --id, --text, --regex, --property, --tag, --since, --until"
            )
        if self.pattern:
            try:
                re.compile(self.pattern.encode())
            except re.error as error:
                raise BadSettings(f"--regex '{self.pattern}': it must be a regular expression ({error})") from None
        if self.msg_id:
            decode_message_id(self.msg_id)
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise BadSettings("the search ends before it begins: --until must be later than --since")

    def matches(self, batch: pa.RecordBatch) -> Mask:
        """Returns a mask of the rows that match. The batch must have the message columns, with bodies unpacked."""
        mask = np.ones(batch.num_rows, np.bool_)
        if self.topic:
            mask &= _mask(pc.equal(batch.column("topic"), self.topic))
        if self.tag:
            mask &= _mask(pc.equal(batch.column("tags"), self.tag))
        if self.msg_id:
            mask &= _mask(pc.equal(batch.column("msg_id"), self.msg_id.upper()))
        mask &= self._in_time(batch)
        for name, value in self.properties:
            mask &= _mask(pc.equal(pc.map_lookup(batch.column("properties"), name, "first"), value))
        bodies = batch.column("body")
        if self.text and mask.any():
            mask &= _mask(pc.match_substring(bodies, self.text.encode()))
        if (self.pattern or self.json) and mask.any():
            mask[np.flatnonzero(mask)] = [self._body_matches(bodies[row].as_py()) for row in np.flatnonzero(mask)]
        return mask

    def _in_time(self, batch: pa.RecordBatch) -> Mask:
        if self.since_ms is None and self.until_ms is None:
            return np.ones(batch.num_rows, np.bool_)
        micros = batch.column("store_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        low = -(2**62) if self.since_ms is None else self.since_ms * 1000
        high = 2**62 if self.until_ms is None else self.until_ms * 1000
        return np.asarray((micros >= low) & (micros < high))

    def _body_matches(self, body: bytes | None) -> bool:
        if body is None or (self.pattern and re.search(self.pattern.encode(), body) is None):
            return False
        if not self.json:
            return True
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return all(_equals(at_path(document, path), value) for path, value in self.json)


def _mask(column: pa.Array) -> Mask:
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))


class _Missing:
    """The value at a path that does not exist, as opposed to JSON's null."""


def at_path(document: Any, path: str) -> Any:
    """Returns the value at a path such as `a.b.0` or `$.a.b[0]` in a JSON document; `_Missing` if there is none."""
    for step in re.findall(r"[^.\[\]$]+", path):
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return _Missing()
    return document


def _equals(found: Any, value: str) -> bool:
    if isinstance(found, _Missing):
        return False
    if isinstance(found, str):
        return found == value
    try:
        query = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return False
    return type(found) is type(query) and found == query


# -- the job ---------------------------------------------------------------------------------------------------------

CORRUPT: Final = "_corrupt"
_COLUMNS: Final = ROW_SCHEMA.append(pa.field(CORRUPT, pa.string()))


class Coverage(msgspec.Struct, frozen=True):
    """The ranges that a search covers."""

    places: list[OffsetRange]
    """Ranges of queues, or of logs if the topic is empty."""
    gone: dict[str, int]
    """The number of deleted messages of each queue, or of deleted bytes of each log, by its name."""
    through_index: bool
    """Whether the search reads only the messages that the index names."""


class SearchResult(msgspec.Struct, frozen=True):
    """The matching rows, with the message columns and `_corrupt`; and the coverage of the search."""

    frame: DataFrame
    coverage: Coverage


class FoundRows(msgspec.Struct, frozen=True):
    """The same of a search in this process. The search goes on while `rows` is read, and ends with it."""

    rows: Iterator[dict[str, Any]]
    coverage: Coverage


class _TaskSearch:
    """A function that yields the matching and the unreadable rows of one task. Spark pickles it for its workers."""

    def __init__(self, shape: RowShape, query: SearchQuery, schema: pa.Schema) -> None:
        self._shape, self._query, self._schema = shape, query, schema

    def __call__(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        for batch in self._shape.batches(task, self._schema):
            unread = batch.column(CORRUPT).is_valid().to_numpy(zero_copy_only=False)
            hits = self._query.matches(batch) | unread
            if hits.any():
                yield batch.filter(pa.array(np.asarray(hits)))


def search(spark: SparkSession, query: SearchQuery, job_input: JobInput) -> SearchResult:
    """Searches stores or a cluster. Raises BadSettings, BadStore or Unreachable."""
    from penstock.pipeline.source import spark_schema
    from penstock.pipeline.spark_versions import arrow_schema

    options, tasks, coverage = _prepare(query, job_input)
    schema = spark_schema(_COLUMNS.names, options)
    search_task = _TaskSearch(RowShape.of(options, _COLUMNS.names), query, arrow_schema(schema))
    return SearchResult(map_in_workers(spark, tasks, search_task, schema), coverage)


def search_here(query: SearchQuery, job_input: JobInput) -> FoundRows:
    """Searches in this process, without Spark, task by task. Otherwise like `search`, with the rows in its order.

    Timestamps are in local time, without a zone, as in Spark's rows.
    """
    options, tasks, coverage = _prepare(query, job_input)
    search_task = _TaskSearch(RowShape.of(options, _COLUMNS.names), query, _COLUMNS)
    rows = (_row(each) for task in tasks for batch in search_task(task) for each in batch.to_pylist())
    return FoundRows(rows, coverage)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of Arrow as Spark's rows are: a map is a dictionary, and a time has no zone."""
    for name, value in found.items():
        if isinstance(value, datetime):
            found[name] = value.astimezone().replace(tzinfo=None)
    if found["properties"] is not None:
        found["properties"] = dict(found["properties"])
    return found


def _prepare(query: SearchQuery, job_input: JobInput) -> tuple[Options, list[ReadTask], Coverage]:
    query.check()
    job_input.check()
    options = _options(query, job_input)
    return options, *_plan(options, query)


def _options(query: SearchQuery, job_input: JobInput) -> Options:
    """Returns options that read the queues of the query's topic. Without a topic, they read the log of a store, or all
    queues of a cluster.
    """
    if query.topic:
        return job_input.options(topic=query.topic, keys=query.keys)
    if job_input.namesrv:
        return job_input.options(subscribe_pattern=re.compile(".*"), keys=query.keys)
    return job_input.options(order="log", keys=query.keys)


def _plan(options: Options, query: SearchQuery) -> tuple[list[ReadTask], Coverage]:
    source = open_source(options)
    try:
        queues = choose_queues(source, options)
        spans = spans_between(
            source,
            start_offsets(source, queues, options, otherwise=EARLIEST),
            end_offsets(source, queues, options),
            options,
        )
        gone = {f"{q.broker}/{q.topic}/{q.queue_id}": source.bounds(q)[0] for q in queues if source.bounds(q)[0] > 0}
        through_index = bool(query.keys and query.topic) and isinstance(source, StoreSource)
        if through_index and isinstance(source, StoreSource):
            tasks = source.key_tasks(query.keys, spans)
        else:
            tasks = plan(source, spans, options)
        return tasks, Coverage(spans, gone, through_index)
    finally:
        source.close()


def describe(coverage: Coverage) -> list[str]:
    """Returns sentences that say how much was searched, and how much could not be searched."""
    logs = [span for span in coverage.places if span.queue.topic == LOG]
    queues = [span for span in coverage.places if span.queue.topic != LOG]
    sentences = []
    if coverage.through_index:
        sentences.append(f"searched through the index of {len({span.queue.broker for span in queues})} stores")
    elif logs:
        sentences.append(
            f"searched {sum(span.count for span in logs)} bytes of {len(logs)} logs, with every topic in them"
        )
    else:
        sentences.append(f"searched {sum(span.count for span in queues)} messages of {len(queues)} queues")
    if coverage.gone:
        count = sum(coverage.gone.values())
        what, kind = ("bytes", "logs") if logs else ("messages", "queues")
        sentences.append(f"not searched: {count} {what} of {len(coverage.gone)} {kind}, deleted by retention")
    return sentences
