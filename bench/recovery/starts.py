"""Two starts: after a kill, and with queues and index lost after a clean exit."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.recovery.killed import KilledStores
from bench.store.ground import PREFIX, SIZE_IDS, SIZE_NAMES, TOPIC
from penstock.store import MessageStore


class _Start(Scenario):
    """Opens a copy of a killed writer's store and takes the time until everything is served."""

    name: str
    title: str
    goal: float

    def __init__(self, stores: KilledStores, body: int) -> None:
        self._stores = stores
        self._body = body
        title = f"{self.title}, {SIZE_NAMES[body]}"
        goal = Goal("ratio at least", self.goal)
        self.rows = (Row(f"{self.name}-{SIZE_IDS[body]}", title, "s", goal, less_is_better=True),)

    def prepare(self, path: Path) -> None:
        """Makes the copy into what this start finds."""

    def ours(self) -> Run:
        with self._stores.copy(self._body) as path:
            self.prepare(path)
            started = time.perf_counter()
            with MessageStore.open(path, self._stores.our_settings()) as store:
                took = time.perf_counter() - started
                messages = sum(queue.max_offset for queue in store.queues)
        return self._run(took, messages)

    def java(self, peer: Peer) -> Run:
        with self._stores.copy(self._body) as path:
            self.prepare(path)
            answer: dict[str, Any] = peer.ask(
                "bench", what="rebuild", topic=TOPIC, prefix=PREFIX, path=str(path), settings=self._stores.settings()
            )
        return self._run(answer["seconds"], answer["messages"])

    def _run(self, seconds: float, messages: int) -> Run:
        return Run({self.rows[0].name: seconds}, {"messages": messages})


class Restart(_Start):
    """The writer was killed: the log's end must be found, and the newest part of queues and index is in doubt."""

    group = "restart"
    name = "restart"
    title = "restart after SIGKILL, 2 GB of log"
    goal = 3


class Rebuild(_Start):
    """The last exit was clean, and all queues and the index are gone."""

    group = "rebuild"
    name = "rebuild"
    title = "rebuild of queues and index, 2 GB of log"
    goal = 5

    def prepare(self, path: Path) -> None:
        (path / "abort").unlink()
        for folder in ("consumequeue", "index"):
            shutil.rmtree(path / folder)
