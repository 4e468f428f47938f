"""How far each group has consumed each queue: consumerOffset.json in memory.

An offset is the next one to consume. The file is written every few seconds, not at each commit: a crash brings back
offsets that are a few seconds old, and consumers see those messages again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.format.config_tables import ConsumerOffsets

log = logging.getLogger("penstock.broker")

NOT_FOUND = -1


class OffsetTable:
    """Offsets by topic and group, then by queue."""

    def __init__(self, loaded: ConsumerOffsets) -> None:
        self._offsets = loaded.offsets
        self._extra = loaded.extra
        self.changes = 0
        """Counts changes, so that an unchanged table need not be written."""

    # -- asking ----------------------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to consume, -1 if nothing was ever committed."""
        return self._offsets.get((topic, group), {}).get(queue_id, NOT_FOUND)

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """By topic and queue, all offsets of a group."""
        return {topic: dict(queues) for (topic, owner), queues in self._offsets.items() if owner == group}

    def of_queue(self, group: str, topic: str) -> dict[int, int]:
        """By queue, the offsets of a group in one topic."""
        return dict(self._offsets.get((topic, group), {}))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have committed something for a topic."""
        return sorted(group for name, group in self._offsets if name == topic)

    def snapshot(self) -> ConsumerOffsets:
        """What consumerOffset.json should say now."""
        return ConsumerOffsets(offsets={key: dict(queues) for key, queues in self._offsets.items()}, extra=self._extra)

    # -- changing --------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remembers an offset; a negative one says that there is nothing to remember."""
        if offset < 0 or queue_id < 0:
            return
        queues = self._offsets.setdefault((topic, group), {})
        before = queues.get(queue_id, NOT_FOUND)
        if offset == before:
            return
        if offset < before:
            log.warning("%s goes back in %s queue %d, from %d to %d", group, topic, queue_id, before, offset)
        queues[queue_id] = offset
        self.changes += 1

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Puts a group's offsets in some queues of a topic where an administrator wants them."""
        self._offsets.setdefault((topic, group), {}).update(offsets)
        self.changes += 1

    def take_over(self, offsets: ConsumerOffsets) -> None:
        """Becomes what a master's table is."""
        if offsets.offsets != self._offsets:
            self._offsets = {key: dict(queues) for key, queues in offsets.offsets.items()}
            self.changes += 1

    def clone(self, source: str, target: str, topic: str) -> None:
        """Gives one group what another has consumed of a topic."""
        offsets = self._offsets.get((topic, source))
        if offsets:
            self.reset(target, topic, offsets)

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self._offsets if key[1] == group])

    def remove_topic(self, topic: str) -> None:
        self._remove([key for key in self._offsets if key[0] == topic])

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
            self.changes += 1
