"""Stages the files of an export in this process, without Spark. Needs pyarrow.

They have the folders, columns and types of those that Spark stages, so that batch log, quarantine and tables are the
same. An export that keeps its position between runs needs Spark, whose checkpoint has it. Memory is bounded: a batch of
rows is written when it is read, and a limited number of files is open.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.decode import Decode, make_decoder
from penstock.pipeline.jobs.export.spec import NO_VALUE, Export, ExportedBatch, ExportFolder, clear, staged_files
from penstock.pipeline.jobs.job_input import CORRUPT

_MAX_OPEN: Final = 64
_DAY_MICROS: Final = 86_400_000_000
_NO_DAY: Final = np.iinfo(np.int64).min
_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]""")
"""The characters that Spark escapes in the names of folders."""
_REASON: Final = "reason"


def needs_spark(spec: Export) -> str:
    """Returns why an export cannot run in this process; empty if it can."""
    if not spec.once:
        return "because the next run goes on where this one ends, and Spark keeps that position; --once needs none"
    if spec.decode is not None and spec.decode.kind == "json" and spec.decode.schema:
        return "because Spark parses JSON into the columns of --schema"
    if spec.format == "json" and spec.decode is not None and spec.decode.kind in ("avro", "protobuf"):
        return "because Spark writes the values of avro and protobuf as JSON"
    return ""


def stage_here(
    spec: Export, batches: Iterator[pa.RecordBatch], number: int, query: str, folder: ExportFolder
) -> ExportedBatch:
    """Stages messages as the files of batch `number`. `batches` have the message columns and `_corrupt`."""
    staged = folder.staged / str(number)
    clear(staged)
    with_topic = spec.format == "iceberg"  # Iceberg files contain their partition columns
    mark = "_of_" if with_topic else ""
    rows = undecoded = unread = 0
    with _Files(staged / "good", spec.suffix) as good, _Files(staged / "bad", spec.suffix) as bad:
        for batch in batches:
            made, reasons = _decoded(batch, spec.decode)
            corrupt = batch.column(CORRUPT)
            is_bad = pc.or_(corrupt.is_valid(), reasons.is_valid())
            rows += batch.num_rows
            unread += len(corrupt) - corrupt.null_count
            undecoded += len(reasons) - reasons.null_count
            fine = made.drop_columns([CORRUPT]).filter(pc.invert(is_bad))
            for part, topic, day in _parts(fine):
                name = f"{mark}topic={_folder_name(topic)}/{mark}date={_folder_name(day)}"
                good.write(name, part if with_topic else part.drop_columns(["topic"]), nested=_is_nested(spec))
            kept = batch.drop_columns([CORRUPT]).append_column(_REASON, pc.coalesce(corrupt, reasons)).filter(is_bad)
            for part, topic, _ in _parts(kept, by_day=False):
                bad.write(f"topic={_folder_name(topic)}", part.drop_columns(["topic"]))
    files = (
        *staged_files(folder.root, staged / "good", number, spec.suffix, is_bad=False),
        *staged_files(folder.root, staged / "bad", number, spec.suffix, is_bad=True),
    )
    return ExportedBatch(
        number=number,
        query=query,
        files=files,
        rows=rows - unread - undecoded,
        undecoded=undecoded,
        unread=unread,
    )


def _is_nested(spec: Export) -> bool:
    """Whether the values are JSON inside of JSON lines."""
    return spec.decode is not None and spec.decode.kind == "json"


def _decoded(batch: pa.RecordBatch, decode: Decode | None) -> tuple[pa.RecordBatch, pa.Array]:
    """Returns the batch with a column `value` if bodies are decoded, and the reasons of bodies that are not."""
    if decode is None:
        return batch, pa.nulls(batch.num_rows, pa.string())
    values, reasons = make_decoder(decode).column(batch.column("body"), batch.column(CORRUPT).is_valid())
    return batch.append_column("value", values), reasons


def _parts(batch: pa.RecordBatch, *, by_day: bool = True) -> Iterator[tuple[pa.RecordBatch, str, str]]:
    """Yields the rows of each topic and day of the store time, in UTC, with topic and day; empty if unknown."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").fill_null("").dictionary_encode()
    days = np.full(batch.num_rows, _NO_DAY, np.int64)
    if by_day:
        micros = batch.column("store_timestamp").cast(pa.int64())
        days = np.where(micros.is_valid(), micros.fill_null(0).to_numpy(zero_copy_only=False) // _DAY_MICROS, _NO_DAY)
    pairs = np.stack([topics.indices.to_numpy(zero_copy_only=False).astype(np.int64), days])
    found, numbers = np.unique(pairs, axis=1, return_inverse=True)
    for number in range(found.shape[1]):
        rows = np.flatnonzero(numbers.reshape(-1) == number)
        topic, day = topics.dictionary[int(found[0, number])].as_py(), int(found[1, number])
        part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
        yield part, topic, "" if day == _NO_DAY else _date(day)


def _date(day: int) -> str:
    """Returns the date of a day since 1970. A day that has none, because it is too far away, is unknown."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()
    except OverflowError:
        return ""


def _folder_name(value: str) -> str:
    """Returns a value as a part of a folder's name, as Spark does. Slashes are escaped: no name leaves its folder."""
    return _ESCAPED.sub(lambda each: f"%{ord(each[0]):02X}", value) or NO_VALUE


class _Files:
    """The files of one folder, one per partition and a further one if too many are open. Not thread-safe."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder, self._suffix = folder, suffix
        self._open: OrderedDict[str, _JsonLines | pq.ParquetWriter] = OrderedDict()
        self._count = 0

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._open.values():
            writer.close()

    def write(self, partition: str, batch: pa.RecordBatch, *, nested: bool = False) -> None:
        """Appends the batch to the partition's file. `nested`: the column `value` is JSON."""
        writer = self._open.pop(partition, None)
        if writer is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            path = self._folder / partition / f"part-{self._count:08d}{self._suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._count += 1
            writer = pq.ParquetWriter(path, batch.schema) if self._suffix == ".parquet" else _JsonLines(path, nested)
        self._open[partition] = writer
        writer.write_batch(batch)


class _JsonLines:
    """A file of JSON lines, as Spark writes them: nulls are left out, bytes are base64, times are ISO 8601 in UTC."""

    def __init__(self, path: Path, nested: bool) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._nested = nested

    def write_batch(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            fields = {name: _as_text(value) for name, value in row.items() if value is not None}
            if row["properties"] is not None:
                fields["properties"] = dict(row["properties"])
            if self._nested and "value" in fields:
                fields["value"] = msgspec.json.decode(fields["value"])
            self._file.write(msgspec.json.encode(fields) + b"\n")

    def close(self) -> None:
        self._file.close()


def _as_text(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
