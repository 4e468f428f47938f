"""The threads of failover: a broker that cannot be directed leaves, and one that stops hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf

import pytest
from support.loopback import SOON_S, until
from support.model_dcs import Fate, ModelEngine, ModelSession

from penstock.broker.failover.consensus_engine import ChangeKind, Leader, Session, Transaction, View, history_key
from penstock.broker.failover.election_rules import ReplicaState
from penstock.broker.failover.failover_threads import Failover
from penstock.broker.failover.lease import MasterHealth
from penstock.broker.failover.sync_set import FollowerState

_TTL_S = 0.2


class StubNode:
    """A node that plays each part at once, and notes it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.fails: BaseException | None = None
        self.wake: Callable[[], object] = lambda: None
        self.deadline: Callable[[], float] = lambda: inf
        self.id, self.required, self.fenced = 1, 1, ""
        self.elections_won = self.role_changes = self.tails_cut = self.tail_bytes_cut = 0

    def describe(self) -> ReplicaState:
        if self.fails is not None:
            raise self.fails
        return ReplicaState(name="a", incarnation="a.1", place="here")

    def saw(self, view: View) -> None:
        return

    def follow(self, my_id: int, leader: Leader) -> None:
        self.parts.append("follow")

    def stand(self) -> None:
        self.parts.append("stand")

    def lead(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        self.parts.append(f"lead {epoch}")

    def wait(self, why: str) -> None:
        self.parts.append("wait")

    def require(self, required: frozenset[int]) -> None:
        return

    def followers(self) -> Mapping[int, FollowerState]:
        return {}

    def log_end(self) -> int:
        return 0

    def close_writes(self) -> None:
        self.parts.append("close")

    def open_writes(self) -> None:
        return

    def health(self, limit_s: float) -> MasterHealth:
        return MasterHealth()


class Running:
    """Failover over the model, whose clock stands still."""

    def __init__(self) -> None:
        self.engine = ModelEngine()
        self.sessions: list[ModelSession] = []
        self.node = StubNode()
        self.failover = Failover(self.node, self._open, _TTL_S)  # type: ignore[arg-type]
        self.deaths: list[BaseException] = []
        self.failover.on_death = self.deaths.append

    def _open(self, has_lease: bool) -> Session:
        self.sessions.append(ModelSession(self.engine, _TTL_S))
        return self.sessions[-1]

    async def until_it_leads(self) -> None:
        self.failover.start()
        await until(lambda: self.failover.keeper is not None and self.failover.keeper.is_leading)


def run(check: Callable[[], object]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SOON_S):
            await check()  # type: ignore[misc]

    asyncio.run(main())


def test_the_first_replica_leads() -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        assert running.node.parts == ["stand", "lead 1"]
        await running.failover.stop()

    run(check)


def test_when_the_keeper_fails_the_lease_is_released_and_the_broker_leaves(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        running.node.fails = ZeroDivisionError("no more")
        await until(lambda: bool(running.deaths))
        assert running.engine.view().leader is None
        assert "the broker leaves" in caplog.text
        await running.failover.stop()

    run(check)


def test_a_master_that_stops_refuses_messages_and_gives_up_its_leadership() -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        await running.failover.stop()
        assert running.node.parts == ["stand", "lead 1", "close"]
        assert running.engine.view().leader is None
        assert running.engine.leases == {}
        assert running.deaths == []

    run(check)


def test_after_its_lease_has_ended_a_master_goes_on_in_the_same_epoch_with_another_one() -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        running.engine.revoke(running.sessions[0].lease)
        await until(lambda: len(running.sessions) > 1 and running.engine.view().leader is not None)
        leader = running.engine.view().leader
        assert leader is not None
        assert leader.epoch == 1
        assert running.node.parts == ["stand", "lead 1"]
        await running.failover.stop()

    run(check)


def test_while_the_engine_is_away_a_replica_keeps_its_part() -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        running.sessions[0].fate = Fate.REQUEST_LOST
        await until(lambda: "does not answer" in running.failover.problem)
        running.sessions[0].fate = Fate.ANSWERED
        await until(lambda: running.failover.problem == "")
        assert running.node.parts == ["stand", "lead 1"]
        await running.failover.stop()

    run(check)


def test_the_report_has_the_set_and_the_last_masters() -> None:
    async def check() -> None:
        running = Running()
        before = running.failover.report()
        assert (before.engine_answers, before.problem) == (False, "the consensus engine has not answered yet")
        await running.until_it_leads()
        await until(lambda: bool(running.failover.report().masters))
        report = running.failover.report()
        assert (report.id, report.role, report.epoch, report.master, report.sync) == (1, "master", 1, 1, [1])
        assert (report.engine_answers, report.problem) == (True, "")
        assert [(each.epoch, each.master, each.why) for each in report.masters] == [(1, 1, "the first replica")]
        await until(lambda: [each.role for each in running.failover.report().replicas] == ["master"])
        await running.failover.stop()

    run(check)


def test_the_report_says_that_the_engine_is_away_and_counts_the_renewals_that_failed() -> None:
    async def check() -> None:
        running = Running()
        await running.until_it_leads()
        assert running.failover.report().failed_renewals == 0
        running.sessions[0].fate = Fate.REQUEST_LOST
        await until(lambda: running.failover.report().failed_renewals > 1)
        report = running.failover.report()
        assert not report.engine_answers
        assert "does not answer" in report.problem
        assert report.epoch == 1, "what was known last is still shown"
        running.engine.revoke(running.sessions[0].lease)
        running.sessions[0].fate = Fate.ANSWERED
        await until(lambda: len(running.sessions) > 1 and running.failover.report().engine_answers)
        assert running.failover.report().failed_renewals >= report.failed_renewals, "a counter never falls"
        await running.failover.stop()

    run(check)


def test_a_history_that_cannot_be_read_does_not_stop_elections(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        running = Running()
        planted = Transaction(what=ChangeKind.ORDER, puts={history_key(2_000_000_000): b"no history"})
        ModelSession(running.engine, 1000).commit(planted)
        await running.until_it_leads()
        await until(lambda: "the history of masters cannot be read" in caplog.text)
        await until(lambda: running.failover.report().engine_answers)
        assert running.failover.report().masters == []
        assert caplog.text.count("the history of masters cannot be read") == 1
        await running.failover.stop()

    run(check)
