"""The rows: sends to a master whose slave follows, how long answers take, and a slave that has to catch up."""

from __future__ import annotations

import time

from bench.broker.rows import AS_FAST
from bench.harness import Goal, Row, Run, Scenario
from bench.replication.logs import wait_until_equal
from bench.replication.pairs import BODY, Pairs, PairSizes, Role

_NAMES: dict[Role, str] = {"SYNC_MASTER": "sync", "ASYNC_MASTER": "async"}


class OnPair(Scenario):
    """A row of a master and a slave that are up."""

    def __init__(self, ours: Pairs, sizes: PairSizes, role: Role) -> None:
        self._ours = ours
        self.sizes = sizes.load
        self.role = role
        self.name = _NAMES[role]

    def ours(self) -> Run:
        return self.round(self._ours)

    def java(self, peer: Pairs) -> Run:
        return self.round(peer)

    def round(self, pairs: Pairs) -> Run:
        raise NotImplementedError


class Send(OnPair):
    """Single messages of 1 KB, so many in flight; under ASYNC_MASTER also when the slave had all of them."""

    group = "send"

    def __init__(self, ours: Pairs, sizes: PairSizes, role: Role, window: int) -> None:
        super().__init__(ours, sizes, role)
        self._window = window
        title = f"{role}, send, 1 KB, {window} in flight"
        self._sent = Row(f"{self.name}-send-{window}", title, "messages/s", AS_FAST, field="publishRate")
        self._copied = Row(f"{self.name}-copied-{window}", f"{title}, until the slave has all", "messages/s", AS_FAST)
        self.rows = (self._sent, self._copied) if role == "ASYNC_MASTER" else (self._sent,)

    def round(self, pairs: Pairs) -> Run:
        count = self.sizes.one_by_one if self._window == 1 else self.sizes.many
        side = pairs.side(self.role)
        done = side.ask(do="send", topic="sends", body=BODY, count=count, window=self._window)
        ended = time.perf_counter()
        pair = pairs.pairs[self.role]
        late = max(wait_until_equal(pair.master_log, pair.slave_log) - ended, 0.0)
        figures = {self._sent.name: count / done["seconds"], self._copied.name: count / (done["seconds"] + late)}
        return Run(figures, {"messages": int(done["replies"])})


class Latency(OnPair):
    """From a send to its answer, at a fixed rate."""

    group = "latency"

    def __init__(self, ours: Pairs, sizes: PairSizes, role: Role) -> None:
        super().__init__(ours, sizes, role)
        self.rows = tuple(
            Row(
                f"{self.name}-{field}",
                f"{role}, send to answer, 1 KB, {sizes.load.rate:,}/s: {part}",
                "ms",
                AS_FAST,
                less_is_better=True,
                field=field,
            )
            for field, part in (("publishLatency50pct", "p50"), ("publishLatency99pct", "p99"))
        )

    def round(self, pairs: Pairs) -> Run:
        rate, seconds, side = self.sizes.rate, self.sizes.seconds, pairs.side(self.role)
        done = side.ask(do="paced", topic=side.new_topic(), body=BODY, rate=rate, seconds=seconds)
        return Run({row.name: done[row.field] for row in self.rows}, {"messages": int(rate * seconds)})


class CatchUp(Scenario):
    """A slave is started that lacks nearly all of its master's log."""

    group = "catch-up"

    def __init__(self, ours: Pairs, sizes: PairSizes) -> None:
        self._ours = ours
        self._messages = sizes.behind
        self.rows = (
            Row("catch-up-rate", "catch-up, 2 GB of 1 KB, from the first byte on", "GB/s", Goal("ratio at least", 2)),
            Row("catch-up-time", "catch-up, 2 GB, from the slave's start to equal logs", "s", less_is_better=True),
        )

    def ours(self) -> Run:
        return self._round(self._ours)

    def java(self, peer: Pairs) -> Run:
        return self._round(peer)

    def _round(self, pairs: Pairs) -> Run:
        lacked, waited, took = pairs.behind().catch_up()
        return Run({"catch-up-rate": lacked / took / 1e9, "catch-up-time": waited + took}, {"messages": self._messages})
