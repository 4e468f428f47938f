"""Lists of messages: `put_many` beside Java's batches."""

from __future__ import annotations

import time

from support.peers import Peer

from bench.harness import Row, Run, Scenario
from bench.store.ground import PREFIX, QUEUES, SIZE_IDS, SIZE_NAMES, TAG, TOPIC, Ground, body_of, check
from penstock.store import Message

LIST = 32


class PutLists(Scenario):
    """Lists of 32, each for one queue, into a new store."""

    group = "lists"

    def __init__(self, ground: Ground, size: int) -> None:
        self._ground = ground
        self._size = size
        self._count = ground.sizes.messages[size]
        self._row = Row(f"lists-{SIZE_IDS[size]}", f"put lists of {LIST}, {SIZE_NAMES[size]}", "messages/s")
        self.rows = (self._row,)

    def ours(self) -> Run:
        body = body_of(self._size)
        failed = 0
        with self._ground.fresh() as store:
            started = time.perf_counter()
            for first in range(0, self._count, LIST):
                queue_id = first // LIST % QUEUES
                messages = [
                    Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=queue_id)
                    for number in range(first, first + LIST)
                ]
                if not store.put_many(messages).ok:
                    failed += LIST
            took = time.perf_counter() - started
            check(failed, self._count)
            return self._run(took, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer):
            answer = self._ground.ask(peer, "batch", size=self._size, count=self._count, batch=LIST)
            return self._run(answer["seconds"], answer["log_bytes"])

    def _run(self, seconds: float, log_bytes: int) -> Run:
        return Run({self._row.name: self._count / seconds}, {"messages": self._count, "log bytes": log_bytes})
