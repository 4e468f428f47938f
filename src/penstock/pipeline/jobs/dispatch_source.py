"""The data source `penstock-derived-log`: the published log of a store, as what follows from it. Needs pyspark.

The stream of the dispatch job. A micro-batch is a range of the published log (`pipeline.stream_source.PublishedLog`),
split into pieces, and a task scans each of them with the kernels. Its rows have the columns

    stop   the physical offset at which the task's range ends
    piece  a packed `DerivedPiece`; empty in the first row of each task

so that a range in which no record begins has a row, too. What is built already is not read again: the driver builds by
itself until the first micro-batch arrives. The options are those of `PublishedLog`, and

    log          the log's folder
    fileSize     the size of the log's files
    delayLevels  the delays in milliseconds, separated by commas
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.spark_versions import for_this_spark
from penstock.pipeline.stream_source import LogSlice, PublishedLog, PublishedLogReader
from penstock.store.files.layout import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

FORMAT: Final = "penstock-derived-log"
_MIN_PIECE: Final = 4 << 20
_BATCH_BYTES: Final = 4 << 20


class DerivedLog(PublishedLog):
    """The data source. The dispatch job registers it with its session."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        columns = ("stop", LongType()), ("piece", BinaryType())
        return StructType([StructField(name, kind, nullable=False) for name, kind in columns])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return for_this_spark(DerivedLogReader(dict(self.options)))


class DerivedLogReader(PublishedLogReader):
    """The stream reader of the derived log. Its offsets are physical offsets."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        root = Path(options["path"])
        self._done = Layout(root, root / "commitlog").dispatch_done
        self._folder = Path(options["log"])
        self._file_size = int(options["filesize"])
        self._delay_levels = tuple(map(int, filter(None, options["delaylevels"].split(","))))

    def _built(self) -> int:
        """Returns the position up to which the driver has built queues and index."""
        from penstock.store.external_dispatch.files_shared_with_job import read_mark

        mark = read_mark(self._files, self._done)
        return 0 if mark is None else mark.position

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with as_user_errors():
            begin = int(start["position"])
            end = self._published() if self._goal is None else self._goal
            return {"position": max(begin, min(end, max(begin, self._built()) + self._max_bytes))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from penstock.store.queue_units_and_keys import cut_range

        with as_user_errors():
            begin, stop, built = int(start["position"]), int(end["position"]), self._built()
        if begin >= stop:
            return []
        if built < stop:
            begin = max(begin, built)
        else:  # the driver was faster; a short range makes Spark start its workers all the same
            begin = max(begin, stop - _MIN_PIECE)
        return [
            LogSlice(first, last, first in (built, self._start))
            for first, last in cut_range(begin, stop, self._pieces, _MIN_PIECE)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.store.external_dispatch.packed_units_and_keys import pack
        from penstock.store.queue_units_and_keys import LogRange, scan

        if not isinstance(partition, LogSlice):
            return
        start, stop, exact = partition.start, partition.stop, partition.exact
        packed, size = [b""], 0
        with as_user_errors():
            for piece in scan(LogRange(self._folder, self._file_size, start, stop, exact, self._delay_levels)):
                packed.append(pack(piece))
                size += len(packed[-1])
                if size >= _BATCH_BYTES:
                    yield _rows(stop, packed)
                    packed, size = [], 0
        if packed:
            yield _rows(stop, packed)


def _rows(stop: int, packed: list[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array([stop] * len(packed), pa.int64()), pa.array(packed, pa.binary())]
    fields = [pa.field(name, each.type, nullable=False) for name, each in zip(("stop", "piece"), columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
