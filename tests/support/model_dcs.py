"""An engine in memory, for tests: leases, versions and transactions as of etcd, by a clock that the test moves.

A commit can go wrong on purpose (`Fate`): its request is lost, its answer is lost, or it is carried out later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.broker.failover.consensus_engine import (
    ABSENT,
    HISTORY,
    LEADER,
    Committed,
    EngineAway,
    KeyValue,
    Mastership,
    NotExpected,
    Outcome,
    Transaction,
    Unknown,
    View,
    decode_history,
)


class Fate(Enum):
    """What becomes of a request to the engine."""

    ANSWERED = "answered"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    DELAYED = "carried out later"


@dataclass(frozen=True)
class _Stored:
    value: bytes
    version: int
    lease: int


class ModelEngine:
    """The keys and the leases."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revision = 0
        self.keys: dict[str, _Stored] = {}
        self.leases: dict[int, float] = {}
        """When each lease ends."""
        self.delayed: list[tuple[Transaction, int]] = []
        self.on_change: Callable[[Transaction], object] = lambda transaction: None
        """Called before a transaction is carried out."""
        self._last_lease = 0

    def grant(self, ttl_s: float) -> int:
        self._last_lease += 1
        self.leases[self._last_lease] = self.now + ttl_s
        return self._last_lease

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for lease in [each for each, end in self.leases.items() if end <= self.now]:
            self.revoke(lease)

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        gone = [key for key, stored in self.keys.items() if stored.lease == lease]
        for key in gone:
            del self.keys[key]
        self.revision += bool(gone)

    def apply(self, transaction: Transaction, lease: int) -> bool:
        """Carries out a transaction if its expectations hold. Returns whether it did."""
        for key, version in transaction.expected.items():
            stored = self.keys.get(key)
            if version != (ABSENT if stored is None else stored.version):
                return False
        leader = self.keys.get(LEADER)
        if transaction.mine and (leader is None or leader.lease != lease):
            return False
        if transaction.leased and lease not in self.leases:
            return False
        self.on_change(transaction)
        self.revision += 1
        for key in transaction.deletes:
            self.keys.pop(key, None)
        for key, value in transaction.puts.items():
            self.keys[key] = _Stored(value, self.revision, lease if key in transaction.leased else 0)
        return True

    def apply_delayed(self, number: int) -> None:
        """Carries out a delayed transaction now, if its expectations still hold."""
        transaction, lease = self.delayed.pop(number)
        self.apply(transaction, lease)

    def view(self, lease: int = 0) -> View:
        entries = {
            key: KeyValue(stored.value, stored.version, lease != 0 and stored.lease == lease)
            for key, stored in self.keys.items()
            if not key.startswith(HISTORY)
        }
        return View.of(self.revision, entries)


class ModelSession:
    """A session at a ModelEngine."""

    def __init__(self, engine: ModelEngine, ttl_s: float = 6.0) -> None:
        self._engine = engine
        self.ttl_s = ttl_s
        self.lease = engine.grant(ttl_s)
        self.deadline = engine.now + ttl_s
        self.fate = Fate.ANSWERED
        """What becomes of the next requests."""
        self._woken = threading.Event()

    def renew(self) -> bool:
        self._reach()
        if self.lease not in self._engine.leases:
            return False
        self._engine.leases[self.lease] = self.deadline = self._engine.now + self.ttl_s
        return True

    def view(self) -> View:
        self._reach()
        return self._engine.view(self.lease)

    def commit(self, transaction: Transaction) -> Outcome:
        if self.fate is Fate.REQUEST_LOST:
            return Unknown("the request was lost")
        if self.fate is Fate.DELAYED:
            self._engine.delayed.append((transaction, self.lease))
            return Unknown("the request takes its time")
        done = self._engine.apply(transaction, self.lease)
        if self.fate is Fate.ANSWER_LOST:
            return Unknown("the answer was lost")
        view = self._engine.view(self.lease)
        return Committed(view) if done else NotExpected(view)

    def history(self, limit: int) -> list[Mastership]:
        self._reach()
        keys = sorted((key for key in self._engine.keys if key.startswith(HISTORY)), reverse=True)
        return [decode_history(key, self._engine.keys[key].value) for key in keys[:limit]]

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def release(self) -> None:
        self._engine.revoke(self.lease)

    def close(self) -> None:
        return

    def _reach(self) -> None:
        if self.fate is Fate.REQUEST_LOST:
            raise EngineAway("no node of the engine answers")
