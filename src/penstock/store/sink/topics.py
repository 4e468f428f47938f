"""The topics that a batch is written to: how many queues they have, and `config/topics.json` for those that are new.

The table is read by anybody and changed by the owner of the store only, who adds to it before the batch is appended: a
topic without messages does no harm, messages without a topic would wait until a broker finds them at its next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.errors import BadMessage
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.store.config_files import ConfigFiles
from penstock.store.files import Files
from penstock.store.layout import Layout

_MAY_WRITE: Final = 2


class TopicQueues(msgspec.Struct, frozen=True):
    """How many queues each topic has. May be pickled."""

    known: dict[str, int]
    """Of the topics in the table; 0 for one that may not be written to."""
    of_new_topics: int

    def count(self, topic: str) -> int:
        """The queues that may be written to. Raises BadMessage if none may."""
        found = self.known.get(topic)
        if found is None:
            return 1 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else self.of_new_topics
        if not found:
            raise BadMessage(f"topic '{topic}' may not be written to: config/topics.json says so")
        return found

    def check(self, topic: str, queue_id: int) -> None:
        """Raises BadMessage if a topic has no such queue."""
        count = self.count(topic)
        if not 0 <= queue_id < count:
            new = "" if topic in self.known else ", as new topics have (defaultTopicQueueNums)"
            raise BadMessage(f"topic '{topic}' has {count} queues{new}, and no queue {queue_id}")


def read_topic_queues(files: Files, layout: Layout, of_new_topics: int) -> TopicQueues:
    """What the table says. Raises BadStore if it cannot be read."""
    topics = ConfigFiles(files, layout.config).topics.read().table.topics
    known = {topic.name: topic.write_queue_nums if topic.perm & _MAY_WRITE else 0 for topic in topics.values()}
    return TopicQueues(known, of_new_topics)


def make_topics(files: Files, layout: Layout, used: Mapping[str, int], of_new_topics: int, now: int) -> None:
    """Makes those of the topics that are new; `used` has the highest queue id of each.

    Raises BadMessage if a topic has no such queue, BadStore or StoreFailed if the table cannot be read or written.
    """
    queues = read_topic_queues(files, layout, of_new_topics)
    for topic, highest in used.items():
        queues.check(topic, highest)
    new = sorted(used.keys() - queues.known.keys())
    if new:
        file = ConfigFiles(files, layout.config).topics
        table = file.read().table
        for topic in new:
            count = queues.count(topic)
            table.topics[topic] = TopicConfig(name=topic, read_queue_nums=count, write_queue_nums=count)
        table.version = table.version.next(now)
        file.write(table)
