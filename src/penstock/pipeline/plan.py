"""From options to offsets: which queues are read, from where and to where, by Kafka's rules.

A time goes before offsets by queue, and those before a word. Offsets by queue must name every queue that is read.
Messages that are asked for and are not there any more are an error, unless failOnDataLoss is false.


From ranges to tasks: how a read is cut, the same way each time for the same ranges and options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.errors import BadSettings, BadStore, DataLost
from penstock.pipeline.options import ANY_BROKER, EARLIEST, LATEST, Options, Wish
from penstock.pipeline.ranges import MessageSource, OffsetRange, Queue, ReadTask, TaskLimits, cut, packed
from penstock.pipeline.store_source import LOG, StorePlace

if TYPE_CHECKING:
    from penstock.pipeline.cluster_source import ClusterPlace

Offsets = dict[Queue, int]
_TOPICS_NAMED = 20


def choose_queues(place: MessageSource, options: Options, *, must_exist: bool = True) -> list[Queue]:
    """The queues that the options name. Raises BadSettings if one of them is not there."""
    if options.order == "log":
        return place.queues(())
    there = place.topics()
    if options.subscribe_pattern is not None:
        return place.queues([topic for topic in there if options.subscribe_pattern.fullmatch(topic)])
    wanted = options.topics or tuple(sorted({topic for topic, _, _ in options.assign}))
    for topic in wanted if must_exist else ():
        if topic not in there and not place.queues([topic]):  # a cluster lists none of its own
            raise BadSettings(f"there is no topic '{topic}' in {place.name}; {_those(there)}")
    queues = place.queues(wanted)
    return queues if not options.assign else _assigned(queues, options, must_exist)


def _those(topics: Sequence[str]) -> str:
    if not topics:
        return "it has none"
    more = f" and {len(topics) - _TOPICS_NAMED} more" if len(topics) > _TOPICS_NAMED else ""
    return f"it has {', '.join(topics[:_TOPICS_NAMED])}{more}"


def _assigned(queues: list[Queue], options: Options, must_exist: bool) -> list[Queue]:
    chosen: list[Queue] = []
    for topic, broker, queue_id in options.assign:
        found = [q for q in queues if (q.topic, q.queue_id) == (topic, queue_id) and broker in (ANY_BROKER, q.broker)]
        if not found and must_exist:
            where = f" of broker {broker}" if broker else ""
            raise BadSettings(f"assign: there is no queue {queue_id} of topic '{topic}'{where}; leave it out")
        chosen += found
    return sorted(set(chosen))


def starts(place: MessageSource, queues: Sequence[Queue], options: Options, *, otherwise: int) -> Offsets:
    """Where reading begins: in a batch, or in a new stream. `otherwise` is EARLIEST or LATEST."""
    if options.starting_timestamp is not None:
        times = dict.fromkeys(queues, options.starting_timestamp)
        return _starts_by_time(place, times, options, "startingTimestamp")
    if options.starting_offsets_by_timestamp is not None:
        _refuse_for_log(options, "startingOffsetsByTimestamp")
        times = _by_queue(options.starting_offsets_by_timestamp, queues, "startingOffsetsByTimestamp")
        return _starts_by_time(place, times, options, "startingOffsetsByTimestamp")
    wish = options.starting_offsets or Wish(otherwise)
    if wish.group:
        _refuse_for_log(options, "startingOffsets=group:NAME")
        return _starts_by_group(place, queues, wish.group)
    if wish.everywhere is not None:
        return {queue: _word(place, queue, wish.everywhere) for queue in queues}
    _refuse_for_log(options, "startingOffsets by queue")
    given = _by_queue(wish, queues, "startingOffsets")
    return {queue: _word(place, queue, offset) for queue, offset in given.items()}


def ends(place: MessageSource, queues: Sequence[Queue], options: Options) -> Offsets:
    """Where a batch ends, exclusive."""
    if options.ending_timestamp is not None:
        return {queue: place.offset_at(queue, options.ending_timestamp) for queue in queues}
    if options.ending_offsets_by_timestamp is not None:
        _refuse_for_log(options, "endingOffsetsByTimestamp")
        times = _by_queue(options.ending_offsets_by_timestamp, queues, "endingOffsetsByTimestamp")
        return {queue: place.offset_at(queue, time) for queue, time in times.items()}
    wish = options.ending_offsets or Wish(LATEST)
    if wish.everywhere is not None:
        return {queue: _word(place, queue, wish.everywhere) for queue in queues}
    _refuse_for_log(options, "endingOffsets by queue")
    given = _by_queue(wish, queues, "endingOffsets")
    return {queue: _word(place, queue, offset) for queue, offset in given.items()}


def _word(place: MessageSource, queue: Queue, offset: int) -> int:
    if offset == EARLIEST:
        return place.bounds(queue)[0]
    return place.bounds(queue)[1] if offset == LATEST else offset


def _starts_by_time(place: MessageSource, times: Mapping[Queue, int], options: Options, name: str) -> Offsets:
    found: Offsets = {}
    for queue, timestamp in times.items():
        found[queue] = offset = place.offset_at(queue, timestamp)
        nothing = offset >= place.bounds(queue)[1]
        if nothing and options.starting_offsets_by_timestamp_strategy == "error":
            raise BadSettings(
                f"{name}: {describe(queue)} has no message stored at or after {timestamp}; "
                "set startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
    return found


def _starts_by_group(place: MessageSource, queues: Sequence[Queue], group: str) -> Offsets:
    found = {queue: place.group_offset(group, queue) for queue in queues}
    if queues and all(offset is None for offset in found.values()):
        raise BadSettings(
            f"startingOffsets: group '{group}' has consumed nothing of what is read here; "
            "give earliest, latest or a time"
        )
    return {queue: place.bounds(queue)[0] if offset is None else offset for queue, offset in found.items()}


def _by_queue(wish: Wish, queues: Sequence[Queue], name: str) -> Offsets:
    """The numbers for all queues. Raises BadSettings if one is left out, or one is named that is not read."""
    found: Offsets = {}
    used = set()
    for queue in queues:
        for key in (tuple(queue), (queue.topic, ANY_BROKER, queue.queue_id)):
            if key in wish.by_queue:
                found[queue] = wish.by_queue[key]
                used.add(key)
                break
        else:
            raise BadSettings(f"{name} says nothing of {describe(queue)}; it must name every queue that is read")
    for topic, broker, queue_id in wish.by_queue:
        if (topic, broker, queue_id) not in used:
            raise BadSettings(
                f"{name} names {describe(Queue(topic, broker, queue_id))}, which is not read here; leave it out"
            )
    return found


def _refuse_for_log(options: Options, name: str) -> None:
    if options.order == "log":
        raise BadSettings(f"{name} goes by queue, and order=log does not; use earliest, latest or a time")


def describe(queue: Queue) -> str:
    """A queue in a sentence."""
    if queue.topic == LOG:
        return f"the log of {queue.broker}"
    return f"topic {queue.topic} queue {queue.queue_id}" + (f" (broker {queue.broker})" if queue.broker else "")


def check_range(place: MessageSource, queue: Queue, start: int, stop: int, options: Options) -> tuple[int, int]:
    """A range as far as it is there. Raises DataLost if not all of it is, unless that is allowed."""
    low, high = place.bounds(queue)
    start, stop = max(start, 0), max(start, stop)
    if (start < low and start < stop) or stop > high:
        missing = (start, min(low, stop)) if start < low else (start if high < start < stop else high, stop)
        if options.fail_on_data_loss:
            why = "deleted by retention" if start < low else "cut off, or the store is another one than before"
            there = f"{low} to {high - 1} are there" if low < high else "nothing is there"
            raise DataLost(
                f"{describe(queue)}: {_what(queue)} {missing[0]} to {missing[1] - 1} are gone ({why}; {there}); set "
                "failOnDataLoss=false to go on with what is there"
            )
        start = min(max(start, low), high)
        stop = min(max(stop, start), high)
    return start, stop


def _what(queue: Queue) -> str:
    return "bytes" if queue.topic == LOG else "messages"


def spans_between(place: MessageSource, first: Offsets, last: Offsets, options: Options) -> list[OffsetRange]:
    """The ranges from some offsets to others that hold anything, with their sizes."""
    spans: list[OffsetRange] = []
    for queue in sorted(last):
        start, stop = check_range(place, queue, first.get(queue, last[queue]), last[queue], options)
        if start < stop:
            spans.append(OffsetRange(queue, start, stop, place.size(queue, start, stop)))
    return spans


_TASKS_AT_LEAST: Final = 16
"""Small queues share tasks, but not so that fewer than this are left."""


def open_place(options: Options, *, following: bool = False) -> StorePlace | ClusterPlace:
    """Where the options say the messages are. Raises BadStore, BadSettings, Unreachable."""
    if options.path:
        return StorePlace(options, following=following)
    from penstock.pipeline.cluster_source import ClusterPlace

    return ClusterPlace(options)


def check_there(options: Options) -> None:
    """Looks whether what is to be read is there. Raises what opening it raises, BadSettings for an unknown topic.

    First in the cheap way, which sees what the queues' files hold; a read may find more, as a start would.
    """
    for following in (True, False):
        try:
            with closing(open_place(options, following=following)) as place:
                choose_queues(place, options)
            return
        except (BadSettings, BadStore):
            if options.namesrv or not following:
                raise


def plan_batch(options: Options) -> list[ReadTask]:
    """The tasks of a batch read, of what is there now. Raises what opening raises, BadSettings, DataLost."""
    with closing(open_place(options)) as place:
        queues = choose_queues(place, options)
        first = starts(place, queues, options, otherwise=EARLIEST)
        spans = spans_between(place, first, ends(place, queues, options), options)
        if options.keys and isinstance(place, StorePlace):
            return place.key_tasks(options.keys, spans)
        return plan(place, spans, options)


def plan(place: MessageSource, spans: Sequence[OffsetRange], options: Options) -> list[ReadTask]:
    """The tasks for some ranges."""
    limits = TaskLimits(options.max_bytes_per_partition, options.max_records_per_partition, options.min_partitions)
    pieces = cut(spans, limits)
    if options.min_partitions is not None or options.max_records_per_partition is not None or options.order == "log":
        return place.tasks([[piece] for piece in pieces])
    return place.tasks(packed(pieces, options.max_bytes_per_partition, _TASKS_AT_LEAST))
