"""Plans a read: options to offsets, offsets to ranges, ranges to tasks. Runs on the driver.

Offsets follow Kafka's rules. A timestamp option overrides an offset option. Offsets by queue must name every queue that
is read. Planning raises DataLost if requested messages are already deleted, unless failOnDataLoss is false. The same
ranges and options always give the same tasks.

Topics that fill a good part of a log are cheaper to read from the log than from their queues, if the order of the rows
does not matter: `log_instead_of_queues` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.errors import BadSettings, DataLost
from penstock.pipeline.offset_ranges import (
    DEFAULT_TASK,
    MessageSource,
    OffsetRange,
    Queue,
    ReadTask,
    TaskLimits,
    pack_ranges,
    split_ranges,
    task_size_for,
)
from penstock.pipeline.options import ANY_BROKER, EARLIEST, LATEST, OffsetSpec, Options
from penstock.pipeline.store_read_tasks import limited_to_topics
from penstock.pipeline.store_source import LOG, StoreSource, has_folders_of, log_queue

if TYPE_CHECKING:
    from penstock.pipeline.cluster_source import ClusterSource
    from penstock.pipeline.source_rows import RowShape

Offsets = dict[Queue, int]
_MAX_TOPICS_LISTED = 20
_LOG_SHARE: Final = 4
"""Topics are read from the log if they fill at least one part in so many of it."""
_LARGE_READ: Final = 1 << 30
_log = logging.getLogger("penstock.pipeline")


# -- queues and offsets ----------------------------------------------------------------------------------------------


def choose_queues(source: MessageSource, options: Options, *, must_exist: bool = True) -> list[Queue]:
    """Returns the queues that the options name. With order=log, each store's log counts as a queue.

    Raises BadSettings if a named topic or queue does not exist, unless `must_exist` is false.
    """
    if options.order == "log":
        return source.queues(())
    existing = source.topics()
    if options.subscribe_pattern is not None:
        return source.queues([topic for topic in existing if options.subscribe_pattern.fullmatch(topic)])
    wanted = options.topics or tuple(sorted({topic for topic, _, _ in options.assign}))
    for topic in wanted if must_exist else ():
        if topic not in existing and not source.queues([topic]):  # a cluster does not list its system topics
            raise BadSettings(f"there is no topic '{topic}' in {source.name}; {_list_topics(existing)}")
    queues = source.queues(wanted)
    return queues if not options.assign else _assigned(queues, options, must_exist)


def _list_topics(topics: Sequence[str]) -> str:
    if not topics:
        return "it has none"
    more = f" and {len(topics) - _MAX_TOPICS_LISTED} more" if len(topics) > _MAX_TOPICS_LISTED else ""
    return f"it has {', '.join(topics[:_MAX_TOPICS_LISTED])}{more}"


def _assigned(queues: list[Queue], options: Options, must_exist: bool) -> list[Queue]:
    chosen: list[Queue] = []
    for topic, broker, queue_id in options.assign:
        found = [q for q in queues if (q.topic, q.queue_id) == (topic, queue_id) and broker in (ANY_BROKER, q.broker)]
        if not found and must_exist:
            where = f" of broker {broker}" if broker else ""
            raise BadSettings(f"assign: there is no queue {queue_id} of topic '{topic}'{where}; leave it out")
        chosen += found
    return sorted(set(chosen))


def start_offsets(source: MessageSource, queues: Sequence[Queue], options: Options, *, otherwise: int) -> Offsets:
    """Returns each queue's first offset, for a batch or a new stream. Raises BadSettings.

    `otherwise` is the default if no option gives a start: EARLIEST or LATEST.
    """
    if options.starting_timestamp is not None:
        times = dict.fromkeys(queues, options.starting_timestamp)
        return _starts_by_time(source, times, options, "startingTimestamp")
    if options.starting_offsets_by_timestamp is not None:
        _refuse_for_log(options, "startingOffsetsByTimestamp")
        times = _by_queue(options.starting_offsets_by_timestamp, queues, "startingOffsetsByTimestamp")
        return _starts_by_time(source, times, options, "startingOffsetsByTimestamp")
    spec = options.starting_offsets or OffsetSpec(otherwise)
    if spec.group:
        _refuse_for_log(options, "startingOffsets=group:NAME")
        return _starts_by_group(source, queues, spec.group)
    if spec.everywhere is not None:
        return {queue: _resolve(source, queue, spec.everywhere) for queue in queues}
    _refuse_for_log(options, "startingOffsets by queue")
    given = _by_queue(spec, queues, "startingOffsets")
    return {queue: _resolve(source, queue, offset) for queue, offset in given.items()}


def end_offsets(source: MessageSource, queues: Sequence[Queue], options: Options) -> Offsets:
    """Returns the offset at which a batch ends in each queue, exclusive. Raises BadSettings."""
    if options.ending_timestamp is not None:
        return {queue: source.offset_at(queue, options.ending_timestamp) for queue in queues}
    if options.ending_offsets_by_timestamp is not None:
        _refuse_for_log(options, "endingOffsetsByTimestamp")
        times = _by_queue(options.ending_offsets_by_timestamp, queues, "endingOffsetsByTimestamp")
        return {queue: source.offset_at(queue, time) for queue, time in times.items()}
    spec = options.ending_offsets or OffsetSpec(LATEST)
    if spec.everywhere is not None:
        return {queue: _resolve(source, queue, spec.everywhere) for queue in queues}
    _refuse_for_log(options, "endingOffsets by queue")
    given = _by_queue(spec, queues, "endingOffsets")
    return {queue: _resolve(source, queue, offset) for queue, offset in given.items()}


def _resolve(source: MessageSource, queue: Queue, offset: int) -> int:
    if offset == EARLIEST:
        return source.bounds(queue)[0]
    return source.bounds(queue)[1] if offset == LATEST else offset


def _starts_by_time(source: MessageSource, times: Mapping[Queue, int], options: Options, name: str) -> Offsets:
    offsets: Offsets = {}
    for queue, timestamp in times.items():
        offsets[queue] = offset = source.offset_at(queue, timestamp)
        is_empty = offset >= source.bounds(queue)[1]
        if is_empty and options.starting_offsets_by_timestamp_strategy == "error":
            raise BadSettings(
                f"{name}: {describe(queue)} has no message stored at or after {timestamp}; "
                "set startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
    return offsets


def _starts_by_group(source: MessageSource, queues: Sequence[Queue], group: str) -> Offsets:
    committed = {queue: source.group_offset(group, queue) for queue in queues}
    if queues and all(offset is None for offset in committed.values()):
        raise BadSettings(
            f"startingOffsets: group '{group}' has no committed offsets here; give earliest, latest or a time"
        )
    return {queue: source.bounds(queue)[0] if offset is None else offset for queue, offset in committed.items()}


def _by_queue(spec: OffsetSpec, queues: Sequence[Queue], name: str) -> Offsets:
    """Returns the offset that `spec` has for each queue; `name` is the option's name.

    Raises BadSettings if `spec` lacks one of the queues, or has a queue that is not read.
    """
    offsets: Offsets = {}
    used = set()
    for queue in queues:
        for key in (tuple(queue), (queue.topic, ANY_BROKER, queue.queue_id)):
            if key in spec.by_queue:
                offsets[queue] = spec.by_queue[key]
                used.add(key)
                break
        else:
            raise BadSettings(f"{name} has no entry for {describe(queue)}; it must name every queue that is read")
    for topic, broker, queue_id in spec.by_queue:
        if (topic, broker, queue_id) not in used:
            raise BadSettings(
                f"{name} names {describe(Queue(topic, broker, queue_id))}, which is not read here; leave it out"
            )
    return offsets


def _refuse_for_log(options: Options, name: str) -> None:
    if options.order == "log":
        raise BadSettings(
            f"{name} works by queue and cannot be combined with order=log; use earliest, latest or a time"
        )


def describe(queue: Queue) -> str:
    """Returns a queue's name for error messages."""
    if queue.topic == LOG:
        return f"the log of {queue.broker}"
    return f"topic {queue.topic} queue {queue.queue_id}" + (f" (broker {queue.broker})" if queue.broker else "")


# -- ranges ----------------------------------------------------------------------------------------------------------


def check_range(source: MessageSource, queue: Queue, start: int, stop: int, options: Options) -> tuple[int, int]:
    """Returns the part of the range `start` to `stop` that exists in the queue.

    Raises DataLost if a part of the range does not exist, unless failOnDataLoss is false.
    """
    low, high = source.bounds(queue)
    start, stop = max(start, 0), max(start, stop)
    if (start < low and start < stop) or stop > high:
        missing = (start, min(low, stop)) if start < low else (start if high < start < stop else high, stop)
        if options.fail_on_data_loss:
            why = "deleted by retention" if start < low else "truncated, or this is a different store"
            available = f"{low} to {high - 1} are there" if low < high else "nothing is there"
            raise DataLost(
                f"{describe(queue)}: {_unit_of(queue)} {missing[0]} to {missing[1] - 1} are gone ({why}; {available}); "
                "set failOnDataLoss=false to continue with what is left"
            )
        start = min(max(start, low), high)
        stop = min(max(stop, start), high)
    return start, stop


def _unit_of(queue: Queue) -> str:
    return "bytes" if queue.topic == LOG else "messages"


def spans_between(source: MessageSource, first: Offsets, last: Offsets, options: Options) -> list[OffsetRange]:
    """Returns the non-empty ranges from the offsets `first` to the offsets `last`, with their sizes in bytes.

    Raises DataLost like `check_range`.
    """
    spans: list[OffsetRange] = []
    for queue in sorted(last):
        start, stop = check_range(source, queue, first.get(queue, last[queue]), last[queue], options)
        if start < stop:
            spans.append(OffsetRange(queue, start, stop, source.size(queue, start, stop)))
    return spans


# -- tasks -----------------------------------------------------------------------------------------------------------


def open_source(options: Options, *, following: bool = False, verify_crc: bool = True) -> StoreSource | ClusterSource:
    """Opens the stores or the cluster that the options name. `following` means that a stream will read them.

    Without `verify_crc` the tasks do not check the bodies of a store. Raises BadStore, BadSettings or Unreachable.
    """
    if options.path:
        return StoreSource(options, following=following, verify_crc=verify_crc)
    from penstock.pipeline.cluster_source import ClusterSource

    return ClusterSource(options)


def check_input(options: Options) -> None:
    """Checks that the input and its topics exist. Raises BadStore, Unreachable, or BadSettings for an unknown topic.

    Looks only at the names of a store's folders at first, because each read is planned later anyway. If a topic is
    missing there, opens the store with recovery, which may show more topics.
    """
    if options.path and not options.assign and has_folders_of(options, options.topics):
        return
    with closing(open_source(options)) as source:
        choose_queues(source, options)


def plan_batch(options: Options, shape: RowShape | None = None) -> list[ReadTask]:
    """Returns the tasks that read the current messages. Raises BadStore, BadSettings, Unreachable or DataLost.

    `shape` is what the tasks will be read with: a read without bodies is cheaper, and has fewer tasks.
    """
    with closing(open_source(options, verify_crc=shape is None or shape.verifies_bodies)) as source:
        queues = choose_queues(source, options)
        first = start_offsets(source, queues, options, otherwise=EARLIEST)
        spans = spans_between(source, first, end_offsets(source, queues, options), options)
        if not isinstance(source, StoreSource):
            return plan(source, spans, options)
        if options.keys:
            return source.key_tasks(options.keys, spans)
        has_bodies = shape is None or "body" in shape.native
        if shape is not None and shape.has_all:
            _suggest_less(sum(span.size for span in spans))
        by_log = log_instead_of_queues(source, queues, spans, options) if options.order == "any" else None
        if by_log is None:
            return plan(source, spans, options, has_bodies=has_bodies)
        tasks = plan(source, by_log, options, has_bodies=has_bodies)
        return limited_to_topics(tasks, sorted({queue.topic for queue in queues}))


def log_instead_of_queues(
    source: StoreSource, queues: Sequence[Queue], spans: Sequence[OffsetRange], options: Options
) -> list[OffsetRange] | None:
    """Returns the ranges of the logs in which the messages of `spans` lie, if they are cheaper to read; else None.

    The caller must filter the records by topic. None also if only a part of the queues is wanted, by queue or offset:
    a log can be limited by time alone. `queues` are the queues in which `spans` lie.
    """
    topics = sorted({queue.topic for queue in queues})
    given = (options.starting_offsets, options.ending_offsets)
    is_whole = all(spec is None or spec.everywhere in (EARLIEST, LATEST) for spec in given)
    by_queue = (options.assign, options.starting_offsets_by_timestamp, options.ending_offsets_by_timestamp)
    if not is_whole or any(by_queue) or options.max_records_per_partition or source.has_restarted(topics):
        return None
    logs = [log_queue(broker) for broker in source.brokers]
    if sum(span.size for span in spans) * _LOG_SHARE < sum(high - low for low, high in map(source.bounds, logs)):
        return None
    first = start_offsets(source, logs, options, otherwise=EARLIEST)
    return spans_between(source, first, end_offsets(source, logs, options), options)


_has_suggested = False


def _suggest_less(size: int) -> None:
    """Logs once, before a large read of all columns, which options would make it smaller."""
    global _has_suggested
    if size <= _LARGE_READ or _has_suggested:
        return
    _has_suggested = True
    _log.warning(
        "rocketmq: this reads all columns of %.1f GB; Spark does not say which of them the query needs: name them with "
        "the option columns (or .schema, or includeBody=false), limit rows with tags, keys, startingTimestamp and "
        "endingTimestamp, or use penstock.spark.table, which does both",
        size / 1e9,
    )


def plan(
    source: MessageSource,
    spans: Sequence[OffsetRange],
    options: Options,
    *,
    has_bodies: bool = True,
) -> list[ReadTask]:
    """Returns the tasks that read the ranges `spans`, split and packed by the limits in `options`."""
    limit = options.max_bytes_per_partition
    if options.min_partitions is not None or options.max_records_per_partition is not None:
        limits = TaskLimits(limit or DEFAULT_TASK, options.max_records_per_partition, options.min_partitions)
        return source.tasks([[piece] for piece in split_ranges(spans, limits)])
    size = task_size_for(sum(span.size for span in spans), limit, has_bodies=has_bodies)
    pieces = split_ranges(spans, TaskLimits(size))
    by_log = bool(spans) and spans[0].queue.topic == LOG
    return source.tasks([[piece] for piece in pieces] if by_log else pack_ranges(pieces, size))
