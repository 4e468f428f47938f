"""What differs between the supported versions of Spark, 4.0 and newer. Needs pyspark.

                                                          4.0    4.1    4.2 and newer
    Spark passes a stream's reader its start and a limit  no     no     yes
    availableNow runs as many micro-batches as it takes   no     no     yes
    a stream is written as Arrow batches                  no     yes    yes
    declarative pipelines as `lake` uses them             no     no     yes

Other modules of the pipeline are written for the newest version. They take from here what an older one lacks.

Spark 4.0 and 4.1 call a stream reader's `latestOffset` without the offset that the query has reached, and tell no
reader of availableNow, for which they run a single micro-batch. `StartTracker` keeps the offset instead. Both versions
name it when a query restarts: they plan an empty range at the last offset of the checkpoint before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from penstock.errors import MissingPackage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_READ_LIMITS: Final = VERSION >= (4, 2)
"""Whether Spark passes a stream's reader its start and a limit, and availableNow runs several micro-batches."""

if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """Spark before 4.2 has no such class, and does not tell a reader of availableNow."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 passes Arrow batches to each writer that is a DataSourceArrowWriter, also in a stream."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark requires of a source's batches: times are microseconds in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC") if HAS_READ_LIMITS else to_arrow_schema(schema)


def read_limit(max_rows: int | None) -> ReadLimit:
    """Returns Spark's limit of a micro-batch. Spark before 4.2 has none, and does not ask for it."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)


def requires(minimum: tuple[int, int], what: str, *, instead: str = "") -> None:
    """Raises MissingPackage if this Spark is older than `minimum`.

    `what` is the subject of the sentence. `instead` says what else the user can do.
    """
    if minimum > VERSION:
        needed = ".".join(map(str, minimum))
        raise MissingPackage(
            f"{what} needs Spark {needed} or newer, and this is {pyspark.__version__}: pip install 'pyspark>={needed}'"
            + (f", or {instead}" if instead else "")
        )


# -- stream readers --------------------------------------------------------------------------------------------------


class LimitedReader(Protocol):
    """A stream reader as Spark 4.2 calls it: with the start of the micro-batch and a limit."""

    def initialOffset(self) -> dict[str, Any]: ...
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[Any]: ...
    def commit(self, end: dict[str, Any]) -> None: ...


class StartTracker(DataSourceStreamReader):
    """A stream reader as Spark 4.0 and 4.1 call it, over a reader that wants to be passed its start.

    One of them lives on the driver for each run of a query; workers read with pickled copies.
    """

    def __init__(self, reader: LimitedReader) -> None:
        self._reader = reader
        self._reached: dict[str, Any] | None = None
        """The end of the last micro-batch that was planned or returned; None in a new query."""

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        start = self.initialOffset() if self._reached is None else self._reached
        self._reached = self._reader.latestOffset(start, None)  # type: ignore[arg-type]
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._reached = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)


def for_this_spark(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Returns a stream reader that this version of Spark can call."""
    return reader if HAS_READ_LIMITS else StartTracker(reader)
