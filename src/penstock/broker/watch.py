"""Says in the log what an operator should know about the store: slow puts, and whether it takes messages.

Looks once a second, so that nothing is timed on the way of a message. Slow syncs are said by the store itself.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.store.statistics import LATENCY_BOUNDS_MS
from penstock.store.store import MessageStore

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
