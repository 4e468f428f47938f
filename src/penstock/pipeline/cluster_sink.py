"""Writes rows to a cluster, at least once: workers send the rows and wait for each ack. Needs pyarrow.

A retried task or a replayed batch sends its rows again. Each row therefore has a unique key (UNIQ_KEY), derived from
the write, the batch, the partition and the row's number. Consumers can drop duplicates by this key if the query yields
the same rows in the same order each time. Rows of one topic are sent in order, as batch messages if the broker allows
it. A batch message goes to one queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.client.message import Message
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Producer
from penstock.errors import BadMessage
from penstock.format.constants import RETRY_PREFIX, UNIQ_KEY
from penstock.pipeline.cluster_read_tasks import ClusterAccess
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import RowOrigin, WrittenRows, check_may_send
from penstock.protocol.bodies.queues import MessageQueue
from penstock.store.sink.journal import Identity

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES: Final = 128 << 10
"""The maximum bytes of a batch message. Brokers may limit a request to half a megabyte."""
_BATCH_ROWS: Final = 500
_TIMEOUT_S: Final = 3.0
_MIN_RETRIES: Final = 10


@dataclass(frozen=True)
class ClusterTarget:
    """The cluster to write to. Spark pickles it. Printing it shows no secret."""

    access: ClusterAccess
    group: str
    """The producer group."""

    @classmethod
    def of(cls, options: Options) -> ClusterTarget:
        """Returns the target that the options name.

        Raises BadSettings for an invalid address, or if only one of accessKey and secretKey is given.
        """
        access = ClusterAccess.of(options)
        access.config()
        return cls(access, options.producer_group)

    def send(self, identity: Identity, rows: WrittenRows, partition: int, batches: Iterable[pa.RecordBatch]) -> int:
        """Sends the rows of one task and returns their number. Raises BadMessage, or an error of `Producer.send`."""
        patience_s = max(self.access.patience_s, 1.0)
        options = ProducerOptions(timeout_s=patience_s, retries=max(_MIN_RETRIES, int(patience_s)))
        keys = UniqueKeys(identity, partition)
        count = 0
        with Producer(self.group, self.access.config(timeout_s=_TIMEOUT_S), options=options) as producer:
            sender = _Sender(producer)
            for batch in batches:
                origin = RowOrigin(partition, count)
                fields = rows.messages(batch, origin).to_pylist(maps_as_pydicts="lossy")
                sender.send(
                    [_message(each, keys.of(count + number), origin, number) for number, each in enumerate(fields)]
                )
                count += batch.num_rows
        return count


class UniqueKeys:
    """Deterministic unique keys for the rows of a task."""

    def __init__(self, identity: Identity, partition: int) -> None:
        seed = f"{identity.kind} {identity.name} {identity.batch_id} {partition}"
        self._seed = hashlib.sha256(seed.encode("utf-8", "surrogatepass"))

    def of(self, row: int) -> str:
        """Returns the key of row number `row`: 32 hex digits, like RocketMQ's, with zeros for the time of creation."""
        hashed = self._seed.copy()
        hashed.update(row.to_bytes(8, "big"))
        digits = hashed.hexdigest().upper()
        return f"{digits[:20]}00000000{digits[20:24]}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A message with its row's queue id, or None, and the origin and number of the row for errors."""

    message: Message
    queue_id: int | None
    origin: RowOrigin
    number: int

    @property
    def goes_alone(self) -> bool:
        """Whether the message cannot be part of a batch message."""
        message = self.message
        is_large = len(message.body) > _BATCH_BYTES
        return is_large or message.is_delayed or message.topic.startswith(RETRY_PREFIX)

    @property
    def size(self) -> int:
        return len(self.message.body) + sum(map(len, self.message.all_properties().values())) + 100


def _message(fields: dict[str, Any], unique_key: str, origin: RowOrigin, number: int) -> _Row:
    properties = {name: value for name, value in (fields.get("properties") or {}).items() if value is not None}
    properties.setdefault(UNIQ_KEY, unique_key)
    keys, body, level = fields.get("keys") or (), fields["body"], fields.get("delay_level") or 0
    if not isinstance(keys, str):
        keys = [key for key in keys if key is not None]
    try:
        check_may_send(fields["topic"])
        message = Message(
            fields["topic"],
            body.encode() if isinstance(body, str) else body,
            tags=fields.get("tags") or "",
            keys=keys,
            properties=properties,
            delay_level=level,
        )
    except BadMessage as error:
        raise origin.refused(number, str(error)) from None
    return _Row(message, fields.get("queue_id"), origin, number)


class _Sender:
    """Sends rows in order, as batch messages of at most `_BATCH_ROWS` rows and `_BATCH_BYTES`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._turn = 0

    def send(self, rows: list[_Row]) -> None:
        for group in _groups(rows):
            first = group[0]
            try:
                queue = self._queue(first)
                if len(group) == 1:
                    self._producer.send(first.message, queue=queue)
                else:
                    self._producer.send_batch([row.message for row in group], queue=queue)
            except BadMessage as error:
                raise first.origin.refused(first.number, str(error)) from None

    def _queue(self, row: _Row) -> MessageQueue | None:
        """Returns a queue with the row's queue id, or None if it has none. Alternates between brokers.

        Raises BadMessage if the topic has no writable queue with this id.
        """
        if row.queue_id is None:
            return None
        topic = row.message.topic
        queues = [queue for queue in self._producer.queues(topic) if queue.queue_id == row.queue_id]
        if not queues:
            raise BadMessage(f"topic '{topic}' has no queue {row.queue_id} that may be written to")
        self._turn += 1
        return queues[self._turn % len(queues)]


def _groups(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Yields groups of rows; one request sends a group. Rows of one topic and queue stay in order."""
    waiting: dict[tuple[str, int | None], list[_Row]] = {}
    sizes: dict[tuple[str, int | None], int] = {}
    for row in rows:
        key = (row.message.topic, row.queue_id)
        group = waiting.setdefault(key, [])
        if group and (row.goes_alone or len(group) >= _BATCH_ROWS or sizes[key] + row.size > _BATCH_BYTES):
            yield waiting.pop(key)
            group = waiting.setdefault(key, [])
        sizes[key] = (sizes[key] if group else 0) + row.size
        group.append(row)
        if row.goes_alone:
            yield waiting.pop(key)
    yield from waiting.values()
