"""Reading queues page by page, 32 messages each: the records' bytes, or decoded messages.

Both sides copy the bytes out of the log. Penstock also checks each body's CRC, which Java does not do here.
"""

from __future__ import annotations

import time

from support.peers import Peer

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import QUEUES, SIZE_IDS, SIZE_NAMES, TOPIC, Ground

PAGE = 32


class Get(Scenario):
    """All four queues, one after the other, from their beginning."""

    group = "get"

    def __init__(self, ground: Ground, size: int, *, decoded: bool) -> None:
        self._ground = ground
        self._size = size
        self._decoded = decoded
        self._most = min(ground.sizes.got, ground.sizes.messages[size]) // QUEUES
        kind = "decoded" if decoded else "raw"
        self._row = Row(
            f"get-{kind}-{SIZE_IDS[size]}",
            f"get {kind} pages of {PAGE}, {SIZE_NAMES[size]}",
            "messages/s",
            None if decoded else Goal("ratio at least", 1),
        )
        self.rows = (self._row,)

    def ours(self) -> Run:
        messages = size = 0
        with self._ground.opened(self._size) as store:
            started = time.perf_counter()
            for queue_id in range(QUEUES):
                offset = 0
                while offset < self._most:
                    page = store.get(TOPIC, queue_id, offset, PAGE)
                    found = len(page.messages) if self._decoded else page.count
                    if not found:
                        break
                    messages += found
                    size += len(page.data)
                    offset = page.next_begin_offset
            took = time.perf_counter() - started
        return self._run(took, messages, size)

    def java(self, peer: Peer) -> Run:
        with self._ground.opened_java(peer, self._size):
            answer = self._ground.ask(peer, "get", decode=self._decoded, most=self._most)
        return self._run(answer["seconds"], answer["messages"], answer["bytes"])

    def _run(self, seconds: float, messages: int, size: int) -> Run:
        return Run({self._row.name: messages / seconds}, {"messages": messages, "bytes": size})
