"""The ceiling of the suite `spark`: a Spark source that only hands out one ready-made Arrow batch again and again.

`.schema(...)` names its columns; options are `file` (an Arrow file with the batch), `rows` and `tasks`. Its time is
what Spark needs to get such rows from Python at all, so no source of the same rows can be faster.

The module is sent to Spark's workers by value, because they may not be able to import `bench`. It is a file of its own
because it needs PySpark at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class ReadySource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "bench-ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options["file"], int(self.options["rows"]), int(self.options["tasks"]))


class ReadyReader(DataSourceReader):
    """The rows, in equal parts."""

    def __init__(self, file: str, rows: int, tasks: int) -> None:
        self._file, self._rows, self._tasks = file, rows, tasks

    def partitions(self) -> Sequence[InputPartition]:
        borders = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [InputPartition(stop - start) for start, stop in pairwise(borders)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._file) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        left: int = partition.value
        while left > 0:
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows


def save_batch(batch: pa.RecordBatch, file: Path) -> None:
    """Writes the file that the source reads."""
    with pa.OSFile(str(file), "wb") as target, pa.ipc.new_file(target, batch.schema) as writer:
        writer.write_batch(batch)
