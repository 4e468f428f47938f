"""What a round needs: a broker of either side that is up and warm, and orders to the load generator.

Brokers run for the whole suite. One whose store has grown past a limit is started anew on an empty one, so that the
disk that a run needs does not depend on the number of rounds; it then warms up again first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench import PROJECT
from bench.broker.processes import Penstock
from bench.harness import BenchFailed

_MIB = 1 << 20
_MOST_SECONDS = 300


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    one_by_one: int
    """Messages with one in flight."""
    many: int
    """Messages in all other rounds; a multiple of 32 pages of 4 queues."""
    passes: int
    """How often the consumer reads all of them."""
    rate: int
    seconds: float
    """Of the latency rows."""
    warm_up: int
    """Messages of each kind before anything counts; none if 0."""
    log_file: int
    store_limit: int
    """Bytes of a store from which on it is begun anew."""

    @property
    def disk_need(self) -> int:
        """Two stores with the round that passes the limit, and the short-lived one of a start."""
        return 2 * (self.store_limit + 2 * self.log_file) + self.log_file + 512 * _MIB

    def settings(self) -> dict[str, object]:
        """By RocketMQ's names, for both sides: its defaults but for smaller index files and a slow disk's sake."""
        return {
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": self.log_file,
            "maxHashSlotNum": 1_000_000,
            "maxIndexNum": 4_000_000,
            "osPageCacheBusyTimeOutMills": 60_000,
        }


FULL = Sizes(
    one_by_one=20_000,
    many=102_400,
    passes=4,
    rate=2_000,
    seconds=10,
    warm_up=204_800,
    log_file=1024 * _MIB,
    store_limit=3 * 1024 * _MIB,
)
QUICK = Sizes(
    one_by_one=200,
    many=1_280,
    passes=1,
    rate=500,
    seconds=0.4,
    warm_up=0,
    log_file=32 * _MIB,
    store_limit=1024 * _MIB,
)


class Served(Protocol):
    """A broker, or several that take messages as one."""

    port: int

    def start(self) -> float:
        """On a new store."""

    def disk_bytes(self) -> int:
        """What it takes on disk."""

    def stop(self) -> None:
        """Ends it, and removes what it wrote."""


class Side:
    """One broker for the whole suite."""

    def __init__(self, broker: Served, sizes: Sizes) -> None:
        self._broker = broker
        self._sizes = sizes
        self._topics = 0
        self._filled: dict[int, str] = {}
        self._is_up = False

    def broker(self) -> Served:
        """It, running, with room for one more round."""
        if self._is_up and self._broker.disk_bytes() > self._sizes.store_limit:
            self.stop()
        if not self._is_up:
            self._broker.start()
            self._is_up = True
            if self._sizes.warm_up:
                self.warm_up(self._sizes.warm_up)
        return self._broker

    def warm_up(self, count: int) -> None:
        """A little of everything."""
        for do, body, window in (("send", 128, 64), ("send", 1024, 16), ("batch", 128, 16)):
            self._ask(do=do, topic="sends", body=body, count=count, window=window, messages=32)
        self._ask(do="send", topic="sends", body=128, count=self._sizes.one_by_one, window=1)
        self._ask(do="pull", topic=self.filled(1024), count=self._sizes.many, passes=2, window=16)

    def new_topic(self) -> str:
        self._topics += 1
        return f"bench-{self._topics}"

    def filled(self, body: int) -> str:
        """A topic that holds `many` messages of a size and is sent nothing more."""
        self.broker()
        if body not in self._filled:
            self._filled[body] = self.new_topic()
            self._ask(do="send", topic=self._filled[body], body=body, count=self._sizes.many, window=64)
        return self._filled[body]

    def ask(self, **job: Any) -> dict[str, float]:
        """Has the generator do something with this side's broker."""
        self.broker()
        return self._ask(**job)

    def _ask(self, **job: Any) -> dict[str, float]:
        return generate(port=self._broker.port, **job)

    def stop(self) -> None:
        self._broker.stop()
        self._is_up = False
        self._filled.clear()


def generate(**job: Any) -> dict[str, float]:
    """Runs the load generator. Raises BenchFailed with what went wrong."""
    order = [sys.executable, "-m", "bench.broker.generator", json.dumps(job)]
    try:
        done = subprocess.run(order, cwd=PROJECT, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"the load did not end within {_MOST_SECONDS} s") from None
    if not done.stdout.strip():
        raise BenchFailed(f"the load generator failed: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "failed" in answer:
        raise BenchFailed(str(answer["failed"]))
    return answer


def our_broker(folder: Path, sizes: Sizes) -> Penstock:
    return Penstock(folder, sizes.settings())
