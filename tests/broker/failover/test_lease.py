"""The thread that renews a lease: only while the broker is healthy, and its end is noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.loopback import SOON_S
from support.model_dcs import Fate, ModelEngine, ModelSession

from penstock.broker.failover.consensus_engine import LEADER, ChangeKind, Leader, Transaction
from penstock.broker.failover.lease import LeaseThread, MasterHealth

_TTL_S = 0.05


class Lease:
    """A lease thread over the model, whose clock stands still unless the test moves it."""

    def __init__(self, health: Callable[[], MasterHealth] = MasterHealth) -> None:
        self.engine = ModelEngine()
        self.session = ModelSession(self.engine, _TTL_S)
        key = frozenset({LEADER})
        leader = Leader(id=1, epoch=1, incarnation="a").to_bytes()
        self.session.commit(Transaction(what=ChangeKind.ELECT, puts={LEADER: leader}, leased=key))
        self.ended = threading.Event()
        self.why = ""
        self.thread = LeaseThread(self.session, health, self._on_end, lambda: self.engine.now)

    def _on_end(self, why: str) -> None:
        self.why = why
        self.ended.set()

    def wait_for_end(self) -> str:
        self.thread.start()
        assert self.ended.wait(SOON_S)
        self.thread.stop()
        return self.why


def test_a_lease_is_renewed_while_the_broker_is_healthy() -> None:
    asked = threading.Semaphore(0)

    def health() -> MasterHealth:
        asked.release()
        return MasterHealth()

    lease = Lease(health)
    lease.thread.start()
    for _ in range(5):
        assert asked.acquire(timeout=SOON_S)
    lease.thread.stop()
    assert lease.thread.renewed >= 4
    assert lease.why == ""


def test_a_lease_that_has_ended_is_reported() -> None:
    lease = Lease()
    lease.engine.pass_time(_TTL_S * 2)
    assert "has ended" in lease.wait_for_end()


def test_a_broker_that_will_not_become_healthy_releases_its_lease_at_once() -> None:
    lease = Lease(lambda: MasterHealth("a sync failed", is_final=True))
    assert "a sync failed" in lease.wait_for_end()
    assert lease.session.view().leader is None


def test_a_broker_that_is_unhealthy_for_half_of_the_time_releases_its_lease() -> None:
    def health() -> MasterHealth:
        lease.engine.now += _TTL_S / 4
        return MasterHealth("the disk hangs")

    lease = Lease(health)
    assert "the disk hangs" in lease.wait_for_end()
    assert lease.engine.now >= _TTL_S / 2
    assert lease.session.view().leader is None


def test_a_broker_that_recovers_in_time_keeps_its_lease() -> None:
    asked = threading.Semaphore(0)

    def health() -> MasterHealth:
        asked.release()
        return MasterHealth("slow") if lease.thread.renewed % 2 == 0 and not lease.engine.now else MasterHealth()

    lease = Lease(health)
    lease.thread.start()
    assert asked.acquire(timeout=SOON_S)
    lease.engine.now = _TTL_S / 4
    for _ in range(4):
        assert asked.acquire(timeout=SOON_S)
    lease.thread.stop()
    assert lease.why == ""
    assert lease.session.view().leader is not None


def test_an_engine_that_is_away_is_asked_again() -> None:
    lease = Lease()
    lease.session.fate = Fate.REQUEST_LOST
    lease.thread.start()
    while lease.thread.failed < 2:
        assert not lease.ended.wait(0.01)
    lease.session.fate = Fate.ANSWERED
    while not lease.thread.renewed:
        assert not lease.ended.wait(0.01)
    lease.thread.stop()
    assert lease.why == ""


def test_when_the_thread_fails_the_end_of_the_lease_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def health() -> MasterHealth:
        raise ZeroDivisionError

    lease = Lease(health)
    assert "ZeroDivisionError" in lease.wait_for_end()
    assert "has failed" in caplog.text
