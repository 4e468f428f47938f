"""Dispatch: how far it is behind while one producer puts, and how fast it is alone.

Alone is measured twice, over one log: opening a store that has lost its queues and its index, which includes finding
the log's end; and the dispatch in it by itself.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import HUNDRED, Ground, body_of, put_all
from penstock.clock import now_ms
from penstock.store import MessageStore
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.dispatch import Dispatcher
from penstock.store.files import Files
from penstock.store.index import Index
from penstock.store.running_flags import RunningFlags

SAMPLE_MS = 5
CAUGHT_UP_WITHIN = 0.5

MOST_BEHIND = Row("dispatch-lag", "dispatch behind one producer, 100 B: most bytes", "bytes", less_is_better=True)
CAUGHT_UP = Row(
    "dispatch-caught-up",
    "dispatch behind one producer, 100 B: done after the last put",
    "s",
    Goal("at most", CAUGHT_UP_WITHIN),
    less_is_better=True,
    has_ratio=False,
)
ALONE = Row("dispatch-alone", "dispatch alone, 100 B", "messages/s")
REBUILD = Row("dispatch-rebuild", "open with queues and index lost, 100 B", "messages/s")


class Lag(Scenario):
    """One producer at full speed; a second thread looks how many bytes dispatch is behind."""

    group = "dispatch"
    rows = (MOST_BEHIND, CAUGHT_UP)

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._count = ground.sizes.messages[HUNDRED]

    def ours(self) -> Run:
        with self._ground.fresh() as store:
            with _Sampler(store) as sampler:
                put_all(store, body_of(HUNDRED), self._count)
            ended = time.perf_counter()
            while store.figures().dispatch_behind_bytes:
                time.sleep(0.001)
            return self._run(sampler.most, time.perf_counter() - ended, store.log.max_offset)

    def java(self, peer: Peer) -> Run:
        with self._ground.fresh_java(peer):
            answer = self._ground.ask_put(peer, HUNDRED, self._count, sample=SAMPLE_MS)
            late = answer["dispatched"] - answer["seconds"]
            return self._run(answer["most_behind"], late, answer["log_bytes"])

    def _run(self, most_behind: int, caught_up: float, log_bytes: int) -> Run:
        figures = {MOST_BEHIND.name: float(most_behind), CAUGHT_UP.name: caught_up}
        return Run(figures, {"messages": self._count, "log bytes": log_bytes})


class _Sampler:
    """Looks at a store's lag every few milliseconds, in a `with` block."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def _look(self) -> None:
        while not self._ending.wait(SAMPLE_MS / 1000):
            self.most = max(self.most, self._store.figures().dispatch_behind_bytes)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()


class Rebuild(Scenario):
    """Queues and index of a whole store, from its log."""

    group = "dispatch"
    rows = (ALONE, REBUILD)

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def ours(self) -> Run:
        path = self._ground.filled(HUNDRED)
        _lose_derived(path)
        started = time.perf_counter()
        with MessageStore.open(path, self._ground.our_settings()) as store:
            opened = time.perf_counter() - started
            with self._ground.scratch() as folder:
                alone, messages = self._dispatch(store, folder)
        return self._run(messages, alone, opened)

    def _dispatch(self, store: MessageStore, folder: Path) -> tuple[float, int]:
        """Dispatches a store's log once more, to other files; returns the seconds and how many units there are."""
        files, settings = Files(), store.settings
        queues = ConsumeQueues(files, folder / "consumequeue", settings.mapped_file_size_consume_queue)
        index = Index(files, folder / "index", settings.index_geometry, now_ms)
        dispatcher = Dispatcher(store.log, queues, index, settings.delay_levels, RunningFlags())
        started = time.perf_counter()
        dispatcher.catch_up()
        took = time.perf_counter() - started
        messages = sum(queue.max_offset for queue in queues)
        queues.close()
        index.close()
        return took, messages

    def java(self, peer: Peer) -> Run:
        path = self._ground.filled_java(peer, HUNDRED)
        _lose_derived(path)
        answer = self._ground.ask(peer, "rebuild", path=str(path), settings=self._ground.settings())
        return self._run(answer["messages"], answer["dispatch_seconds"], answer["seconds"])

    def _run(self, messages: int, alone: float, opened: float) -> Run:
        return Run({ALONE.name: messages / alone, REBUILD.name: messages / opened}, {"messages": messages})


def _lose_derived(store: Path) -> None:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(store / folder)
