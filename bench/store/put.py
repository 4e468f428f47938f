"""Single puts with asynchronous flush: one call, one message, one answer."""

from __future__ import annotations

from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import SIZE_IDS, SIZE_NAMES, Ground, body_of, put_all


class Put(Scenario):
    """`put` in a loop, from one thread or two, into a new store."""

    group = "put"

    def __init__(self, ground: Ground, size: int, threads: int) -> None:
        self._ground = ground
        self._size = size
        self._threads = threads
        self._count = ground.sizes.messages[size]
        who = "one thread" if threads == 1 else f"{threads} threads"
        self._row = Row(
            f"put-{SIZE_IDS[size]}-{threads}t",
            f"put, {SIZE_NAMES[size]}, {who}",
            "messages/s",
            Goal("ratio at least", 1) if threads == 1 else None,
        )
        self.rows = (self._row,)

    def ours(self) -> Run:
        with self._ground.fresh() as store:
            took = put_all(store, body_of(self._size), self._count, self._threads)
            return self._run(took, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer):
            answer = self._ground.ask_put(peer, self._size, self._count, self._threads)
            return self._run(answer["seconds"], answer["log_bytes"])

    def _run(self, seconds: float, log_bytes: int) -> Run:
        return Run({self._row.name: self._count / seconds}, {"messages": self._count, "log bytes": log_bytes})
