"""The log of a store that only appends, as a stream of byte ranges: what jobs that build derived data follow.

A micro-batch is a range of the log, from where the last one ended to where the store lets its log be dispatched, in
pieces for the workers: rows of `start`, `stop` and `exact`. Whoever works on a piece takes the records that begin in
it; `exact` says that one begins at `start`. The store's lock is not taken, and nothing is changed. Needs pyspark.

Options: `path`, the store; `start`, the physical offset where a new query begins; `pieces`, how many pieces a batch has
at most; `maxBytes`, how large it is at most. The pieces follow from the range and these options alone, so a batch that
is run again has the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from penstock.errors import BadStore
from penstock.pipeline.errors import said
from penstock.store.external.marks import read_mark
from penstock.store.external.scan import cut_range
from penstock.store.files import Files
from penstock.store.layout import Layout

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "penstock-log"
_LEAST_PIECE: Final = 4 << 20
_MAX_BYTES: Final = 256 << 20


class PublishedLog(DataSource):
    """Registered with a session by the job that uses it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        columns = ("start", LongType()), ("stop", LongType()), ("exact", BooleanType())
        return StructType([StructField(name, kind, nullable=False) for name, kind in columns])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PublishedLogReader(dict(self.options))


class Range(InputPartition):
    """One piece of a batch."""

    def __init__(self, start: int, stop: int, exact: bool) -> None:
        super().__init__(start)
        self.start, self.stop, self.exact = start, stop, exact


class PublishedLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are positions of the log."""

    def __init__(self, options: dict[str, str]) -> None:
        root = Path(options["path"])
        self._end = Layout(root, root / "commitlog").dispatch_end
        self._files = Files()
        self._start = int(options.get("start", 0))
        self._pieces = int(options.get("pieces", 2))
        self._max_bytes = int(options.get("maxbytes", _MAX_BYTES))
        self._goal: int | None = None

    def _published(self) -> int:
        mark = read_mark(self._files, self._end)
        if mark is None:
            raise BadStore("this store does not tell how far its log may be read; start it with dispatch=external",
                           path=self._end.parent.parent)  # fmt: skip
        return mark.position

    def initialOffset(self) -> dict[str, Any]:
        return {"position": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with said():
            self._goal = self._published()

    def reportLatestOffset(self) -> dict[str, Any]:
        with said():
            return {"position": self._published()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with said():
            begin = int(start["position"])
            end = self._published() if self._goal is None else self._goal
            return {"position": max(begin, min(end, begin + self._max_bytes))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = int(start["position"]), int(end["position"])
        if begin >= stop:
            return []
        cut = cut_range(begin, stop, self._pieces, _LEAST_PIECE)
        return [Range(first, last, first == self._start) for first, last in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if isinstance(partition, Range):
            columns = [pa.array([partition.start]), pa.array([partition.stop]), pa.array([partition.exact])]
            names = ("start", "stop", "exact")
            fields = [pa.field(name, each.type, nullable=False) for name, each in zip(names, columns, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
