"""Statistics: message counters by topic and group, rates over time, and log lines about slow puts.

The totals of `MessageCounters` only grow. `Rates` samples it every ten seconds. Six samples make the rates of the last
minute; samples also add up to spans of ten minutes and of an hour. A span holds only the counters that grew, so idle
topics cost nothing. Nothing is on disk: after a restart all figures begin at 0, as in RocketMQ. `StoreWatch` logs slow
puts and refused puts. It looks at the store's figures once a second, so that puts need not log. Use everything here
from the loop's thread only.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from penstock.format.constants import SCHEDULE_TOPIC
from penstock.protocol.bodies.stats import BrokerCounters
from penstock.store.message_store import MessageStore
from penstock.store.put_and_get_statistics import LATENCY_BOUNDS_MS

MAX_COUNTED: Final = 200_000
_OTHER: Final = "others"
K = TypeVar("K")


class _Entries(dict[K, list[int]]):
    """Counts by name. Names beyond MAX_COUNTED share the entry of the name `other`."""

    def __init__(self, other: K) -> None:
        super().__init__()
        self._other = other

    def __missing__(self, name: K) -> list[int]:
        name = self._other if len(self) >= MAX_COUNTED else name
        return self.setdefault(name, [0, 0])


class MessageCounters:
    """Counts since the start. An entry of `sent` and `got` is a list [messages, bytes].

    `totals` only ever grows. The counts of a deleted topic or group leave the tables, so that rates restart, but stay
    in the totals: some hundred bytes for each name. A topic or group beyond MAX_COUNTED is counted without its
    name.
    """

    def __init__(self) -> None:
        self.sent: _Entries[str] = _Entries(_OTHER)
        """Stored messages by topic."""
        self.got: _Entries[tuple[str, str]] = _Entries((_OTHER, _OTHER))
        """Pulled messages by topic and group."""
        self.sent_back: defaultdict[tuple[str, str], int] = defaultdict(int)
        """The number of messages that consumers sent back, by topic and group."""
        self._refused: Counter[int] = Counter()
        self._past_sent: defaultdict[str, list[int]] = defaultdict(_new_entry)
        self._past_got: defaultdict[tuple[str, str], list[int]] = defaultdict(_new_entry)
        self._past_sent_back: Counter[tuple[str, str]] = Counter()

    def count_sent(self, topic: str, messages: int, size: int) -> None:
        entry = self.sent[topic]
        entry[0] += messages
        entry[1] += size

    def count_got(self, topic: str, group: str, messages: int, size: int) -> None:
        entry = self.got[topic, group]
        entry[0] += messages
        entry[1] += size

    def count_sent_back(self, topic: str, group: str) -> None:
        pair = (topic, group)
        if pair not in self.sent_back and len(self.sent_back) >= MAX_COUNTED:
            pair = (_OTHER, _OTHER)
        self.sent_back[pair] += 1

    def count_refused(self, code: int) -> None:
        """Counts a request that was refused or failed, by its request code; -1 if the broker does not know the code."""
        self._refused[code] += 1

    def forget_topic(self, topic: str) -> None:
        """Removes a deleted topic from the tables."""
        if topic in self.sent:
            _add(self._past_sent[topic], self.sent.pop(topic))
        self._forget(lambda pair: pair[0] == topic)

    def forget_group(self, group: str) -> None:
        """Removes a deleted group from the tables."""
        self._forget(lambda pair: pair[1] == group)

    def _forget(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for pair in list(filter(is_gone, self.got)):
            _add(self._past_got[pair], self.got.pop(pair))
        for pair in list(filter(is_gone, self.sent_back)):
            self._past_sent_back[pair] += self.sent_back.pop(pair)

    @property
    def forgotten(self) -> tuple[int, int]:
        """The messages sent to and pulled from what is no longer in the tables."""
        sent, got = self._past_sent.values(), self._past_got.values()
        return sum(entry[0] for entry in sent), sum(entry[0] for entry in got)

    def totals(self) -> BrokerCounters:
        """Returns all counts since the start, also those of deleted topics and groups."""
        sent = {topic: list(entry) for topic, entry in self.sent.items()}
        got = {pair: list(entry) for pair, entry in self.got.items()}
        for topic, entry in self._past_sent.items():
            _add(sent.setdefault(topic, [0, 0]), entry)
        for pair, entry in self._past_got.items():
            _add(got.setdefault(pair, [0, 0]), entry)
        sent_back = self._past_sent_back + Counter(self.sent_back)
        return BrokerCounters(
            messages_in={topic: (messages, size) for topic, (messages, size) in sent.items()},
            messages_out={"@".join(pair): (messages, size) for pair, (messages, size) in got.items()},
            sent_back={"@".join(pair): count for pair, count in sent_back.items()},
            requests_refused={str(code): count for code, count in self._refused.items()},
        )


def _add(entry: list[int], other: list[int]) -> None:
    entry[0] += other[0]
    entry[1] += other[1]


def _new_entry() -> list[int]:
    return [0, 0]


SAMPLE_S: Final = 10.0
_PER_TEN_MINUTES: Final = 60
_PER_HOUR: Final = 6
Key = tuple[str, str]
"""RocketMQ's name of a figure, and its subject: a topic, `topic@group`, or the cluster."""


class Figure(NamedTuple):
    """A count and the number of seconds that it covers."""

    total: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.total / self.seconds if self.seconds else 0.0


class _Spans:
    """The growth of all counters in the last few spans of time."""

    def __init__(self, spans: int) -> None:
        self._spans: deque[tuple[float, Counter[Key]]] = deque(maxlen=spans)

    def add(self, seconds: float, growth: Counter[Key]) -> None:
        self._spans.append((seconds, growth))

    def figure(self, key: Key, since: Figure) -> Figure:
        """Returns the growth of one counter over all spans, plus `since`, its growth after the last span."""
        total = sum(growth[key] for _, growth in self._spans)
        return Figure(total + since.total, sum(seconds for seconds, _ in self._spans) + since.seconds)


class Rates:
    """Rates of `counters` over the last minute, hour and day. Call `sample` every SAMPLE_S seconds."""

    def __init__(
        self,
        counters: MessageCounters,
        cluster: str,
        clock: Callable[[], float] = time.monotonic,
        delayed: Callable[[], int] = int,
    ) -> None:
        """`delayed` returns how many delayed messages were ever stored.

        They count under the topic that they are for, and under SCHEDULE_TOPIC, where RocketMQ's tools look for them.
        They count only once in the sum of the broker.
        """
        self._counters = counters
        self._delayed = delayed
        self._delayed_before = delayed()
        self._cluster = cluster
        self._clock = clock
        self._seen: Counter[Key] = Counter()
        self._seen_at = clock()
        self._minute, self._hour, self._day = _Spans(6), _Spans(6), _Spans(24)
        self._ten_minutes: tuple[float, Counter[Key]] = (0.0, Counter())
        self._one_hour: tuple[float, Counter[Key]] = (0.0, Counter())
        self._samples = 0

    def sample(self) -> None:
        """Records the growth since the last sample."""
        totals = Counter(dict(self._totals()))
        span = self._elapsed(), Counter({key: total - self._seen[key] for key, total in totals.items()})
        span = span[0], +span[1]  # drops the counters that did not grow
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
        """Returns the figures of the last minute, hour and day; None if nothing was ever counted under this key."""
        key = (name, about)
        since = self._since(key)
        if since is None:
            return None
        since_ten_minutes = _plus(since, key, self._ten_minutes)
        since_hour = _plus(since_ten_minutes, key, self._one_hour)
        hour, day = self._hour.figure(key, since_ten_minutes), self._day.figure(key, since_hour)
        return self._minute.figure(key, since), hour, day

    def per_second(self, name: str, about: str) -> float:
        """Returns the rate of one counter over the last minute; 0 if it is unknown."""
        since = self._since((name, about))
        return 0.0 if since is None else self._minute.figure((name, about), since).per_second

    def _elapsed(self) -> float:
        return max(self._clock() - self._seen_at, 1e-3)

    def _since(self, key: Key) -> Figure | None:
        """Returns the growth of one counter since the last sample; None if it is unknown."""
        total = self._total(*key)
        return None if total is None else Figure(max(0, total - self._seen[key]), self._elapsed())

    def _total(self, name: str, about: str) -> int | None:
        counters = self._counters
        topic, _, group = about.partition("@")
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE") and about != SCHEDULE_TOPIC:
            entry = counters.sent.get(about)
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            entry = counters.got.get((topic, group))
        elif name == "SNDBCK_PUT_NUMS":
            return counters.sent_back.get((topic, group))
        else:
            return dict(self._totals()).get((name, about))
        return None if entry is None else entry[name.endswith("SIZE")]

    def _totals(self) -> Iterator[tuple[Key, int]]:
        counters = self._counters
        put, got = counters.forgotten
        for topic, (messages, size) in counters.sent.items():
            put += messages
            yield ("TOPIC_PUT_NUMS", topic), messages
            yield ("TOPIC_PUT_SIZE", topic), size
        for (topic, group), (messages, size) in counters.got.items():
            got += messages
            yield ("GROUP_GET_NUMS", f"{topic}@{group}"), messages
            yield ("GROUP_GET_SIZE", f"{topic}@{group}"), size
        for (topic, group), messages in counters.sent_back.items():
            yield ("SNDBCK_PUT_NUMS", f"{topic}@{group}"), messages
        yield ("TOPIC_PUT_NUMS", SCHEDULE_TOPIC), max(0, self._delayed() - self._delayed_before)
        yield ("BROKER_PUT_NUMS", self._cluster), put
        yield ("BROKER_GET_NUMS", self._cluster), got


def _plus(figure: Figure, key: Key, span: tuple[float, Counter[Key]]) -> Figure:
    return Figure(figure.total + span[1][key], figure.seconds + span[0])


def _sum(one: tuple[float, Counter[Key]], other: tuple[float, Counter[Key]]) -> tuple[float, Counter[Key]]:
    return one[0] + other[0], one[1] + other[1]


class DayTotals:
    """The totals of put and pulled messages at the last two midnights. `totals` returns the current pair."""

    def __init__(self, totals: Callable[[], tuple[int, int]], today: Callable[[], object]) -> None:
        self._totals = totals
        self._today = today
        self._day = today()
        self.yesterday_morning = self.today_morning = (0, 0)

    def roll(self) -> None:
        """Records the totals when the day has changed. Call it every few seconds."""
        day = self._today()
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, self._totals()


log = logging.getLogger("penstock.broker")
SLOW_MS: Final = 500
REPEAT_S: Final = 60.0
"""How often the log repeats that messages do not reach their queues."""
_BOUNDS: Final = [str(bound) for bound in LATENCY_BOUNDS_MS if bound > SLOW_MS] + ["more"]


class StoreWatch:
    """Logs slow puts, when the store stops or resumes accepting messages, and every minute why it does not dispatch."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._slow = self._count_slow()
        self._refusal = ""
        self._late_since = 0.0
        self._said_at = 0.0

    def check(self) -> None:
        """Logs what the class comment says, since the last call."""
        self.check_dispatch()
        slow = self._count_slow()
        if slow > self._slow:
            slowest = self._store.figures().put_slowest_ms
            log.warning(
                "slow puts: %d took more than %d ms; slowest so far: %.0f ms", slow - self._slow, SLOW_MS, slowest
            )
        self._slow = slow
        refusal = self._store.flags.reason
        if refusal != self._refusal:
            if refusal:
                log.error("the store does not accept messages: %s", refusal)
            else:
                log.warning("the store accepts messages again")
        self._refusal = refusal

    def check_dispatch(self) -> None:
        """Logs why messages do not reach their queues: at once, then every minute, and when they do again."""
        problem, now = self._store.dispatcher.lag().problem, time.monotonic()
        if problem and (not self._late_since or now - self._said_at >= REPEAT_S):
            log.warning("%s", problem)
            self._said_at = now
            self._late_since = self._late_since or now
        elif not problem and self._late_since:
            log.warning("messages reach their queues again, after %.0f s", now - self._late_since)
            self._late_since = 0.0

    def _count_slow(self) -> int:
        latencies = self._store.figures().put_latency_ms
        return sum(latencies[bound] for bound in _BOUNDS)
