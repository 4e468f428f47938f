"""The stores that jobs go over: about four gigabytes of log at 1 KB, two at 100 B. Made once, closed, and only read."""

from __future__ import annotations

from pathlib import Path

from bench.spark.stores import Sizes, fill, settings_of
from bench.store.ground import HUNDRED, KILO
from penstock.format.index_layout import IndexGeometry

_MIB = 1 << 20

FULL = Sizes(
    messages={KILO: 3_600_000, HUNDRED: 9_000_000},
    pulled={},
    log_file=1024 * _MIB,
    index=IndexGeometry(1_000_000, 4_000_000),
)
QUICK = Sizes(
    messages={KILO: 3_000, HUNDRED: 6_000},
    pulled={},
    log_file=4 * _MIB,
    index=IndexGeometry(1_000, 4_000),
    topics=("orders", "payments"),
    queues=1,
)


class JobStores:
    """A store for each size of body, made when it is first asked for."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._made: set[int] = set()

    def path(self, body: int) -> Path:
        path = self._folder / f"bodies-{body}"
        if body not in self._made:
            fill(path, body, self._sizes.messages[body], self._sizes)
            self._made.add(body)
        return path

    def messages(self, body: int) -> int:
        return self._sizes.messages[body]

    def settings(self) -> list[str]:
        """`name=value`, by RocketMQ's names: an index file does not say its geometry."""
        return [f"{name}={value}" for name, value in settings_of(self._sizes).items()]
