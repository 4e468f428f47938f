"""What becomes of one micro-batch of a replay: chosen, mapped, stored or sent, and noted. Needs pyspark.

May be pickled: where it runs in another process, nothing but the notes comes back. A batch that has a note was
stored or sent; one without may have been, if a run was killed just then. A store knows by the write's name; to a
cluster it is sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.pipeline.cluster_sink import ClusterTarget
from penstock.pipeline.errors import said
from penstock.pipeline.jobs.notes import Notes
from penstock.pipeline.jobs.replay.pace import paced
from penstock.pipeline.jobs.replay.rows import WHY, Mapping, is_chosen, made_messages
from penstock.pipeline.jobs.replay.target import Target
from penstock.pipeline.jobs.streaming import CORRUPT, counted
from penstock.pipeline.sink_rows import WrittenRows
from penstock.store.sink.marks import Identity, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SHOWN: Final = 5
_PREVIEW: Final = 80


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows of a batch."""

    read: int
    unread: int
    chosen: int
    aside: int
    by_topic: dict[str, int] = {}
    """Only of a dry run."""
    first: tuple[dict[str, str], ...] = ()

    @property
    def sent(self) -> int:
        return self.chosen - self.aside


class ReplayBatch:
    """Replays one micro-batch after the other."""

    def __init__(
        self,
        name: str,
        own: Path,
        target: Target,
        mapping: Mapping,
        *,
        to_origin: bool = False,
        rate: int | None = None,
        dry_run: bool = False,
        run: str = "",
    ) -> None:
        """`run` tells replays of one name apart that began anew."""
        self._name, self._own, self._target, self._mapping = name, own, target, mapping
        self._to_origin, self._rate, self._dry_run, self._run = to_origin, rate, dry_run, run

    def __call__(self, frame: DataFrame, number: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        notes = Notes(self._own / "batches", Note)
        if notes.find(number) is not None:
            return
        seen, made = Observation(f"replay {number}"), Observation(f"messages {number}")
        unread = f.count(CORRUPT) if CORRUPT in frame.columns else f.count(f.lit(None))
        watched = frame.observe(seen, f.count(f.lit(1)).alias("read"), unread.alias("unread"))
        rows = self.messages(watched).observe(made, f.count(f.lit(1)).alias("chosen"), f.count(WHY).alias("aside"))
        told: dict[str, Any] = {}
        good = rows.where(f"{WHY} is null").drop(WHY)
        if self._dry_run:
            told = _looked_at(good)
        elif self._target.store:
            self._store(good, number)
        else:
            self._send(good, number)
        counts: dict[str, Any] = {**counted(seen, "read", "unread"), **counted(made, "chosen", "aside")}
        if counts["read"]:
            if counts["aside"] and not self._dry_run:
                bad = rows.where(f"{WHY} is not null").withColumnRenamed(WHY, "reason")
                bad.write.mode("overwrite").parquet(str(self._own / "aside" / f"{number:08d}"))
            notes.write(number, Note(**counts, **told))

    def messages(self, frame: DataFrame) -> DataFrame:
        """What would be sent of some rows. Raises what Spark has against the expressions, BadSettings."""
        chosen = frame.where(is_chosen(frame, self._mapping))
        return made_messages(chosen, self._mapping, self._name, to_origin=self._to_origin)

    def _store(self, rows: DataFrame, number: int) -> None:
        options = self._target.options()
        writer = rows.write.format("rocketmq").mode("append").option("writeId", self._write(number))
        if options.config:
            writer = writer.option("config", options.config)
        writer.save(options.path[0])

    def _write(self, number: int) -> str:
        return f"replay {self._name} {self._run} {number}"

    def _send(self, rows: DataFrame, number: int) -> None:
        target = ClusterTarget.of(self._target.options())
        written = WrittenRows.of(rows.schema, "")
        identity, rate = Identity(Kind.WRITE, self._write(number)), self._rate

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None, "rows are sent by tasks"
            with said():
                sent = target.send(
                    identity, written, task.partitionId(), batches if rate is None else paced(batches, rate)
                )
            yield pa.RecordBatch.from_pydict({"sent": pa.array([sent], pa.int64())})

        (rows if rate is None else rows.coalesce(1)).mapInArrow(send, "sent bigint").collect()


def _looked_at(rows: DataFrame) -> dict[str, Any]:
    """How many messages each topic would get, and the first of them."""
    first = [
        {name: _text(value) for name, value in row.asDict().items() if value is not None}
        for row in rows.limit(_SHOWN).collect()
    ]
    by_topic = {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()}
    return {"by_topic": by_topic, "first": tuple(first)}


def _text(value: Any) -> str:
    text = bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}…"
