"""A drill of failover: a master is killed, paused or replaced under load, and every acked message is looked for.

One producer sends a message every 5 ms, each once and without retries. An outage is the longest time between two acks
around a strike, as this client saw it. After each strike the set is made whole before the next one. At the end the
topic is read, and acked messages are counted by their unique key: each must be there once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Final, Self

import msgspec

from penstock import __version__
from penstock.broker.failover.consensus_engine import Leader, View
from penstock.client.config import ClientConfig
from penstock.client.message import Message
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Admin, Producer, PullConsumer
from penstock.demo.drill_clusters import WITHIN_S, DrillCluster, StrikeKind, wait_for
from penstock.demo.shop import Ledger
from penstock.errors import NoAnswer, PenstockError
from penstock.pipeline.svg_charts import document, lines, table

_EVERY_S: Final = 0.005
_TIMEOUT_S: Final = 1.0
_QUEUES: Final = 4
_AROUND: Final = 40
"""Acks before a strike, and after which an outage is over."""
_PAGE: Final = 32
_READ_WITHIN_S: Final = 15.0
_BUCKET_S: Final = 0.1
DONE: Final = {
    StrikeKind.KILL: "was killed",
    StrikeKind.PAUSE: "was paused",
    StrikeKind.SWITCHOVER: "was asked to hand over",
}


class StrikeResult(msgspec.Struct, frozen=True):
    """One strike, and what a client saw of it."""

    kind: StrikeKind
    at_s: float
    """When, in seconds since the first send."""
    struck: int
    struck_address: str
    master: int
    master_address: str
    epoch: int
    outage_s: float
    gap: tuple[float, float]
    """The outage's begin and end, in seconds since the first send."""
    acknowledged: int = 0
    """Messages acked from this strike on until the next one; for the first strike also those before it."""
    lost: int = 0
    doubled: int = 0

    @property
    def summary(self) -> str:
        return (
            f"replica {self.struck} at {self.struck_address} {DONE[self.kind]}; replica {self.master} at "
            f"{self.master_address} is master in epoch {self.epoch}; {self.outage_s:.2f} s without an acknowledgement"
        )


class DrillResult(msgspec.Struct, frozen=True):
    """What a drill has found."""

    strikes: list[StrikeResult]
    acked_at: list[float]
    """When each ack came, in seconds since the first send."""
    lost: list[str]
    """The unique keys of acked messages that are not in the topic."""
    doubled: list[str]
    """The unique keys of acked messages that are there more than once."""
    unanswered: int
    """Sends that were not acked; they were not sent again."""
    stored_unacknowledged: int
    """Messages in the topic that were not acked."""
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.lost and not self.doubled

    @property
    def verdict(self) -> str:
        count = len(self.acked_at)
        if self.ok:
            return f"all {count:,} acknowledged messages are there, each once"
        return f"of {count:,} acknowledged messages {len(self.lost)} are lost and {len(self.doubled)} are there twice"

    @property
    def others(self) -> str:
        stored = self.stored_unacknowledged
        return f"{self.unanswered} sends were not acknowledged, and {stored} of those are stored all the same"


class Pulse:
    """A producer that sends in a thread of its own. Use it in a `with` block."""

    def __init__(self, config: ClientConfig, topic: str, ledger: Ledger) -> None:
        self._config = config
        self._topic = topic
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock drill")

    def _run(self) -> None:
        number = 0
        options = ProducerOptions(timeout_s=_TIMEOUT_S, retries=0)
        with Producer("penstock-drill", self._config, options=options) as producer:
            while not self._stop.wait(_EVERY_S):
                number += 1
                message = Message(self._topic, f"message {number} of the drill".encode())
                try:
                    sent = producer.send(message)
                except PenstockError:
                    self._ledger.miss()
                    continue
                if sent.ok:
                    self._ledger.acknowledge(message, sent.msg_id)
                else:
                    self._ledger.miss()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


class Drill:
    """Strikes a cluster. Use it from one thread."""

    def __init__(self, cluster: DrillCluster, tell: Callable[[str], None]) -> None:
        """`tell` gets a sentence after each step."""
        self._cluster = cluster
        self._tell = tell
        self._ledger = Ledger(topics=(cluster.topic,), groups=())
        self._replicas = 0
        """How many are in the set while it is whole."""

    def run(self, plan: Sequence[StrikeKind], *, replicas: int = 0) -> DrillResult:
        """Carries the strikes out, and counts. `replicas` are expected in the sync set; 0: those that are there.

        Raises PenstockError if the cluster does not get whole, or no other broker becomes master.
        """
        self._replicas = replicas or len(_sync(self._cluster.view()))
        self._wait_until_whole()
        with Admin(self._cluster.config) as admin:
            admin.topics.create(self._cluster.topic, queues=_QUEUES, broker=self._master().address)
        self._tell(f"{self._replicas} brokers are in sync; sending a message every {_EVERY_S * 1000:g} ms.")
        self._ledger.started = began = time.monotonic()
        strikes: list[StrikeResult] = []
        bounds: list[int] = []
        with Pulse(self._cluster.config, self._cluster.topic, self._ledger):
            for number, kind in enumerate(plan, 1):
                bounds.append(self._ledger.count if strikes else 0)
                strikes.append(self._strike(kind))
                self._tell(f"{number} of {len(plan)}: {strikes[-1].summary}.")
            self._wait_until_whole()
        self._tell("reading the topic.")
        found = self._read()
        acked = list(self._ledger.acked[self._cluster.topic])
        counted = [
            msgspec.structs.replace(
                strike,
                acknowledged=len(keys),
                lost=sum(not found[key] for key in keys),
                doubled=sum(found[key] > 1 for key in keys),
            )
            for strike, (first, last) in zip(strikes, pairwise([*bounds, len(acked)]), strict=True)
            for keys in (acked[first:last],)
        ]
        return DrillResult(
            strikes=counted,
            acked_at=list(self._ledger.times["acknowledged"]),
            lost=[key for key in acked if not found[key]],
            doubled=[key for key in acked if found[key] > 1],
            unanswered=self._ledger.unanswered,
            stored_unacknowledged=len(found.keys() - set(acked)),
            seconds=time.monotonic() - began,
        )

    def _strike(self, kind: StrikeKind) -> StrikeResult:
        self._wait_until_whole()
        self._wait_for_acks()
        struck = self._master()
        before, at = self._ledger.count, self._ledger.now
        heal = self._cluster.strike(kind, struck)
        wait_for(lambda: _leads_since(self._cluster.view(), struck.epoch), "no other broker became master")
        self._wait_for_acks()
        begin, end = max(
            pairwise(self._ledger.times["acknowledged"][before - 1 :]), key=lambda times: times[1] - times[0]
        )
        master = self._master()
        heal()
        return StrikeResult(
            kind=kind,
            at_s=at,
            struck=struck.id,
            struck_address=struck.address,
            master=master.id,
            master_address=master.address,
            epoch=master.epoch,
            outage_s=end - begin,
            gap=(begin, end),
        )

    def _master(self) -> Leader:
        found: list[Leader] = []

        def has_leader() -> bool:
            leader = self._cluster.view().leader
            found.extend([] if leader is None else [leader])
            return bool(found)

        wait_for(has_leader, "there was no master")
        return found[0]

    def _wait_until_whole(self) -> None:
        wait_for(
            lambda: len(_sync(self._cluster.view())) >= self._replicas,
            f"{self._replicas} brokers were not in sync",
        )

    def _wait_for_acks(self) -> None:
        goal = self._ledger.count + _AROUND
        if not self._ledger.wait(lambda: self._ledger.count >= goal):
            raise NoAnswer(f"{_AROUND} messages were not acknowledged within {WITHIN_S:g} s")

    def _read(self) -> Counter[str]:
        """Returns how often the topic has each unique key. Reads again while an acked one is missing, for a while: a
        message that was just acked is not in its queue yet.
        """
        acked = self._ledger.acked[self._cluster.topic].keys()
        deadline = time.monotonic() + _READ_WITHIN_S
        while True:
            try:
                found = read_keys(self._cluster.config, self._cluster.topic)
                if found.keys() >= acked or time.monotonic() > deadline:
                    return found
            except PenstockError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


def read_keys(config: ClientConfig, topic: str) -> Counter[str]:
    """Returns how often each unique key is in the topic, over all queues."""
    keys: Counter[str] = Counter()
    with Admin(config) as admin, PullConsumer("TOOLS_CONSUMER", config) as consumer:
        for queue, offsets in admin.topics.stats(topic).items():
            at = offsets.min_offset
            while at < offsets.max_offset:
                page = consumer.pull(queue, at, max_messages=_PAGE)
                keys.update(message.msg_id for message in page.messages)
                if page.next_offset <= at:
                    break
                at = page.next_offset
    return keys


def _sync(view: View) -> tuple[int, ...]:
    """The sync set; empty while there is no master."""
    return () if view.state is None or view.leader is None else view.state.sync


def _leads_since(view: View, epoch: int) -> bool:
    return view.leader is not None and view.leader.epoch > epoch


# -- the page --------------------------------------------------------------------------------------------------------


def page(result: DrillResult) -> str:
    """Returns the report as HTML: acks over time with the outages, and a table of the strikes."""
    title = "no acknowledged message was lost" if result.ok else "acknowledged messages are lost or doubled"
    rows = [
        (
            number,
            f"{each.at_s:.1f} s",
            f"replica {each.struck} at {each.struck_address} {DONE[each.kind]}",
            f"replica {each.master} at {each.master_address}",
            each.epoch,
            f"{each.outage_s:.2f} s",
            f"{each.acknowledged:,}",
            each.lost,
            each.doubled,
        )
        for number, each in enumerate(result.strikes, 1)
    ]
    head = ("", "at", "what happened", "new master", "epoch", "outage", "acknowledged", "lost", "doubled")
    away = [each.gap for each in result.strikes]
    return document(
        "Penstock drill",
        [
            f"<h1>Penstock {escape(__version__)}: {len(result.strikes)} strikes, {title}</h1>",
            f"<p>{escape(result.verdict)}. {escape(result.others)}.</p>",
            lines("Acknowledgements in a tenth of a second (grey: none came)", {"acknowledged": rate(result)}, away),
            table(head, rows, right=("", "at", "epoch", "outage", "acknowledged", "lost", "doubled")),
        ],
    )


def rate(result: DrillResult) -> list[tuple[float, float]]:
    """Returns the acks of each tenth of a second, as points of (second, count)."""
    counts = Counter(int(at / _BUCKET_S) for at in result.acked_at)
    last = max(counts, default=-1)
    return [(bucket * _BUCKET_S, float(counts[bucket])) for bucket in range(last + 1)]
