"""Consumer lag by group, topic and queue, in messages and in time; and the queues that are stuck.

The job reads the files of stores, or asks the brokers of a cluster. It reads only offsets and a few store times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import Refused
from penstock.format.msgspec_warm_up import prepared
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.session import gather
from penstock.store.config_files import ConfigFiles
from penstock.store.readonly.store_folder import StoreFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.client.sync import Admin, PullConsumer
    from penstock.protocol.bodies.queues import MessageQueue

STUCK_AFTER_MS: Final = 600_000
SCHEMA: Final = (
    "broker string, consumer_group string, topic string, queue_id int, min_offset bigint, max_offset bigint, "
    "consumer_offset bigint, behind bigint, gone bigint, behind_ms bigint, last_consumed timestamp, "
    "oldest_unread timestamp, newest timestamp, stuck boolean"
)


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of one consumer group in one queue. Times are store times in epoch milliseconds; 0 means unknown."""

    broker: str
    group: str
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    consumer_offset: int
    last_consumed_ms: int
    oldest_unread_ms: int
    newest_ms: int
    stuck: bool = False
    """True if the group still consumes from other queues of the topic, but not from this one.

    The oldest unread message here is over ten minutes older than the newest message that the group has consumed.
    """

    @property
    def behind(self) -> int:
        """The number of existing messages that the group has not consumed."""
        return max(self.max_offset - max(self.consumer_offset, self.min_offset), 0)

    @property
    def gone(self) -> int:
        """The number of messages that were deleted before the group consumed them."""
        return max(self.min_offset - self.consumer_offset, 0)

    @property
    def behind_ms(self) -> int:
        """The time in ms from the oldest unread message to the newest message; 0 if unknown."""
        known = self.oldest_unread_ms and self.newest_ms
        return max(self.newest_ms - self.oldest_unread_ms, 0) if self.behind and known else 0


def lag(job_input: JobInput, group: str = "") -> list[QueueLag]:
    """Returns the lag of `group`, or of all groups if it is empty. Raises BadSettings, BadStore or Unreachable."""
    job_input.check()
    if job_input.namesrv:
        return mark_stuck(_cluster_lag(job_input.namesrv, group))
    found: list[QueueLag] = []
    for broker, folder in job_input.folders().items():
        found += _store_lag(broker, folder, group)
    return mark_stuck(found)


def lag_on_spark(spark: SparkSession, job_input: JobInput, group: str = "") -> list[QueueLag]:
    """Returns what `lag` does. A task per store measures it; a cluster's brokers are asked by this process."""
    job_input.check()
    if job_input.namesrv:
        return lag(job_input, group)
    pieces = [
        (broker, str(folder.layout.root), job_input.config, job_input.settings, group)
        for broker, folder in job_input.folders().items()
    ]
    decoder = msgspec.msgpack.Decoder(prepared(list[QueueLag]))
    return mark_stuck([each for rows in gather(spark, pieces, _lag_piece) for each in decoder.decode(rows)])


def _lag_piece(piece: tuple[str, str, str, tuple[str, ...], str]) -> bytes:
    broker, path, config, settings, group = piece
    folder = StoreFolder.find(Path(path), Path(config) if config else None, settings)
    return msgspec.msgpack.encode(_store_lag(broker, folder, group))


def lag_frame(spark: SparkSession, rows: Sequence[QueueLag]) -> DataFrame:
    """Returns the result of `lag` as a DataFrame."""
    return spark.createDataFrame([lag_row(each) for each in rows], _spark_schema())


def _spark_schema() -> StructType:
    """Returns SCHEMA as a StructType. Spark's own parser cannot be called while a pipeline defines its tables."""
    from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

    kinds = (StringType(), IntegerType(), LongType(), TimestampType(), BooleanType())
    by_name = {kind.simpleString(): kind for kind in kinds}
    return StructType([StructField(name, by_name[kind]) for name, kind in map(str.split, SCHEMA.split(", "))])


def lag_row(each: QueueLag) -> tuple[object, ...]:
    """Returns a result of `lag` as the values of SCHEMA."""
    from datetime import UTC, datetime

    def as_datetime(milliseconds: int) -> datetime | None:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None

    queue = each.broker, each.group, each.topic, each.queue_id, each.min_offset, each.max_offset, each.consumer_offset
    times = as_datetime(each.last_consumed_ms), as_datetime(each.oldest_unread_ms), as_datetime(each.newest_ms)
    return (*queue, each.behind, each.gone, each.behind_ms, *times, each.stuck)


def mark_stuck(rows: Sequence[QueueLag]) -> list[QueueLag]:
    """Sets `stuck` of each row, and sorts the rows by group, topic, broker and queue."""
    newest: dict[tuple[str, str], int] = {}
    for each in rows:
        key = each.group, each.topic
        newest[key] = max(newest.get(key, 0), each.last_consumed_ms)
    return [
        msgspec.structs.replace(
            each,
            stuck=bool(each.behind and each.oldest_unread_ms)
            and newest[each.group, each.topic] - each.oldest_unread_ms > STUCK_AFTER_MS,
        )
        for each in sorted(rows, key=lambda row: (row.group, row.topic, row.broker, row.queue_id))
    ]


def _store_lag(broker: str, folder: StoreFolder, group: str) -> list[QueueLag]:
    offsets = ConfigFiles(folder.files, folder.layout.config).consumer_offsets.read().table.offsets
    with folder.view().store as store:
        return queue_lags(
            broker,
            {key: queues for key, queues in offsets.items() if not group or key[1] == group},
            [(queue.topic, queue.queue_id) for queue in store.queues],
            lambda topic, queue_id: (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)),
            store.store_time,
        )


def queue_lags(
    broker: str,
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
    queues: Iterable[tuple[str, int]],
    bounds: Callable[[str, int], tuple[int, int]],
    store_time: Callable[[str, int, int], int],
) -> list[QueueLag]:
    """Returns the lag of one store's groups, without `stuck`.

    `offsets` are the committed offsets by (topic, group) and queue; `bounds` gives the first and the next offset of a
    queue, and `store_time` the store time of a message in ms, not above 0 if it is unknown.
    """
    found = []
    there: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        there.setdefault(topic, []).append(queue_id)
    for (topic, group), consumed_of in offsets.items():
        # a queue without an offset counts from 0, as in a broker: the group has not consumed from it
        for queue_id, consumed in {**dict.fromkeys(there.get(topic, ()), 0), **consumed_of}.items():
            low, high = bounds(topic, queue_id)
            low = max(low, 0)
            positions = (consumed - 1, max(consumed, low), high - 1)
            last_consumed, oldest_unread, newest = (max(store_time(topic, queue_id, at), 0) for at in positions)
            found.append(
                QueueLag(
                    broker=broker,
                    group=group,
                    topic=topic,
                    queue_id=queue_id,
                    min_offset=low,
                    max_offset=high,
                    consumer_offset=consumed,
                    last_consumed_ms=last_consumed,
                    oldest_unread_ms=oldest_unread,
                    newest_ms=newest,
                )
            )
    return found


def _cluster_lag(namesrv: str, group: str) -> list[QueueLag]:
    from penstock.client.sync import Admin, PullConsumer

    found: list[QueueLag] = []
    with Admin(namesrv) as admin, PullConsumer("TOOLS_CONSUMER", namesrv) as reader:
        for name in [group] if group else sorted(admin.groups.configs()):
            found += _group_lag(admin, reader, name)
    return found


def _group_lag(admin: Admin, reader: PullConsumer, group: str) -> list[QueueLag]:
    try:
        progress = admin.groups.progress(group)
    except Refused:  # a group that has never consumed has no progress
        return []
    found = []
    stats = {topic: admin.topics.stats(topic) for topic in {each.queue.topic for each in progress.queues}}
    for each in progress.queues:
        queue_stats = stats[each.queue.topic].get(each.queue)
        low = 0 if queue_stats is None else queue_stats.min_offset
        first = max(each.consumer_offset, low)
        found.append(
            QueueLag(
                broker=each.queue.broker_name,
                group=group,
                topic=each.queue.topic,
                queue_id=each.queue.queue_id,
                min_offset=low,
                max_offset=each.broker_offset,
                consumer_offset=each.consumer_offset,
                last_consumed_ms=max(each.last_timestamp, 0),
                oldest_unread_ms=_time_at(reader, each.queue, first) if first < each.broker_offset else 0,
                newest_ms=0 if queue_stats is None else queue_stats.last_update_timestamp,
            )
        )
    return found


def _time_at(reader: PullConsumer, queue: MessageQueue, offset: int) -> int:
    messages = reader.pull(queue, offset, max_messages=1).messages
    return messages[0].store_timestamp if messages else 0
