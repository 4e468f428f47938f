"""`penstock serve` as a process of our own, which can be stopped, and killed as a crash would.

Owns the process and its log file; whoever makes one closes it. A second start listens where the first one did, so that
clients find it again.


A shop: what it sends, which of that was acknowledged, and what two groups of consumers have seen.

Everything goes through RocketMQ's protocol, with `penstock.client`. An order and its payment have the same key.
Whatever is not acknowledged is sent again, as any careful producer would; what is counted are acknowledgements, by the
unique key that the producer gives each message. Safe for threads.


What the steps of the demo share, and what came of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from penstock.client.message import Message, ReceivedMessage
from penstock.client.producer import ProducerOptions
from penstock.client.push_consumer import PushOptions
from penstock.client.sync import Producer, PushConsumer
from penstock.errors import NoAnswer, NoRoute, PenstockError, Refused, Unreachable

if TYPE_CHECKING:
    from penstock.pipeline.jobs.usage import Usage

_ANY: Final = "127.0.0.1:0"
_STOP_S: Final = 30


class BrokerProcess:
    """One broker with its name server, on one store. Used from one thread."""

    def __init__(self, store: Path, log: Path) -> None:
        self.store = store
        self.address = _ANY
        self.namesrv = _ANY
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The number of the process that runs; 0 if none does."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when it serves. Raises PenstockError if it does not."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--console", "off", "--json"]
        command += ["--store", str(self.store), "--listen", self.address, "--namesrv", self.namesrv]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise PenstockError(f"the broker did not start; its last words: {self._last_words()}", path=self._log)
        told = json.loads(line)
        self.address, self.namesrv = told["broker"], told["namesrv"]

    def kill(self) -> None:
        """Ends it with SIGKILL: nothing of it gets a chance to put anything in order."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> int:
        """Asks it to stop, as an operator would; its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise PenstockError(f"the broker did not stop within {_STOP_S} seconds, and was killed") from None
        finally:
            process.stdout.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "none"


TOPICS: Final = {"orders": 4, "payments": 4}
"""With their numbers of queues."""
GROUPS: Final = {"billing": {"orders": "*", "payments": "*"}, "fraud-check": {"payments": "card"}}
"""Each consumer group's subscriptions."""
_AT_ONCE: Final = 6
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.1
_WAYS_TO_PAY: Final = ("card", "transfer", "card", "voucher")
_GOODS: Final = ("shirts", "shoes", "hats", "coats", "socks")


class Ledger:
    """What is known for certain: which messages a broker has acknowledged, and when; and what a group has seen."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.acked: dict[str, dict[str, str]] = {topic: {} for topic in TOPICS}
        """Of each topic, tags by unique key."""
        self.unanswered = 0
        """Sends without an answer; they were sent again."""
        self.seen: dict[str, Counter[str]] = {group: Counter() for group in GROUPS}
        """Of each group, how often it was given which unique key."""
        self.moments: dict[str, list[float]] = {"acknowledged": [], **{group: [] for group in GROUPS}}
        """Seconds since the beginning at which something happened."""
        self._changed = threading.Condition()

    @property
    def now(self) -> float:
        return time.monotonic() - self.begun

    @property
    def count(self) -> int:
        """Messages that were acknowledged."""
        return sum(len(keys) for keys in self.acked.values())

    def acknowledge(self, message: Message, unique_key: str) -> None:
        with self._changed:
            self.acked[message.topic][unique_key] = message.tags
            self.moments["acknowledged"].append(self.now)
            self._changed.notify_all()

    def miss(self) -> None:
        with self._changed:
            self.unanswered += 1
            self._changed.notify_all()

    def see(self, group: str, unique_key: str) -> None:
        with self._changed:
            self.seen[group][unique_key] += 1
            self.moments[group].append(self.now)
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> bool:
        """Whether something came true in time; it is asked after each change, and may read the ledger."""
        with self._changed:
            return self._changed.wait_for(until, _PATIENCE_S)

    def due(self, group: str) -> set[str]:
        """The unique keys that a group must see, of all that were acknowledged."""
        return {
            key
            for topic, expression in GROUPS[group].items()
            for key, tag in self.acked[topic].items()
            if expression in ("*", tag)
        }


class Shop:
    """Sells, several orders at once; `close` ends it."""

    def __init__(self, namesrv: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._producer = Producer("shop", namesrv, options=ProducerOptions(timeout_s=2.0, retries=0))
        self._threads = ThreadPoolExecutor(_AT_ONCE, "penstock shop")
        self._closed = threading.Event()

    def sell(self, first: int, count: int) -> list[Future[None]]:
        """Begins to sell orders with these numbers; each is done when it and its payment are acknowledged."""
        return [self._threads.submit(self._sell, number) for number in range(first, first + count)]

    def close(self) -> None:
        """Ends it; does nothing the second time."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        self._producer.close()

    def _sell(self, number: int) -> None:
        key, goods, amount = f"order_{number}", _GOODS[number % len(_GOODS)], number % 90 + 9
        self._send("orders", key, "created", {"order": number, "goods": goods, "amount": amount})
        paid = _WAYS_TO_PAY[number % len(_WAYS_TO_PAY)]
        self._send("payments", key, paid, {"order": number, "paid": amount, "by": paid})

    def _send(self, topic: str, key: str, tags: str, body: dict[str, object]) -> None:
        message = Message(topic, json.dumps(body).encode(), keys=(key,), tags=tags)
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._ledger.acknowledge(message, self._producer.send(message).msg_id)
            except (NoAnswer, NoRoute, Refused, Unreachable):
                self._ledger.miss()
                if time.monotonic() > give_up:
                    raise
                if self._closed.wait(_PAUSE_S):
                    raise PenstockError("the shop was closed before everything was sold") from None
            else:
                return


def consumer(group: str, namesrv: str, ledger: Ledger) -> PushConsumer:
    """A consumer of a group, from the topics' beginning on; to be closed by who asked for it."""

    async def handle(message: ReceivedMessage) -> None:
        ledger.see(group, message.msg_id)

    options = PushOptions(consume_from="first")
    return PushConsumer(group, handle, namesrv, subscriptions=GROUPS[group], options=options)


class StepFailed(Exception):
    """A step did not do what it was to show; the text says what instead."""


class StepSkipped(Exception):
    """A step cannot be shown here; the text says why."""


class StepState(StrEnum):
    """What came of a step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepResult(msgspec.Struct, frozen=True):
    """A step that is over."""

    name: str
    title: str
    state: StepState
    seconds: float
    says: str
    """One sentence: what was seen, or what went wrong, or why it was left out."""
    figures: dict[str, Any] = {}


@dataclass
class Scene:
    """The broker, the shop and what they left, as far as the steps have come. Belongs to the thread that runs them."""

    folder: Path
    orders: int
    broker: BrokerProcess
    opened: ExitStack
    """Closes everything that the steps have opened, in the right order."""
    tell: Callable[[str, int, int], None]
    """Is told what is being done, how much of it, and of how much."""
    ledger: Ledger = field(default_factory=Ledger)
    shop: Shop | None = None
    consumers: list[PushConsumer] = field(default_factory=list)
    sales: list[Future[None]] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)
    """Spans of time, in seconds since the beginning, in which the broker was not there."""
    killed_at: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """Of the step that runs."""
    streamed: list[tuple[str, str, int]] = field(default_factory=list)
    """(topic, tag, messages) as a streaming query counted them."""
    usage: Usage | None = None
    spark: Any = None

    @property
    def store(self) -> Path:
        return self.broker.store


def verdict(steps: Sequence[StepResult]) -> str:
    """What came of all of them together; a step that was left out did not check out."""
    failed = [step for step in steps if step.state is StepState.FAILED]
    if failed:
        return f"It stopped at: {failed[0].title}"
    skipped = [step for step in steps if step.state is StepState.SKIPPED]
    if skipped:
        return f"Every step that could be run checked out, and {len(skipped)} of {len(steps)} could not"
    return "Every step checked out"


def check(done: bool, otherwise: str) -> None:
    """Raises StepFailed unless it is done."""
    if not done:
        raise StepFailed(otherwise)
