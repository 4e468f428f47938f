"""The diff job: compares two sides message by message, on Spark or in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock.format.msgspec_warm_up import prepared
from penstock.pipeline.jobs.diff.compare import (
    ComparisonTask,
    Leftover,
    QueueComparison,
    QueueRange,
    leftovers,
    outcomes,
    pair_up,
)
from penstock.pipeline.jobs.diff.report import KINDS, MOVED, Diff, Difference, MessagePosition, QueueDiff, QueueKey
from penstock.pipeline.jobs.diff.sides import Comparison, Sides
from penstock.pipeline.session import gather, map_in_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES: Final = 20
SCHEMA: Final = (
    "kind string, topic string, a_queue_id int, a_queue_offset bigint, b_queue_id int, b_queue_offset bigint, "
    "unique_key string, what string"
)
_LEFTOVER: Final = (
    "side string, edge boolean, topic string, queue_id int, queue_offset bigint, unique_key string, digest binary, "
    "what string"
)
_LEFTOVER_ARROW: Final = pa.schema(
    [
        ("side", pa.string()),
        ("edge", pa.bool_()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("unique_key", pa.string()),
        ("digest", pa.binary()),
        ("what", pa.string()),
    ]
)
_BATCH_ROWS: Final = 10_000


def diff(spark: SparkSession, sides: Sides, examples: int = EXAMPLES) -> Diff:
    """Compares the sides on Spark. Reports up to `examples` differences. Raises BadSettings, BadStore, Unreachable."""
    with Comparison(sides) as comparison:
        same, differing = _compare_all(spark, comparison)
        if not differing:
            return _report(comparison, same, Counter(), [])
        frame = _frame(spark, comparison.recheck_tasks(differing)).persist()
        try:
            counted = frame.selectExpr("kind", "topic", "coalesce(a_queue_id, b_queue_id) AS queue_id")
            counts = Counter(
                {
                    (row.kind, QueueKey(row.topic, row.queue_id)): row["count"]
                    for row in counted.groupBy("kind", "topic", "queue_id").count().collect()
                }
            )
            shown = frame
            if sides.by == "key":
                shown = shown.where(f"kind != '{MOVED}'")
            first = shown.orderBy(
                "topic",
                shown["a_queue_id"].isNull(),
                "a_queue_id",
                "a_queue_offset",
                "b_queue_id",
                "b_queue_offset",
            ).limit(examples)
            return _report(comparison, same, counts, [_difference(row) for row in first.collect()])
        finally:
            frame.unpersist()


def diff_frame(spark: SparkSession, sides: Sides) -> DataFrame:
    """Returns a DataFrame with one row per difference. By place, compares only up to the common end.

    Raises BadSettings, BadStore or Unreachable.
    """
    with Comparison(sides) as comparison:
        _, differing = _compare_all(spark, comparison)
        return _frame(spark, comparison.recheck_tasks(differing) if differing else [])


def diff_here(sides: Sides, examples: int = EXAMPLES) -> Diff:
    """Compares the sides in this process, without Spark. Holds all differences in memory. Otherwise like `diff`."""
    with Comparison(sides) as comparison:
        tasks = comparison.tasks()
        same, differing = _sum_outcomes(tasks, map(outcomes, tasks))
        rechecks = comparison.recheck_tasks(differing) if differing else []
        rows = sorted((row for task in rechecks for row in leftovers(task)), key=lambda row: row.topic)
        found = [each for _, group in groupby(rows, lambda row: row.topic) for each in pair_up(group)]
        counts = Counter((each.kind, QueueKey(each.topic, each.queue_id)) for each in found)
        shown = [each for each in found if each.kind != MOVED or sides.by != "key"]
        return _report(comparison, same, counts, sorted(shown, key=_display_order)[:examples])


def _display_order(each: Difference) -> tuple[Any, ...]:
    """Returns a sort key: topic, then position on side a. Messages that only side b has come last."""
    a, b = each.a or MessagePosition(-1, -1), each.b or MessagePosition(-1, -1)
    return each.topic, each.a is None, a, b


# -- on Spark --------------------------------------------------------------------------------------------------------


def _compare_all(spark: SparkSession, comparison: Comparison) -> tuple[Counter[QueueKey], list[QueueRange]]:
    """Returns the number of equal messages of each queue, and the ranges that differ."""
    tasks = comparison.tasks()
    decode = msgspec.msgpack.Decoder(prepared(list[QueueComparison])).decode
    return _sum_outcomes(tasks, (decode(answer) for answer in gather(spark, tasks, _outcomes_of)))


def _outcomes_of(task: ComparisonTask) -> bytes:
    return msgspec.msgpack.encode(outcomes(task))


def _frame(spark: SparkSession, tasks: Sequence[ComparisonTask]) -> DataFrame:
    rows = map_in_workers(spark, tasks, _leftovers_of, _LEFTOVER)
    return rows.groupBy("topic").applyInArrow(_pair_up_table, SCHEMA)


def _leftovers_of(task: ComparisonTask) -> Iterator[pa.RecordBatch]:
    pending: list[Leftover] = []
    for row in leftovers(task):
        pending.append(row)
        if len(pending) == _BATCH_ROWS:
            yield _batch(pending)
            pending = []
    if pending:
        yield _batch(pending)


def _batch(rows: Sequence[Leftover]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_LEFTOVER_ARROW)


def _pair_up_table(table: pa.Table) -> pa.Table:
    found = pair_up(Leftover(**row) for row in table.to_pylist())
    columns = {
        "kind": pa.array([each.kind for each in found], pa.string()),
        "topic": pa.array([each.topic for each in found], pa.string()),
    }
    for side in ("a", "b"):
        positions = [getattr(each, side) for each in found]
        columns[f"{side}_queue_id"] = pa.array([each and each.queue_id for each in positions], pa.int32())
        columns[f"{side}_queue_offset"] = pa.array([each and each.queue_offset for each in positions], pa.int64())
    columns["unique_key"] = pa.array([each.unique_key for each in found], pa.string())
    columns["what"] = pa.array([each.what for each in found], pa.string())
    return pa.table(columns)


def _difference(row: Any) -> Difference:
    def position(queue_id: int | None, queue_offset: int | None) -> MessagePosition | None:
        return None if queue_id is None or queue_offset is None else MessagePosition(queue_id, queue_offset)

    return Difference(
        kind=row.kind,
        topic=row.topic,
        a=position(row.a_queue_id, row.a_queue_offset),
        b=position(row.b_queue_id, row.b_queue_offset),
        unique_key=row.unique_key,
        what=row.what,
    )


# -- sums ------------------------------------------------------------------------------------------------------------


def _sum_outcomes(
    tasks: Sequence[ComparisonTask], found: Iterable[Iterable[QueueComparison]]
) -> tuple[Counter[QueueKey], list[QueueRange]]:
    same: Counter[QueueKey] = Counter()
    differing = []
    for task, outcomes_there in zip(tasks, found, strict=True):
        for outcome in outcomes_there:
            span = task.ranges[outcome.range_index]
            same[span.key] += outcome.same
            if outcome.differs:
                differing.append(span)
    return same, differing


def _report(
    comparison: Comparison,
    same: Counter[QueueKey],
    counts: Counter[tuple[str, QueueKey]],
    examples: list[Difference],
) -> Diff:
    queues = [
        QueueDiff(
            topic=key.topic,
            queue_id=key.queue_id,
            a=a,
            b=b,
            same=same[key],
            counts={kind: counts[kind, key] for kind in KINDS if counts[kind, key]},
        )
        for key, (a, b) in comparison.bounds.items()
    ]
    sides = comparison.sides
    return Diff(
        a=comparison.a.name,
        b=comparison.b.name,
        by=sides.by,
        up_to_common_end=sides.up_to_common_end,
        queues=queues,
        examples=examples,
    )
