"""The result of a diff by messages. Values only."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

DIFFERENT: Final = "different"
MOVED: Final = "moved"
ONLY_A: Final = "only_a"
ONLY_B: Final = "only_b"
UNREADABLE_A: Final = "unreadable_a"
UNREADABLE_B: Final = "unreadable_b"
KINDS: Final = (DIFFERENT, ONLY_A, ONLY_B, MOVED, UNREADABLE_A, UNREADABLE_B)


class QueueKey(NamedTuple):
    """A queue on either side."""

    topic: str
    queue_id: int


class MessagePosition(msgspec.Struct, frozen=True, order=True):
    """A message's position in its topic."""

    queue_id: int
    queue_offset: int


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A message without an equal at its position, and its position on each side, None if it is missing there."""

    kind: str
    topic: str
    a: MessagePosition | None = None
    b: MessagePosition | None = None
    unique_key: str = ""
    what: str = ""
    """Why it cannot be read; empty otherwise."""

    @property
    def queue_id(self) -> int:
        """The queue that it counts for: the first side's, if the message exists there."""
        position = self.a or self.b
        assert position is not None, "a message is somewhere"
        return position.queue_id

    @property
    def order(self) -> tuple[str, MessagePosition, str]:
        """Sort key: by position."""
        position = self.a or self.b
        assert position is not None, "a message is somewhere"
        return self.topic, position, self.kind


class QueueDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One queue on both sides. A range is the first offset and the one that the next message gets."""

    topic: str
    queue_id: int
    a: tuple[int, int] | None
    b: tuple[int, int] | None
    same: int = 0
    counts: dict[str, int] = {}

    @property
    def begins_later(self) -> int:
        """How many messages later the second side begins than the first; negative if the first does."""
        return self.b[0] - self.a[0] if self.a and self.b else 0

    @property
    def behind(self) -> int:
        """How many messages sooner the second side ends than the first; negative if the first does."""
        return self.a[1] - self.b[1] if self.a and self.b else 0

    @property
    def one_sided(self) -> bool:
        """Whether only one side has the queue, with messages in it."""
        only = self.a if self.b is None else self.b if self.a is None else None
        return only is not None and only[1] > only[0]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `examples` are the first differences by position."""

    a: str
    b: str
    by: str
    up_to_common_end: bool
    queues: list[QueueDiff]
    examples: list[Difference]

    def count(self, kind: str) -> int:
        return sum(queue.counts.get(kind, 0) for queue in self.queues)

    @property
    def same(self) -> bool:
        """Whether the sides are equal. By key, a moved message is equal."""
        if any(self.count(kind) for kind in KINDS if kind != MOVED or self.by != "key"):
            return False
        if self.by == "key":
            return True
        if any(queue.one_sided for queue in self.queues):
            return False
        return self.up_to_common_end or not any(queue.behind for queue in self.queues)
