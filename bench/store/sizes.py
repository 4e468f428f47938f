"""How much of everything: the full sizes, and small ones that only show that it runs."""

from __future__ import annotations

import msgspec

from penstock.format.index_layout import IndexGeometry

_MIB = 1 << 20
_QUEUE_FILES = 64 * _MIB
"""More than the consume queues of any store here take."""


class Sizes(msgspec.Struct, frozen=True):
    """Numbers of messages are multiples of 32, so that lists of 32 store the same ones."""

    log_file: int
    index: IndexGeometry
    messages: dict[int, int]
    """Messages of a store, by the size of their bodies."""
    sync_messages: int
    sync_messages_in_flight: int
    got: int
    """Messages that a round of get reads."""
    queries: int
    warm_up: int
    """Messages that Java puts, lists, gets and queries before anything counts."""

    @property
    def disk_need(self) -> int:
        """Four stores that are read, of two sizes and two sides; a fifth being written, with one log file ahead."""
        derived = self.index.file_size + _QUEUE_FILES
        return 5 * (self.log_file + derived) + self.log_file


FULL = Sizes(
    log_file=1 << 30,
    index=IndexGeometry(1_000_000, 4_000_000),
    messages={1024: 400_000, 100: 1_000_000},
    sync_messages=1_000,
    sync_messages_in_flight=8_000,
    got=400_000,
    queries=40_000,
    warm_up=400_000,
)
QUICK = Sizes(
    log_file=64 * _MIB,
    index=IndexGeometry(10_000, 40_000),
    messages={1024: 8_000, 100: 8_000},
    sync_messages=32,
    sync_messages_in_flight=128,
    got=8_000,
    queries=500,
    warm_up=8_000,
)
