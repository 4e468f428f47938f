"""Counts of what went through, by topic and group: only ever added to, so that whoever samples them gets rates.

How much went through in the last minute, hour and day, by topic and group; and the totals of today and yesterday.

The tally only counts up. Every ten seconds its growth is noted here; six such notes are a minute, and they are added up
to notes of ten minutes and of an hour. A note holds only what grew, so what is idle costs nothing. Nothing is on disk:
after a restart everything begins at 0, as in RocketMQ.


Says in the log what an operator should know about the store: slow puts, and whether it takes messages.

Looks once a second, so that nothing is timed on the way of a message. Slow syncs are said by the store itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.store.statistics import LATENCY_BOUNDS_MS
from penstock.store.store import MessageStore


class MessageCounters:
    """Messages and bytes. Each entry is [messages, bytes]."""

    def __init__(self) -> None:
        self.sent: defaultdict[str, list[int]] = defaultdict(_zero)
        """By topic."""
        self.got: defaultdict[tuple[str, str], list[int]] = defaultdict(_zero)
        """By topic and group."""
        self.sent_back: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Messages by topic and group."""

    def count_sent(self, topic: str, messages: int, size: int) -> None:
        entry = self.sent[topic]
        entry[0] += messages
        entry[1] += size

    def count_got(self, topic: str, group: str, messages: int, size: int) -> None:
        entry = self.got[topic, group]
        entry[0] += messages
        entry[1] += size

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted, and its figures with it."""
        self.sent.pop(topic, None)
        for key in [key for key in self.got if key[0] == topic]:
            del self.got[key]
        for key in [key for key in self.sent_back if key[0] == topic]:
            del self.sent_back[key]

    def forget_group(self, group: str) -> None:
        for key in [key for key in self.got if key[1] == group]:
            del self.got[key]
        for key in [key for key in self.sent_back if key[1] == group]:
            del self.sent_back[key]


def _zero() -> list[int]:
    return [0, 0]


SAMPLE_S: Final = 10.0
_PER_TEN_MINUTES: Final = 60
_PER_HOUR: Final = 6
Key = tuple[str, str]
"""RocketMQ's name of a figure, and what it is about: a topic, `topic@group`, or the cluster."""


class Figure(NamedTuple):
    """What went through in a time."""

    total: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.total / self.seconds if self.seconds else 0.0


class _Notes:
    """Growth in the last few spans, each as long as the others."""

    def __init__(self, spans: int) -> None:
        self._notes: deque[tuple[float, Counter[Key]]] = deque(maxlen=spans)

    def add(self, seconds: float, growth: Counter[Key]) -> None:
        self._notes.append((seconds, growth))

    def figure(self, key: Key, since: Figure) -> Figure:
        """Over the spans and what came since."""
        total = sum(growth[key] for _, growth in self._notes)
        return Figure(total + since.total, sum(seconds for seconds, _ in self._notes) + since.seconds)


class Rates:
    """Samples one tally. `sample` is to be called every ten seconds."""

    def __init__(self, tally: MessageCounters, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._tally = tally
        self._cluster = cluster
        self._clock = clock
        self._seen: Counter[Key] = Counter()
        self._seen_at = clock()
        self._minute, self._hour, self._day = _Notes(6), _Notes(6), _Notes(24)
        self._ten_minutes: tuple[float, Counter[Key]] = (0.0, Counter())
        self._one_hour: tuple[float, Counter[Key]] = (0.0, Counter())
        self._samples = 0

    def sample(self) -> None:
        """Notes what has grown since the last time."""
        totals = Counter(dict(self._totals()))
        span = self._elapsed(), Counter({key: total - self._seen[key] for key, total in totals.items()})
        span = span[0], +span[1]  # without what did not grow
        self._seen, self._seen_at = totals, self._clock()
        self._samples += 1
        self._minute.add(*span)
        self._ten_minutes = _sum(self._ten_minutes, span)
        if self._samples % _PER_TEN_MINUTES == 0:
            self._hour.add(*self._ten_minutes)
            self._one_hour = _sum(self._one_hour, self._ten_minutes)
            self._ten_minutes = (0.0, Counter())
            if self._samples % (_PER_TEN_MINUTES * _PER_HOUR) == 0:
                self._day.add(*self._one_hour)
                self._one_hour = (0.0, Counter())

    def find(self, name: str, about: str) -> tuple[Figure, Figure, Figure] | None:
        """Over the last minute, hour and day; None if nothing was ever counted under that name."""
        key = (name, about)
        since = self._since(key)
        if since is None:
            return None
        since_ten_minutes = _plus(since, key, self._ten_minutes)
        since_hour = _plus(since_ten_minutes, key, self._one_hour)
        hour, day = self._hour.figure(key, since_ten_minutes), self._day.figure(key, since_hour)
        return self._minute.figure(key, since), hour, day

    def per_second(self, name: str, about: str) -> float:
        """Over the last minute."""
        since = self._since((name, about))
        return 0.0 if since is None else self._minute.figure((name, about), since).per_second

    def _elapsed(self) -> float:
        return max(self._clock() - self._seen_at, 1e-3)

    def _since(self, key: Key) -> Figure | None:
        """What one figure has grown since the last sample."""
        total = self._total(*key)
        return None if total is None else Figure(max(0, total - self._seen[key]), self._elapsed())

    def _total(self, name: str, about: str) -> int | None:
        tally = self._tally
        topic, _, group = about.partition("@")
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            found = tally.sent.get(about)
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            found = tally.got.get((topic, group))
        elif name == "SNDBCK_PUT_NUMS":
            return tally.sent_back.get((topic, group))
        else:
            return dict(self._totals()).get((name, about))
        return None if found is None else found[name.endswith("SIZE")]

    def _totals(self) -> Iterator[tuple[Key, int]]:
        tally, put, got = self._tally, 0, 0
        for topic, (messages, size) in tally.sent.items():
            put += messages
            yield ("TOPIC_PUT_NUMS", topic), messages
            yield ("TOPIC_PUT_SIZE", topic), size
        for (topic, group), (messages, size) in tally.got.items():
            got += messages
            yield ("GROUP_GET_NUMS", f"{topic}@{group}"), messages
            yield ("GROUP_GET_SIZE", f"{topic}@{group}"), size
        for (topic, group), messages in tally.sent_back.items():
            yield ("SNDBCK_PUT_NUMS", f"{topic}@{group}"), messages
        yield ("BROKER_PUT_NUMS", self._cluster), put
        yield ("BROKER_GET_NUMS", self._cluster), got


def _plus(figure: Figure, key: Key, span: tuple[float, Counter[Key]]) -> Figure:
    return Figure(figure.total + span[1][key], figure.seconds + span[0])


def _sum(one: tuple[float, Counter[Key]], other: tuple[float, Counter[Key]]) -> tuple[float, Counter[Key]]:
    return one[0] + other[0], one[1] + other[1]


class DayTotals:
    """What the totals of puts and gets were at the last midnight and at the one before."""

    def __init__(self, totals: Callable[[], tuple[int, int]], today: Callable[[], object]) -> None:
        self._totals = totals
        self._today = today
        self._day = today()
        self.yesterday_morning = self.today_morning = (0, 0)

    def look(self) -> None:
        """To be called often; does something once a day."""
        day = self._today()
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, self._totals()


log = logging.getLogger("penstock.broker")
SLOW_MS: Final = 500
_BOUNDS: Final = [str(bound) for bound in LATENCY_BOUNDS_MS if bound > SLOW_MS] + ["more"]


class StoreWatch:
    """Remembers what was said last."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._slow = self._count_slow()
        self._trouble = ""

    def look(self) -> None:
        """Says what is new since the last look."""
        slow = self._count_slow()
        if slow > self._slow:
            slowest = self._store.figures().put_slowest_ms
            log.warning(
                "slow put: %d took longer than %d ms; the slowest so far %.0f ms", slow - self._slow, SLOW_MS, slowest
            )
        self._slow = slow
        trouble = self._store.flags.reason
        if trouble != self._trouble:
            if trouble:
                log.error("the store takes no messages: %s", trouble)
            else:
                log.warning("the store takes messages again")
        self._trouble = trouble

    def _count_slow(self) -> int:
        latencies = self._store.figures().put_latency_ms
        return sum(latencies[bound] for bound in _BOUNDS)
