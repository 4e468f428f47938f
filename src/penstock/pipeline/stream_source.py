"""`spark.readStream` over queues (`format("rocketmq")`) and over a store's published log. Needs pyspark.

Spark's checkpoint keeps the offsets as `{topic: {broker: {queue id: offset}}}`. Spark compares offsets as text, so
their order is fixed. Beside the offsets it keeps, under names that no topic can have, what proves that a restarted
query continues where it stopped:

    "@read"   {topic: {broker: {queue id: [physical offset, store time]}}}, the last message before each offset
    "@store"  {broker: [physical offset, store time]}, the first record of each store's log
    "@new"    {topic: {broker: {queue id: offset}}}, where a micro-batch began in queues that were not there before
    "@from"   the stores' paths or the cluster's address: a sink refuses a topic that its own query reads

Before a micro-batch reads on in a queue, the reader compares the message before its start with this witness. If they
differ, the topic was created again, the log was truncated and filled again, or this is another store: an error, or with
failOnDataLoss=false a new start at the queue's first message. Offsets without witnesses, from an older version, are not
compared. Workers import this module to read, so what only the driver needs is imported in the methods. A start option
counts only for a new query. Spark logs only the ends of micro-batches. The first micro-batch is therefore empty: its
end logs the query's start, which a crash then cannot move. Spark before 4.2 ends an availableNow run after one
micro-batch, so there only a start at `latest` has an empty first micro-batch. Other starts have to name the same
offsets whenever they are resolved, and micro-batches have no limit unless it is set. The plan of a micro-batch
depends only on its offsets and the options, so a replayed micro-batch reads the same rows. One StreamReader lives on
the driver and keeps the source open. Workers read with pickled copies.

`PublishedLog` streams the log of a store with dispatch=external as byte ranges, for jobs that build derived data. A
micro-batch begins at the previous end and ends at the position that the store publishes. Its rows are ranges with the
columns `start`, `stop` (physical offsets) and `exact`. The job reads the records that begin in a range. If `exact` is
true, a record begins at `start`; otherwise the job must search for the first record. The source takes no lock and
changes nothing. Its options:

    path      the store's folder
    start     the physical offset at which a new query begins
    pieces    the maximum number of ranges per micro-batch
    maxBytes  the maximum bytes per micro-batch

The ranges depend only on the offsets and the options, so a replayed micro-batch has the same ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from penstock.errors import BadStore, DataLost, PenstockError
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.offset_ranges import MessageSource, Queue, Witness
from penstock.pipeline.options import LATEST, MEAN_SIZES, PLACE, OffsetSpec, Options
from penstock.pipeline.source import ReadPartition, check_schema, read_part
from penstock.pipeline.source_rows import RowShape
from penstock.pipeline.spark_versions import (
    HAS_READ_LIMITS,
    SupportsTriggerAvailableNow,
    for_this_spark,
    read_limit,
    requires,
)
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

Offsets = dict[Queue, int]
Size = Callable[[Queue, int, int], int]
_MAX_ESTIMATES = 8
PROOF_READ: Final = "@read"
PROOF_STORES: Final = "@store"
NEW_QUEUES: Final = "@new"


# -- offsets ---------------------------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """What identifies the messages and the stores that a query has read."""

    read: Mapping[Queue, Witness]
    """The witness of the last message before each queue's offset. Queues without one are not compared."""
    stores: Mapping[str, Witness]
    """The first record of each store's log, by broker."""
    place: str = ""
    """The stores or the cluster that the query reads."""


_NO_PROOF: Final = Proof({}, {})


def _nested(values: Mapping[Queue, object]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for (topic, broker, queue_id), value in sorted(values.items(), key=lambda item: item[0]):
        document.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return document


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[Queue, Any]]:
    for topic, brokers in document.items():
        for broker, queues in brokers.items():
            for queue_id, value in queues.items():
                yield Queue(topic, broker, int(queue_id)), value


def to_json(offsets: Mapping[Queue, int], proof: Proof = _NO_PROOF) -> dict[str, Any]:
    """Returns the offsets as nested dictionaries, sorted by topic, broker and queue id. The proof comes first."""
    document: dict[str, Any] = {PLACE: proof.place} if proof.place else {}
    if proof.read:
        document[PROOF_READ] = _nested({queue: list(witness) for queue, witness in proof.read.items()})
    if proof.stores:
        document[PROOF_STORES] = {broker: list(witness) for broker, witness in sorted(proof.stores.items())}
    return document | _nested(offsets)


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Returns the offsets of a document that `to_json` made."""
    topics = {topic: brokers for topic, brokers in document.items() if not topic.startswith("@")}
    return {queue: int(offset) for queue, offset in _flat(topics)}


def proof_of(document: Mapping[str, Any]) -> Proof:
    """Returns the proof in a document that `to_json` made. It is empty in the checkpoint of an older version."""
    read = {queue: Witness(*map(int, value)) for queue, value in _flat(document.get(PROOF_READ, {}))}
    return Proof(read, {broker: Witness(*map(int, value)) for broker, value in document.get(PROOF_STORES, {}).items()})


def backlog(first: Mapping[Queue, int], last: Mapping[Queue, int]) -> int:
    """Returns the number of messages between the offsets `first` and `last`, over all queues of `last`."""
    return sum(max(last[queue] - first.get(queue, last[queue]), 0) for queue in last)


def within_count(first: Mapping[Queue, int], last: Mapping[Queue, int], max_count: int) -> Offsets:
    """Returns the end offsets of a micro-batch from `first` that has at most `max_count` messages and ends by `last`.

    Each queue that has messages gets one of them if `max_count` allows, because it must not wait for others that always
    have more. The rest is shared in proportion to what is left of the queues' backlogs.
    """
    waiting = {queue: max(last[queue] - first.get(queue, last[queue]), 0) for queue in sorted(last)}
    if sum(waiting.values()) <= max_count:
        return dict(last)
    busy = sum(1 for count in waiting.values() if count)
    least = 1 if busy <= max_count else 0
    shares = {queue: min(count, least) for queue, count in waiting.items()}
    beyond = {queue: count - shares[queue] for queue, count in waiting.items()}
    total, room = sum(beyond.values()), max_count - busy * least
    for queue, count in beyond.items():
        shares[queue] += count * room // total
    left = max_count - sum(shares.values())
    for queue in sorted(waiting, key=lambda each: (-(beyond[each] * room % total), each)):
        if left and shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: last[queue] - waiting[queue] + share for queue, share in shares.items()}


def within_bytes(first: Mapping[Queue, int], last: Mapping[Queue, int], max_bytes: int, size: Size) -> Offsets:
    """Returns the end offsets of a micro-batch from `first` that has about `max_bytes` at most and ends by `last`.

    The micro-batch has at least one message, whatever its size. `size` estimates the bytes of a queue's range.
    """
    tries = 0
    while (count := backlog(first, last)) > 1:
        total = sum(size(queue, first.get(queue, stop), stop) for queue, stop in last.items())
        if total <= max_bytes:
            break
        # An estimate by the mean size converges quickly unless sizes differ much. Halving always converges.
        fitting = min(count * max_bytes // total, count - 1) if tries < _MAX_ESTIMATES else count // 2
        last = within_count(first, last, max(fitting, 1))
        tries += 1
    return dict(last)


def _start_of(options: Options) -> OffsetSpec | None:
    """Returns the offsets at which a new query starts, or None if it starts at a time."""
    if options.starting_timestamp is not None or options.starting_offsets_by_timestamp is not None:
        return None
    return options.starting_offsets or OffsetSpec(LATEST)


def _starts_at_latest(options: Options) -> bool:
    spec = _start_of(options)
    return spec is not None and spec.everywhere == LATEST


def _check_fixed_start(options: Options) -> None:
    """Raises MissingPackage if the start options may name later offsets whenever they are resolved."""
    spec = _start_of(options)
    if spec is not None and (spec.group or LATEST in spec.by_queue.values()):
        given = f"group:{spec.group}" if spec.group else "-1 (latest) for some queues"
        requires((4, 2), f"a stream with startingOffsets={given}", instead="give earliest, a time or other offsets")


# -- queues ----------------------------------------------------------------------------------------------------------

log = logging.getLogger("penstock.pipeline")
_MAX_BATCH_BYTES: Final = 1 << 30


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of queues or logs.

    The methods raise all errors. The constructor raises none, because Spark would hide them.
    """

    def __init__(self, options: Options, schema: StructType, *, has_read_limits: bool = HAS_READ_LIMITS) -> None:
        self._options = options
        self._schema = schema
        self._has_read_limits = has_read_limits
        self._shape = RowShape.of(options, schema.names, streaming=True)
        self._source: MessageSource | None = None
        self._initial: dict[str, Any] | None = None
        self._anchored = not has_read_limits and not _starts_at_latest(options)
        self._goal: Offsets | None = None
        self._planned: dict[str, Any] | None = None
        """The end that the last `latestOffset` returned, after it had compared the start with its proof."""
        self._means: dict[str, int] = {}
        """The mean bytes of a message in the last micro-batch, by topic."""
        self._last_batch = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def _open(self) -> MessageSource:
        if self._source is None:
            from penstock.pipeline.scan_plan import open_source

            self._options.check_reading()
            self._options.check_streaming()
            check_schema(self._schema, self._options)
            self._source = open_source(self._options, following=True)
        return self._source

    # -- offsets ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with as_user_errors():
            if self._initial is None:
                from penstock.pipeline.scan_plan import choose_queues, start_offsets
                from penstock.pipeline.store_source import StoreSource

                if not self._has_read_limits:
                    _check_fixed_start(self._options)
                source = self._open()
                queues = choose_queues(source, self._options)
                first = start_offsets(source, queues, self._options, otherwise=LATEST)
                self._initial = to_json(first, Proof(source.witnesses(first), source.first_records(), source.name))
                self._log_limit()
                if isinstance(source, StoreSource):
                    source.close_views()
            return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        with as_user_errors():
            self._goal = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:
        with as_user_errors():
            return {MEAN_SIZES: dict(sorted(self._means.items())), **to_json(self._ends(refresh=False))}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with as_user_errors():
            if self._initial is not None and not self._anchored:
                self._anchored = True
                return start
            source, first, proof = self._open(), from_json(start), proof_of(start)
            last = self._ends() if self._goal is None else dict(self._goal)
            new = self._new_queues(last, first)
            first |= new
            ends_before = {queue for queue in last if source.bounds(queue)[1] < first[queue]}
            advanced = {queue for queue, stop in last.items() if stop > first[queue]}
            if replaced := self._replaced(first, proof, ends_before | advanced):
                kept = {queue: witness for queue, witness in proof.read.items() if queue not in replaced}
                return to_json({**first, **replaced}, Proof(kept, source.first_records(), source.name))
            last = {queue: max(stop, first[queue]) for queue, stop in last.items()}
            waiting = backlog(first, last)
            if not waiting or self._should_wait(waiting):
                return start
            last = self._limit(first, last)
            self._last_batch = time.monotonic()
            self._planned = self._with_proof(first, last, proof)
            if new:  # a batch that is run again begins there, even if retention has moved the queue's minimum
                self._planned[NEW_QUEUES] = _nested(new)
                self._warn_of_missing_starts(new)
            return self._planned

    def _ends(self, *, refresh: bool = True) -> Offsets:
        from penstock.pipeline.scan_plan import choose_queues

        source = self._open()
        if refresh:
            source.refresh()
        return {queue: source.bounds(queue)[1] for queue in choose_queues(source, self._options, must_exist=False)}

    def _new_queues(self, last: Offsets, known: Offsets) -> Offsets:
        """Returns the minimum offset of each queue in `last` that is not in `known`.

        Raises DataLost if messages before it were deleted, and so before the query saw the queue, unless failOnDataLoss
        is false.
        """
        from penstock.pipeline.scan_plan import check_range
        from penstock.pipeline.store_source import LOG

        source = self._open()
        new = {queue: source.bounds(queue)[0] for queue in last if queue not in known}
        for queue, low in new.items():
            if queue.topic != LOG:
                check_range(source, queue, 0, low, self._options)
        return new

    def _warn_of_missing_starts(self, new: Offsets) -> None:
        from penstock.pipeline.scan_plan import describe
        from penstock.pipeline.store_source import LOG

        for queue, low in new.items():
            if low and queue.topic != LOG:
                log.warning("rocketmq: %s is new, and its first %d messages are gone", describe(queue), low)

    def _with_proof(self, first: Offsets, last: Offsets, proof: Proof) -> dict[str, Any]:
        """Returns the end `last` of a micro-batch with its proof. Takes new witnesses only of the queues it reads."""
        source = self._open()
        advanced = {queue: stop for queue, stop in last.items() if stop > first[queue]}
        kept = {queue: witness for queue, witness in proof.read.items() if queue not in advanced}
        return to_json({**first, **last}, Proof(kept | source.witnesses(advanced), source.first_records(), source.name))

    def _replaced(self, offsets: Offsets, proof: Proof, queues: Iterable[Queue]) -> Offsets:
        """Returns the minimum offset of each of the queues whose last message read is no longer the same.

        Raises DataLost for such a queue, unless failOnDataLoss is false. The caller then makes an empty batch, whose
        end logs the returned offsets.
        """
        from penstock.pipeline.scan_plan import describe

        source = self._open()
        queues = list(queues)
        found = source.witnesses({queue: offsets[queue] for queue in queues if queue in proof.read})
        replaced: Offsets = {}
        for queue in queues:
            (low, high), offset, witness = source.bounds(queue), offsets[queue], proof.read.get(queue)
            if high >= offset and (witness is None or witness.agrees_with(found.get(queue, witness))):
                continue
            why = "truncated, or this is a different store"
            if witness is not None:
                why = source.why_replaced(queue, offset, witness, proof.stores.get(queue.broker))
            there = f"{low} to {high - 1} are" if low < high else "nothing is"
            error = DataLost(
                f"{describe(queue)} was read up to {offset}, and what was read is gone ({why}; {there} there now); "
                "start a query with a new checkpoint, or set failOnDataLoss=false to read all that is there"
            )
            if self._options.fail_on_data_loss:
                raise error
            log.warning("rocketmq: %s", error)
            replaced[queue] = low
        return replaced

    def _should_wait(self, waiting: int) -> bool:
        """Returns whether to wait for more messages than `waiting` before the next batch."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._goal is not None or waiting >= minimum:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay

    def _limit(self, first: Offsets, last: Offsets) -> Offsets:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            last = within_count(first, last, options.max_offsets_per_trigger)
        max_bytes = options.max_bytes_per_trigger
        if max_bytes is None and options.max_offsets_per_trigger is None and self._has_read_limits:
            max_bytes = _MAX_BATCH_BYTES
        return last if max_bytes is None else within_bytes(first, last, max_bytes, self._open().size)

    def _log_limit(self) -> None:
        is_limited = bool(self._options.max_offsets_per_trigger or self._options.max_bytes_per_trigger)
        if is_limited and not self._has_read_limits:
            log.warning(
                "rocketmq: this Spark runs one micro-batch for availableNow, which ends at the limit of this query; "
                "leave maxOffsetsPerTrigger and maxBytesPerTrigger out there"
            )
        elif not is_limited and self._has_read_limits:
            log.warning(
                "rocketmq: maxOffsetsPerTrigger and maxBytesPerTrigger are not set; micro-batches are 1 GiB at most"
            )

    # -- batches ---------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from penstock.pipeline.scan_plan import plan, spans_between

        with as_user_errors():
            source = self._open()
            first, last = from_json(start), from_json(end)
            if first == last:
                return []
            new = dict(_flat(end.get(NEW_QUEUES, {})))
            first |= {queue: new.get(queue, source.bounds(queue)[0]) for queue in last if queue not in first}
            if end != self._planned:  # a batch that a restarted query runs again
                advanced = [queue for queue, stop in last.items() if stop > first[queue]]
                replaced = self._replaced(first, proof_of(start), advanced)
                replaced |= self._replaced(last, proof_of(end), (each for each in advanced if each not in replaced))
                last = {queue: stop for queue, stop in last.items() if queue not in replaced}
            spans = spans_between(source, first, last, self._options)
            for topic in {span.queue.topic for span in spans}:
                read = [span for span in spans if span.queue.topic == topic]
                self._means[topic] = sum(span.size for span in read) // sum(span.count for span in read)
            return [ReadPartition(task) for task in plan(source, spans, self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._shape, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commits the offsets for the consumer group `progressGroup`, if it is set. Only logs a failure.

        Does nothing if the source is a store.
        """
        if not self._options.progress_group or self._options.path:
            return
        source = self._open()
        try:
            source.commit_group(self._options.progress_group, from_json(end))  # type: ignore[attr-defined]
        except PenstockError as error:
            log.warning("rocketmq: progress was not mirrored to group %s: %s", self._options.progress_group, error)


# -- the published log -----------------------------------------------------------------------------------------------

FORMAT: Final = "penstock-log"
_MIN_PIECE: Final = 4 << 20
_MAX_BYTES: Final = 256 << 20


class PublishedLog(DataSource):
    """The data source `penstock-log`. Jobs register it with their session."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        columns = ("start", LongType()), ("stop", LongType()), ("exact", BooleanType())
        return StructType([StructField(name, kind, nullable=False) for name, kind in columns])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return for_this_spark(PublishedLogReader(dict(self.options)))


class LogSlice(InputPartition):
    """One byte range of a micro-batch."""

    def __init__(self, start: int, stop: int, exact: bool) -> None:
        super().__init__(start)
        self.start, self.stop, self.exact = start, stop, exact


class PublishedLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of the published log. Its offsets are physical offsets."""

    def __init__(self, options: dict[str, str]) -> None:
        root = Path(options["path"])
        self._end = Layout(root, root / "commitlog").dispatch_end
        self._files = Files()
        self._start = int(options.get("start", 0))
        self._pieces = int(options.get("pieces", 2))
        self._max_bytes = int(options.get("maxbytes", _MAX_BYTES))
        self._goal: int | None = None

    def _published(self) -> int:
        from penstock.store.external_dispatch.files_shared_with_job import read_mark

        mark = read_mark(self._files, self._end)
        if mark is None:
            raise BadStore("this store does not publish the end of its log; start it with dispatch=external",
                           path=self._end.parent.parent)  # fmt: skip
        return mark.position

    def initialOffset(self) -> dict[str, Any]:
        return {"position": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(None)

    def prepareForTriggerAvailableNow(self) -> None:
        with as_user_errors():
            self._goal = self._published()

    def reportLatestOffset(self) -> dict[str, Any]:
        with as_user_errors():
            return {"position": self._published()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with as_user_errors():
            begin = int(start["position"])
            end = self._published() if self._goal is None else self._goal
            return {"position": max(begin, min(end, begin + self._max_bytes))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = int(start["position"]), int(end["position"])
        if begin >= stop:
            return []
        from penstock.store.queue_units_and_keys import cut_range

        cut = cut_range(begin, stop, self._pieces, _MIN_PIECE)
        return [LogSlice(first, last, first == self._start) for first, last in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if isinstance(partition, LogSlice):
            columns = [pa.array([partition.start]), pa.array([partition.stop]), pa.array([partition.exact])]
            names = ("start", "stop", "exact")
            fields = [pa.field(name, each.type, nullable=False) for name, each in zip(names, columns, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
