"""A shop: what it sends, which of that was acknowledged, and what two groups of consumers have seen.

Everything goes through RocketMQ's protocol, with `penstock.client`. An order and its payment have the same key.
Whatever is not acknowledged is sent again, as any careful producer would; what is counted are acknowledgements, by the
unique key that the producer gives each message. Safe for threads.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from penstock.client.sync import Message, Producer, ProducerOptions, PushConsumer, PushOptions, ReceivedMessage
from penstock.errors import NoAnswer, NoRoute, PenstockError, Refused, Unreachable

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
