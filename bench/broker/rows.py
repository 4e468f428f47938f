"""The rows: what is sent, consumed, waited for and held in memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from bench import PROJECT
from bench.broker.frames import PAGE, send_frame
from bench.broker.processes import BrokerProcess
from bench.broker.sides import Side, Sizes, generate
from bench.harness import Goal, Row, Run, Scenario

AS_FAST = Goal("ratio at least", 1)
BODIES = {128: "128 B", 1024: "1 KB"}
_IDS = {128: "128b", 1024: "1k"}
_BATCH = 32
_WINDOW = 16
_SETTLE_S = 1.0


class OnBroker(Scenario):
    """A row of a broker that is up."""

    def __init__(self, ours: Side, sizes: Sizes) -> None:
        self._ours = ours
        self.sizes = sizes

    def ours(self) -> Run:
        return self.round(self._ours)

    def java(self, peer: Side) -> Run:
        return self.round(peer)

    def round(self, side: Side) -> Run:
        raise NotImplementedError


class Send(OnBroker):
    """Single messages, so many in flight on one connection."""

    group = "send"

    def __init__(self, ours: Side, sizes: Sizes, body: int, window: int) -> None:
        super().__init__(ours, sizes)
        self._body, self._window = body, window
        name, title = f"send-{_IDS[body]}-{window}", f"send, {BODIES[body]}, {window} in flight"
        self.rows = (Row(name, title, "messages/s", AS_FAST, field="publishRate"),)

    def round(self, side: Side) -> Run:
        count = self.sizes.one_by_one if self._window == 1 else self.sizes.many
        done = side.ask(do="send", topic="sends", body=self._body, count=count, window=self._window)
        return Run({self.rows[0].name: count / done["seconds"]}, {"messages": int(done["replies"])})


class SendBatches(OnBroker):
    """Code 320: 32 messages in one request."""

    group = "batch"
    rows = (Row("batch-128b", "send batches of 32, 128 B, 16 in flight", "messages/s", AS_FAST, field="publishRate"),)

    def round(self, side: Side) -> Run:
        count = self.sizes.many
        done = side.ask(do="batch", topic="sends", body=128, count=count, messages=_BATCH, window=_WINDOW)
        return Run({self.rows[0].name: count / done["seconds"]}, {"batches": int(done["replies"])})


class Consume(OnBroker):
    """Pulls of 32 from a topic that was filled before; four queues in turns."""

    group = "consume"

    def __init__(self, ours: Side, sizes: Sizes, body: int) -> None:
        super().__init__(ours, sizes)
        self._body = body
        self.rows = (
            Row(
                f"consume-{_IDS[body]}",
                f"consume, {BODIES[body]}, pulls of 32, 16 in flight",
                "messages/s",
                AS_FAST,
                field="consumeRate",
            ),
        )

    def round(self, side: Side) -> Run:
        count, passes = self.sizes.many, self.sizes.passes
        done = side.ask(do="pull", topic=side.filled(self._body), count=count, passes=passes, window=_WINDOW)
        messages = count * passes
        found = {"pulls": int(done["replies"]), "body bytes": int(done["body_bytes"])}
        return Run({self.rows[0].name: messages / done["seconds"]}, found)


class Latency(OnBroker):
    """A producer at a fixed rate and a consumer that waits."""

    group = "latency"

    def __init__(self, ours: Side, sizes: Sizes) -> None:
        super().__init__(ours, sizes)
        parts = {"50pct": "p50", "99pct": "p99", "999pct": "p99.9"}
        kinds = {"endToEndLatency": ("end to end", AS_FAST), "publishLatency": ("send to answer", None)}
        self.rows = tuple(
            Row(
                f"{kind}{part}",
                f"{title}, 1 KB, {sizes.rate:,}/s: {name}",
                "ms",
                goal,
                less_is_better=True,
                field=f"{kind}{part}",
            )
            for kind, (title, goal) in kinds.items()
            for part, name in parts.items()
        )

    def round(self, side: Side) -> Run:
        rate, seconds = self.sizes.rate, self.sizes.seconds
        done = side.ask(do="paced", topic=side.new_topic(), body=1024, rate=rate, seconds=seconds)
        return Run({row.name: done[row.field] for row in self.rows}, {"messages": int(rate * seconds)})


class Start(Scenario):
    """A new process on a new store, up to its first answer; and the memory that it then holds, idle."""

    group = "start"
    rows = (
        Row(
            "start",
            "start to first acknowledged message",
            "s",
            Goal("at most", 1.5),
            less_is_better=True,
        ),
        Row(
            "idle-memory",
            "idle memory",
            "bytes",
            Goal("at most", 200e6),
            less_is_better=True,
        ),
    )

    def __init__(self, ours: BrokerProcess, java: Callable[[], BrokerProcess]) -> None:
        self._ours, self._java = ours, java

    def ours(self) -> Run:
        return self._round(self._ours)

    def java(self, peer: Side) -> Run:
        return self._round(self._java())

    def _round(self, broker: BrokerProcess) -> Run:
        try:
            took = broker.start()
            time.sleep(_SETTLE_S)
            return Run({"start": took, "idle-memory": broker.memory()}, {"messages": 1})
        finally:
            broker.stop()


class Ceiling(Scenario):
    """The load generator with a server that only answers: no broker could be seen to be faster than this."""

    group = "generator"

    def __init__(self, sizes: Sizes, name: str, title: str, *, window: int, reply: int = 0) -> None:
        self._sizes, self._window, self._reply = sizes, window, reply
        self.rows = (Row(name, title, "messages/s"),)

    def ours(self) -> Run:
        request = len(send_frame("sink", 0, bytes(128), 100_000))
        order = [sys.executable, "-m", "bench.broker.sink", str(request), str(self._reply)]
        count = self._sizes.one_by_one if self._window == 1 else self._sizes.many
        with subprocess.Popen(order, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as sink:
            try:
                assert sink.stdout is not None
                port = int(sink.stdout.readline())
                done = generate(do="send", topic="sink", port=port, body=128, count=count, window=self._window)
            finally:
                sink.kill()
        messages = count * (PAGE if self._reply else 1)
        return Run({self.rows[0].name: messages / done["seconds"]}, {"replies": int(done["replies"])})
