"""Looking messages up by key: one by one, and many at once, which Java has to do one by one.

Answers differ. Java's is a view of the bytes of whatever has the key's hash. Ours have had their key compared; one key
gives decoded messages, many keys give positions, with which the messages are read in a row of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import KILO, PREFIX, TOPIC, Ground
from penstock.format.kernels import Longs
from penstock.store import MessageStore

KEYS_AT_ONCE = 1000


class _Query(Scenario):
    """Keys from all over a store, each of one message."""

    group = "query"
    _row: Row

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._count = ground.sizes.queries
        self._step = ground.sizes.messages[KILO] // self._count
        self.rows = (self._row,)

    def ours(self) -> Run:
        with self._ground.opened(KILO) as store:
            started = time.perf_counter()
            found = self._look_up(store)
            took = time.perf_counter() - started
        return self._run(took, found)

    def _look_up(self, store: MessageStore) -> int:
        raise NotImplementedError("each kind looks up its own way")

    def _key(self, number: int) -> str:
        return f"{PREFIX}{number * self._step}"

    def java(self, peer: Peer) -> Run:
        with self._ground.opened_java(peer, KILO):
            answer = self._ground.ask(peer, "query", count=self._count, step=self._step)
        return self._run(answer["seconds"], answer["found"])

    def _run(self, seconds: float, found: int) -> Run:
        return Run({self._row.name: self._count / seconds}, {"found": found})


class QuerySingle(_Query):
    """`query` in a loop."""

    _row = Row("query-single", "query by key, one at a time", "queries/s", Goal("ratio at least", 0.5))

    def _look_up(self, store: MessageStore) -> int:
        return sum(len(store.query(TOPIC, self._key(number))) for number in range(self._count))


class QueryMany(_Query):
    """`query_many` with a thousand keys at a time: where the messages lie."""

    _row = Row("query-many", f"query by key, {KEYS_AT_ONCE:,} at once", "queries/s", Goal("ratio at least", 5))

    def _look_up(self, store: MessageStore) -> int:
        return sum(len(offsets) for offsets in self._offsets(store))

    def _offsets(self, store: MessageStore) -> Iterator[Longs]:
        for first in range(0, self._count, KEYS_AT_ONCE):
            keys = [self._key(number) for number in range(first, min(first + KEYS_AT_ONCE, self._count))]
            yield store.query_many(TOPIC, keys)[1]


class QueryManyMessages(QueryMany):
    """The same, and then each message is read and decoded."""

    _row = Row("query-many-messages", f"query by key, {KEYS_AT_ONCE:,} at once, messages decoded", "queries/s")

    def _look_up(self, store: MessageStore) -> int:
        found = 0
        for offsets in self._offsets(store):
            found += sum(store.look_up(offset) is not None for offset in offsets.tolist())
        return found
