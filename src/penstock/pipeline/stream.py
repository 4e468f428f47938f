"""`spark.readStream.format("rocketmq")`: the stream reader. Needs pyspark.

Spark keeps where the query is in its own checkpoint: a start option counts for a new query only. Only the ends of
micro-batches are logged there, so the first one is empty: it logs the start, which a crash can then not move. A batch
that is run again reads the same rows, because it is planned from its offsets and the options alone.

One instance lives on the driver as long as the query runs, and keeps the place open; copies read on workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.pipeline.errors import said
from penstock.pipeline.options import LATEST, Options
from penstock.pipeline.places import Place
from penstock.pipeline.planning import open_place, plan
from penstock.pipeline.resolve import check_range, choose_queues, spans_between, starts
from penstock.pipeline.rows import Shape
from penstock.pipeline.schema import check_schema
from penstock.pipeline.source import Part, read_part
from penstock.pipeline.store_place import StorePlace
from penstock.pipeline.stream_offsets import Offsets, backlog, from_json, to_json, within_bytes, within_count

log = logging.getLogger("penstock.pipeline")

_MOST_BYTES: Final = 1 << 30


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues, or logs, micro-batch by micro-batch. What is wrong is raised by the methods, never here:

    Spark would hide what a constructor raises.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._shape = Shape.of(options, schema.names)
        self._place: Place | None = None
        self._initial: dict[str, Any] | None = None
        self._anchored = False
        self._goal: Offsets | None = None
        self._last_batch = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None}

    def _open(self) -> Place:
        if self._place is None:
            self._options.check_reading()
            self._options.check_streaming()
            check_schema(self._schema, self._options)
            self._place = open_place(self._options, following=True)
        return self._place

    # -- where the query is ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with said():
            if self._initial is None:
                place = self._open()
                queues = choose_queues(place, self._options)
                self._initial = to_json(starts(place, queues, self._options, otherwise=LATEST))
                self._say_limit()
                if isinstance(place, StorePlace):
                    place.looked_up()
            return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        with said():
            self._goal = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:
        with said():
            return to_json(self._ends(refresh=False))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with said():
            if self._initial is not None and not self._anchored:
                self._anchored = True
                return start
            first = from_json(start)
            last = self._ends() if self._goal is None else dict(self._goal)
            first |= {queue: self._open().bounds(queue)[0] for queue in last if queue not in first}
            if behind := self._behind(first, last):
                return to_json({**first, **behind})
            last = {queue: max(stop, first[queue]) for queue, stop in last.items()}
            waiting = backlog(first, last)
            if not waiting or self._waits(waiting):
                return start
            last = self._limited(first, last)
            self._last_batch = time.monotonic()
            return to_json({**first, **last})

    def _ends(self, *, refresh: bool = True) -> Offsets:
        place = self._open()
        if refresh:
            place.refresh()
        return {queue: place.bounds(queue)[1] for queue in choose_queues(place, self._options, must_exist=False)}

    def _behind(self, first: Offsets, last: Offsets) -> Offsets:
        """Queues that end before what was read of them, and where they begin: they were cut off, or made again.

        Raises DataLost unless that is allowed. Then an empty batch logs where it goes on.
        """
        place = self._open()
        found = {queue: place.bounds(queue) for queue in last}
        behind = {queue: low for queue, (low, high) in found.items() if high < first[queue]}
        for queue in behind:
            check_range(place, queue, first[queue], first[queue], self._options)
        return behind

    def _waits(self, waiting: int) -> bool:
        """Whether more messages are to come before a batch begins."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._goal is not None or waiting >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay

    def _limited(self, first: Offsets, last: Offsets) -> Offsets:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            last = within_count(first, last, options.max_offsets_per_trigger)
        most = options.max_bytes_per_trigger
        if most is None and options.max_offsets_per_trigger is None:
            most = _MOST_BYTES
        return last if most is None else within_bytes(first, last, most, self._open().size)

    def _say_limit(self) -> None:
        if self._options.max_offsets_per_trigger is None and self._options.max_bytes_per_trigger is None:
            log.warning("rocketmq: without maxOffsetsPerTrigger or maxBytesPerTrigger a micro-batch is 1 GiB at most")

    # -- what a batch reads ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with said():
            place = self._open()
            first, last = from_json(start), from_json(end)
            if first == last:
                return []
            first |= {queue: place.bounds(queue)[0] for queue in last if queue not in first}
            spans = spans_between(place, first, last, self._options)
            return [Part(task) for task in plan(place, spans, self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._shape, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Mirrors progress to a consumer group, if one is named. It is a courtesy: a failure is only logged."""
        if not self._options.progress_group:
            return
        place = self._open()
        if isinstance(place, StorePlace):
            return
        try:
            place.commit_group(self._options.progress_group, from_json(end))  # type: ignore[attr-defined]
        except PenstockError as error:
            log.warning("rocketmq: progress was not mirrored to group %s: %s", self._options.progress_group, error)
