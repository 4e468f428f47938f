"""Work on pieces in Spark's Python workers: only what the work yields crosses into the JVM. Needs pyspark.

This is how jobs run that go over a store's bytes: a plan of pieces, a function for one piece, a small result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.pipeline.errors import heard, said

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Piece = TypeVar("Piece")

_CONNECT_TASKS: Final = 4


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


def gather(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], bytes]) -> list[bytes]:
    """What `work` makes of each piece, one task each, in the order of the pieces. `work` and the pieces are pickled.

    For small results. Where there is a driver in this process it goes without columns and a query plan, which takes a
    third of the time that Spark adds to a short job.
    """
    if not pieces:
        return []
    with heard():
        if is_connect(spark):
            rows = in_workers(spark, list(enumerate(pieces)), partial(_numbered, work), "number int, told binary")
            return [bytes(row.told) for row in sorted(rows.collect(), key=lambda row: int(row.number))]
        return spark.sparkContext.parallelize(pieces, len(pieces)).map(partial(_told, work)).collect()


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once, as far as it is known."""
    return _CONNECT_TASKS if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    """Whether the driver is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _told(work: Callable[[Piece], bytes], piece: Piece) -> bytes:
    with said():
        return work(piece)


def _numbered(work: Callable[[Piece], bytes], piece: tuple[int, Piece]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    number, what = piece
    columns = [pa.array([number], pa.int32()), pa.array([work(what)], pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, ["number", "told"])
