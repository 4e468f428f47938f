"""What the tests of reading from a cluster share: brokers with messages in them, and reads of whole places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.client.sync import Message, Producer
from penstock.format.arrow_schema import MESSAGE_SCHEMA
from penstock.pipeline.cluster_link import ClusterAccess
from penstock.pipeline.cluster_place import ClusterPlace
from penstock.pipeline.options import Options
from penstock.pipeline.places import Page, Task
from penstock.pipeline.ranges import Queue, Span
from penstock.testing import LocalBroker

ALL = tuple(MESSAGE_SCHEMA.names)


def send(b: LocalBroker, messages: Iterable[Message]) -> None:
    """Sends in batches, one topic at a time; all of it can be read afterwards."""
    by_topic: dict[str, list[Message]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    with Producer("PID", b.namesrv) as producer:
        for group in by_topic.values():
            for first in range(0, len(group), 50):
                producer.send_batch(group[first : first + 50])
    b.settle()


def place_of(b: LocalBroker, **options: str) -> ClusterPlace:
    return ClusterPlace(Options.read({"namesrv": b.namesrv, **options}))


def access_to(namesrv: str, patience_s: float = 30.0) -> ClusterAccess:
    return ClusterAccess(namesrv, "TOOLS_CONSUMER", patience_s=patience_s)


def whole(place: ClusterPlace, *topics: str) -> list[Span]:
    """Everything that the queues of some topics hold."""
    return [Span(queue, *place.bounds(queue)) for queue in place.queues(topics)]


def read(task: Task, columns: Sequence[str] = ALL) -> list[Page]:
    return list(task.pages(columns))


def rows(pages: Iterable[Page], column: str) -> list[object]:
    return [value for page in pages for value in page.batch.column(column).to_pylist()]


def places(pages: Iterable[Page]) -> list[Queue | tuple[Queue, int]]:
    """The queue and the queue offset of every row, in order."""
    return [
        (Queue(topic, page.broker, queue_id), offset)
        for page in pages
        for topic, queue_id, offset in zip(
            *(page.batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset")), strict=True
        )
    ]


def table(pages: Iterable[Page]) -> pa.Table:
    return pa.Table.from_batches([page.batch for page in pages])
