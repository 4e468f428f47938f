"""What tests of writing with Spark share: rows that are told by their number, found where they were written."""

from __future__ import annotations

from store_home import StoreHome

from penstock.client.sync import PullConsumer
from penstock.testing import LocalBroker


def numbered(count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(count)]


def bodies(home: StoreHome, topic: str = "t") -> list[bytes]:
    """Of all queues of a topic, in the order of the log."""
    with home.open(read_only=True) as store:
        store.catch_up()
        queues = [queue.queue_id for queue in store.queues if queue.topic == topic]
        found = [record for queue in queues for record in home.read_queue(store, topic, queue)]
    return [record.body for record in sorted(found, key=lambda record: record.physical_offset)]


def in_cluster(b: LocalBroker, topic: str = "t") -> dict[str, list[bytes]]:
    """The bodies of a topic by their unique key."""
    b.settle()
    found: dict[str, list[bytes]] = {}
    with PullConsumer("looking", b.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset, end = 0, consumer.offsets.max_offset(queue)
            while offset < end:
                page = consumer.pull(queue, offset)
                for message in page.messages:
                    found.setdefault(message.msg_id, []).append(message.body)
                offset = page.next_offset
    return found
