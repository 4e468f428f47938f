"""Work on pieces in Spark's Python workers: only what the work yields crosses into the JVM. Needs pyspark.

This is how jobs run that go over a store's bytes: a plan of pieces, a function for one piece, a small result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.pipeline.errors import said

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Piece = TypeVar("Piece")


def in_workers(
    spark: SparkSession,
    pieces: Sequence[Piece],
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """The rows that `work` yields for each piece, one task each. `work` and the pieces are pickled.

    `schema` is Spark's; the batches of `work` must have the same columns, in order.
    """

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with said():
                    yield from work(pieces[number])

    count = max(len(pieces), 1)
    return spark.range(0, len(pieces), 1, count).mapInArrow(run, schema)
