"""The demo's actors: the broker as a child process, the shop that sends orders, two consumer groups, and the ledger.

All messages go through RocketMQ's protocol, with `penstock.client`. An order and its payment have the same key. The
shop sends a message again until it is acked. The ledger counts acks by the message's unique key (UNIQ_KEY).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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

_ANY_PORT: Final = "127.0.0.1:0"
_STOP_S: Final = 30


class BrokerProcess:
    """`penstock serve` on one store, as a child process that can be stopped, paused or killed. Not thread-safe.

    A restarted broker listens at the same addresses, so that clients reconnect. Ctrl-C at a terminal does not reach it:
    it ends when its owner ends it.
    """

    def __init__(self, store: Path, log: Path, *, namesrv: str = _ANY_PORT, options: Sequence[str] = ()) -> None:
        """`namesrv` is the address of its own name server, or `off`. `options` are further ones of `serve`."""
        self.store = store
        self.address = _ANY_PORT
        self.namesrv = namesrv
        self._options = options
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 if the broker is not running."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the broker and waits until it serves. Raises PenstockError if the broker does not start."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--console", "off", "--json"]
        command += ["--store", str(self.store), "--listen", self.address, "--namesrv", self.namesrv, *self._options]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise PenstockError(f"the broker did not start; its last log line: {self._last_line()}", path=self._log)
        addresses = json.loads(line)
        self.address, self.namesrv = addresses["broker"], addresses["namesrv"] or self.namesrv

    def pause(self) -> None:
        """Stops the process with SIGSTOP: it keeps its connections and answers nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the broker with SIGKILL, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def stop(self) -> int:
        """Stops the broker with SIGTERM. Returns its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _wait(self) -> int:
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

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "none"


TOPICS: Final = {"orders": 4, "payments": 4}
"""The topics, with their number of queues."""
GROUPS: Final = {"billing": {"orders": "*", "payments": "*"}, "fraud-check": {"payments": "card"}}
"""By group: the filter of each subscribed topic."""
_THREADS: Final = 6
_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.1
_PAYMENTS: Final = ("card", "transfer", "card", "voucher")
_GOODS: Final = ("shirts", "shoes", "hats", "coats", "socks")


class Ledger:
    """The acked messages, and the messages that each group received, with times. Thread-safe."""

    def __init__(self, topics: Iterable[str] = TOPICS, groups: Iterable[str] = GROUPS) -> None:
        groups = tuple(groups)
        self.started = time.monotonic()
        self.acked: dict[str, dict[str, str]] = {topic: {} for topic in topics}
        """By topic: the tag of each acked message, by its unique key, in the order of their acks."""
        self.unanswered = 0
        """The number of sends without an ack. The shop retries them."""
        self.received: dict[str, Counter[str]] = {group: Counter() for group in groups}
        """By group: how often each unique key was delivered."""
        self.times: dict[str, list[float]] = {"acknowledged": [], **{group: [] for group in groups}}
        """By kind of event: the time of each event, in seconds since the start."""
        self._changed = threading.Condition()

    @property
    def now(self) -> float:
        return time.monotonic() - self.started

    @property
    def count(self) -> int:
        """The number of acked messages."""
        return sum(len(keys) for keys in self.acked.values())

    def acknowledge(self, message: Message, unique_key: str) -> None:
        with self._changed:
            self.acked[message.topic][unique_key] = message.tags
            self.times["acknowledged"].append(self.now)
            self._changed.notify_all()

    def miss(self) -> None:
        with self._changed:
            self.unanswered += 1
            self._changed.notify_all()

    def receive(self, group: str, unique_key: str) -> None:
        with self._changed:
            self.received[group][unique_key] += 1
            self.times[group].append(self.now)
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> bool:
        """Waits until a condition holds; evaluates it after each change. Returns False after a timeout. `until` may
        read the ledger.
        """
        with self._changed:
            return self._changed.wait_for(until, _TIMEOUT_S)

    def due(self, group: str) -> set[str]:
        """Returns the unique keys of the acked messages that a group must receive."""
        return {
            key
            for topic, expression in GROUPS[group].items()
            for key, tag in self.acked[topic].items()
            if expression in ("*", tag)
        }


class Shop:
    """Sends orders and payments from several threads until `close`."""

    def __init__(self, namesrv: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._producer = Producer("shop", namesrv, options=ProducerOptions(timeout_s=2.0, retries=0))
        self._threads = ThreadPoolExecutor(_THREADS, "penstock shop")
        self._closed = threading.Event()

    def sell(self, first: int, count: int) -> list[Future[None]]:
        """Starts to sell `count` orders, numbered from `first`. Each future is done when its order and its payment are
        acked.
        """
        return [self._threads.submit(self._sell, number) for number in range(first, first + count)]

    def close(self) -> None:
        """Stops sending. Idempotent."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        self._producer.close()

    def _sell(self, number: int) -> None:
        key, goods, amount = f"order_{number}", _GOODS[number % len(_GOODS)], number % 90 + 9
        self._send("orders", key, "created", {"order": number, "goods": goods, "amount": amount})
        paid = _PAYMENTS[number % len(_PAYMENTS)]
        self._send("payments", key, paid, {"order": number, "paid": amount, "by": paid})

    def _send(self, topic: str, key: str, tags: str, body: dict[str, object]) -> None:
        message = Message(topic, json.dumps(body).encode(), keys=(key,), tags=tags)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self._ledger.acknowledge(message, self._producer.send(message).msg_id)
            except (NoAnswer, NoRoute, Refused, Unreachable):
                self._ledger.miss()
                if time.monotonic() > deadline:
                    raise
                if self._closed.wait(_RETRY_S):
                    raise PenstockError("the shop was closed before everything was sold") from None
            else:
                return


def consumer(group: str, namesrv: str, ledger: Ledger) -> PushConsumer:
    """Returns a consumer of a group that starts at the first offset. The caller must close it."""

    async def handle(message: ReceivedMessage) -> None:
        ledger.receive(group, message.msg_id)

    options = PushOptions(consume_from="first")
    return PushConsumer(group, handle, namesrv, subscriptions=GROUPS[group], options=options)


class StepFailed(Exception):
    """Raised when a check of a step fails. The text says which check."""


class StepSkipped(Exception):
    """Raised when a step cannot run on this machine. The text says why."""


class StepState(StrEnum):
    """How a step ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step."""

    name: str
    title: str
    state: StepState
    seconds: float
    summary: str
    """One sentence: the result, or why the step failed or was skipped."""
    figures: dict[str, Any] = {}


@dataclass
class Scene:
    """The state that the steps share. Not thread-safe: use it from the thread that runs the steps only."""

    folder: Path
    orders: int
    broker: BrokerProcess
    opened: ExitStack
    """Closes everything that the steps have opened, in reverse order."""
    progress: Callable[[str, int, int], None]
    """Called with the phase, the amount done and the total."""
    ledger: Ledger = field(default_factory=Ledger)
    shop: Shop | None = None
    consumers: list[PushConsumer] = field(default_factory=list)
    sales: list[Future[None]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """The broker's outages as (begin, end), in seconds since the start."""
    killed_at: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """The figures that the current step reports."""
    streamed: list[tuple[str, str, int]] = field(default_factory=list)
    """The message counts of the streaming query, as (topic, tag, messages)."""
    usage: Usage | None = None
    spark: Any = None

    @property
    def store(self) -> Path:
        return self.broker.store


def verdict(steps: Sequence[StepResult]) -> str:
    """Returns the overall result in words. A skipped step does not count as passed."""
    failed = [step for step in steps if step.state is StepState.FAILED]
    if failed:
        return f"Failed at: {failed[0].title}"
    skipped = [step for step in steps if step.state is StepState.SKIPPED]
    if skipped:
        return f"Every step that ran passed; {len(skipped)} of {len(steps)} were skipped"
    return "Every step passed"


def check(condition: bool, failure: str) -> None:
    """Raises StepFailed unless the condition holds."""
    if not condition:
        raise StepFailed(failure)
