"""The result of a diff by place or by key. Plain values."""

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
    """A queue's key, the same on both sides."""

    topic: str
    queue_id: int


class MessagePosition(msgspec.Struct, frozen=True, order=True):
    """A message's position in its topic."""

    queue_id: int
    queue_offset: int


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A message without an equal at its position. `a` and `b` are its positions, or None if that side lacks it."""

    kind: str
    topic: str
    a: MessagePosition | None = None
    b: MessagePosition | None = None
    unique_key: str = ""
    what: str = ""
    """The reason why the message cannot be read; empty if it can be read."""

    @property
    def queue_id(self) -> int:
        """The queue for which the difference counts: the queue on side a or, if side a lacks the message, on side b."""
        position = self.a or self.b
        assert position is not None, "a message is somewhere"
        return position.queue_id

    @property
    def order(self) -> tuple[str, MessagePosition, str]:
        """The sort key: topic, position, kind."""
        position = self.a or self.b
        assert position is not None, "a message is somewhere"
        return self.topic, position, self.kind


class QueueDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one queue. `a` and `b` are the queue's minimum and maximum offset on each side, or None."""

    topic: str
    queue_id: int
    a: tuple[int, int] | None
    b: tuple[int, int] | None
    same: int = 0
    counts: dict[str, int] = {}

    @property
    def begins_later(self) -> int:
        """The number of messages by which side b begins later than side a; negative if side a begins later."""
        return self.b[0] - self.a[0] if self.a and self.b else 0

    @property
    def behind(self) -> int:
        """The number of messages by which side b ends before side a; negative if side a ends first."""
        return self.a[1] - self.b[1] if self.a and self.b else 0

    @property
    def one_sided(self) -> bool:
        """Whether only one side has the queue, and the queue has messages."""
        only = self.a if self.b is None else self.b if self.a is None else None
        return only is not None and only[1] > only[0]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diff. `examples` are the first differences by position."""

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
