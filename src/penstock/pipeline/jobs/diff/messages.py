"""The job: compares two sides message by message, on Spark or in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

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
_LEFT_OVER: Final = (
    "side string, edge boolean, topic string, queue_id int, queue_offset bigint, unique_key string, digest binary, "
    "what string"
)
_LEFT_OVER_ARROW: Final = pa.schema(
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
_ROWS_AT_ONCE: Final = 10_000


def diff(spark: SparkSession, sides: Sides, examples: int = EXAMPLES) -> Diff:
    """Compares on Spark. Raises BadSettings, BadStore, Unreachable."""
    with Comparison(sides) as comparison:
        same, differing = _first_look(spark, comparison)
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
    """One row for each difference; what lies beyond a common end is none. Raises BadSettings, BadStore, Unreachable."""
    with Comparison(sides) as comparison:
        _, differing = _first_look(spark, comparison)
        return _frame(spark, comparison.recheck_tasks(differing) if differing else [])


def diff_here(sides: Sides, examples: int = EXAMPLES) -> Diff:
    """Compares in this process: the same, without Spark. What differs is held in memory."""
    with Comparison(sides) as comparison:
        pieces = comparison.pieces()
        same, differing = _added_up(pieces, map(outcomes, pieces))
        again = comparison.recheck_tasks(differing) if differing else []
        rows = sorted((row for piece in again for row in leftovers(piece)), key=lambda row: row.topic)
        found = [each for _, group in groupby(rows, lambda row: row.topic) for each in pair_up(group)]
        counts = Counter((each.kind, QueueKey(each.topic, each.queue_id)) for each in found)
        shown = [each for each in found if each.kind != MOVED or sides.by != "key"]
        return _report(comparison, same, counts, sorted(shown, key=_as_shown)[:examples])


def _as_shown(each: Difference) -> tuple[Any, ...]:
    """In the order of the first side's places, and behind them what only the second one has."""
    a, b = each.a or MessagePosition(-1, -1), each.b or MessagePosition(-1, -1)
    return each.topic, each.a is None, a, b


# -- on Spark --------------------------------------------------------------------------------------------------------


def _first_look(spark: SparkSession, comparison: Comparison) -> tuple[Counter[QueueKey], list[QueueRange]]:
    """How many messages of each queue are the same at their place, and where the others are."""
    pieces = comparison.pieces()
    decode = msgspec.msgpack.Decoder(list[QueueComparison]).decode
    return _added_up(pieces, (decode(told) for told in gather(spark, pieces, _outcomes_of)))


def _outcomes_of(piece: ComparisonTask) -> bytes:
    return msgspec.msgpack.encode(outcomes(piece))


def _frame(spark: SparkSession, pieces: Sequence[ComparisonTask]) -> DataFrame:
    rows = map_in_workers(spark, pieces, _leftovers_of, _LEFT_OVER)
    return rows.groupBy("topic").applyInArrow(_pair_up_table, SCHEMA)


def _leftovers_of(piece: ComparisonTask) -> Iterator[pa.RecordBatch]:
    held: list[Leftover] = []
    for row in leftovers(piece):
        held.append(row)
        if len(held) == _ROWS_AT_ONCE:
            yield _batch(held)
            held = []
    if held:
        yield _batch(held)


def _batch(rows: Sequence[Leftover]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_LEFT_OVER_ARROW)


def _pair_up_table(table: pa.Table) -> pa.Table:
    found = pair_up(Leftover(**row) for row in table.to_pylist())
    columns = {
        "kind": pa.array([each.kind for each in found], pa.string()),
        "topic": pa.array([each.topic for each in found], pa.string()),
    }
    for side in ("a", "b"):
        spots = [getattr(each, side) for each in found]
        columns[f"{side}_queue_id"] = pa.array([spot and spot.queue_id for spot in spots], pa.int32())
        columns[f"{side}_queue_offset"] = pa.array([spot and spot.queue_offset for spot in spots], pa.int64())
    columns["unique_key"] = pa.array([each.unique_key for each in found], pa.string())
    columns["what"] = pa.array([each.what for each in found], pa.string())
    return pa.table(columns)


def _difference(row: Any) -> Difference:
    def spot(queue_id: int | None, queue_offset: int | None) -> MessagePosition | None:
        return None if queue_id is None or queue_offset is None else MessagePosition(queue_id, queue_offset)

    return Difference(
        kind=row.kind,
        topic=row.topic,
        a=spot(row.a_queue_id, row.a_queue_offset),
        b=spot(row.b_queue_id, row.b_queue_offset),
        unique_key=row.unique_key,
        what=row.what,
    )


# -- sums ------------------------------------------------------------------------------------------------------------


def _added_up(
    pieces: Sequence[ComparisonTask], found: Iterable[Iterable[QueueComparison]]
) -> tuple[Counter[QueueKey], list[QueueRange]]:
    same: Counter[QueueKey] = Counter()
    differing = []
    for piece, outcomes_there in zip(pieces, found, strict=True):
        for outcome in outcomes_there:
            stretch = piece.stretches[outcome.stretch]
            same[stretch.key] += outcome.same
            if outcome.differs:
                differing.append(stretch)
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
