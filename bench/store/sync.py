"""Puts with synchronous flush, where the disk decides: one at a time, and several that share a sync."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from support.peers import Peer

from bench.harness import Row, Run, Scenario
from bench.store.ground import KILO, PREFIX, QUEUES, TAG, TOPIC, Ground, body_of, check, put_all
from penstock.store import Message, PutResult

IN_FLIGHT = 16


class SyncPut(Scenario):
    """`put` in a loop; each thread waits for the disk before its next message."""

    group = "sync"

    def __init__(self, ground: Ground, threads: int) -> None:
        self._ground = ground
        self._threads = threads
        self._count = ground.sizes.sync_messages if threads == 1 else ground.sizes.sync_messages_in_flight
        who = "one thread" if threads == 1 else f"{threads} threads"
        self._row = Row(f"sync-1k-{threads}t", f"put with sync flush, 1 KB, {who}", "messages/s")
        self.rows = (self._row,)

    def ours(self) -> Run:
        with self._ground.fresh(sync=True) as store:
            took = put_all(store, body_of(KILO), self._count, self._threads)
            return _run(self._row, self._count, took, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer, sync=True):
            answer = self._ground.ask_put(peer, KILO, self._count, self._threads)
            return _run(self._row, self._count, answer["seconds"], answer["log_bytes"])


class SyncInFlight(Scenario):
    """`put_async` from one thread, with 16 answers due at any time."""

    group = "sync"

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._count = ground.sizes.sync_messages_in_flight
        self._row = Row("sync-1k-in-flight", f"put with sync flush, 1 KB, {IN_FLIGHT} in flight", "messages/s")
        self.rows = (self._row,)

    def ours(self) -> Run:
        body = body_of(KILO)
        due = threading.Semaphore(IN_FLIGHT)
        refused: list[PutResult] = []

        def answered(answer: Future[PutResult]) -> None:
            result = answer.result()
            if not result.ok:
                refused.append(result)
            due.release()

        with self._ground.fresh(sync=True) as store:
            started = time.perf_counter()
            for number in range(self._count):
                message = Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=number % QUEUES)
                due.acquire()
                store.put_async(message).add_done_callback(answered)
            for _ in range(IN_FLIGHT):
                due.acquire()
            took = time.perf_counter() - started
            check(len(refused), self._count)
            return _run(self._row, self._count, took, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer, sync=True):
            answer = self._ground.ask(peer, "in-flight", size=KILO, count=self._count, in_flight=IN_FLIGHT)
            return _run(self._row, self._count, answer["seconds"], answer["log_bytes"])


def _run(row: Row, count: int, seconds: float, log_bytes: int) -> Run:
    return Run({row.name: count / seconds}, {"messages": count, "log bytes": log_bytes})
