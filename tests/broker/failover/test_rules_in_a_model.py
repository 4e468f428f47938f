"""Keepers and rules over a model of engine, logs and processes: whatever happens, no acknowledged message is lost."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.effort import chosen_seed
from support.model_dcs import Fate
from support.model_replicas import Cluster, ModelNode, Violated

from penstock.broker.failover import election_rules
from penstock.broker.failover.consensus_engine import View
from penstock.broker.failover.sync_set import SyncSet

_STEPS = 500
_NUMBERS = st.integers(0, 4)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("penstock.failover")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def _violation(seed: int, broken: str = "") -> str:
    """Returns which invariant a random history violates; empty if none."""
    cluster = Cluster(3 + seed % 3, seed, broken)
    try:
        cluster.run(_STEPS)
        cluster.heal()
        cluster.check()
        cluster.check_logs()
    except Violated as violated:
        return str(violated)
    return ""


def test_random_histories_lose_nothing_and_end_with_a_whole_set() -> None:
    first = chosen_seed() % 1_000_000
    for seed in range(first, first + 60):
        assert _violation(seed) == "", f"history {seed}"


def test_histories_have_elections_and_acknowledged_messages() -> None:
    cluster = Cluster(3, 1)
    cluster.run(5000)
    cluster.heal()
    assert cluster.elections > 10
    assert len(cluster.acknowledged) > 50


class FailoverMachine(RuleBasedStateMachine):
    """The same steps, chosen by Hypothesis, which shortens a history that violates an invariant."""

    @initialize(count=st.integers(3, 5), seed=st.integers(0, 1000))
    def found(self, count: int, seed: int) -> None:
        self.cluster = Cluster(count, seed)

    def _node(self, number: int) -> ModelNode:
        nodes = list(self.cluster.nodes.values())
        return nodes[number % len(nodes)]

    @rule(number=_NUMBERS, fate=st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, *Fate]))
    def tick(self, number: int, fate: Fate) -> None:
        self.cluster.tick(self._node(number), fate)

    @rule(number=_NUMBERS)
    def renew(self, number: int) -> None:
        self.cluster.renew(self._node(number))

    @rule(number=_NUMBERS, messages=st.integers(1, 3))
    def put(self, number: int, messages: int) -> None:
        for _ in range(messages):
            self.cluster.put(self._node(number))

    @rule(number=_NUMBERS)
    def copy_and_report(self, number: int) -> None:
        self.cluster.copy(self._node(number))
        self.cluster.report(self._node(number))

    @rule(number=st.integers(0, 50))
    def deliver(self, number: int) -> None:
        if self.cluster.messages:
            self.cluster.deliver(number % len(self.cluster.messages))

    @rule(number=_NUMBERS)
    def acknowledge(self, number: int) -> None:
        self.cluster.acknowledge(self._node(number))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.engine.pass_time(seconds)

    @rule(number=_NUMBERS)
    def carry_out_late(self, number: int) -> None:
        if self.cluster.engine.delayed:
            self.cluster.engine.apply_delayed(number % len(self.cluster.engine.delayed))

    @rule(number=_NUMBERS, keeps=st.integers(0, 2))
    def kill(self, number: int, keeps: int) -> None:
        if self._node(number).lives:
            self._node(number).kill(keeps)

    @rule(number=_NUMBERS)
    def start(self, number: int) -> None:
        if not self._node(number).lives:
            self._node(number).start()

    @rule(number=_NUMBERS)
    def hold_master_for_dead(self, number: int) -> None:
        self._node(number).dead_leader = self.cluster.engine.view().leader_version

    @rule(number=_NUMBERS, slow=st.sets(st.integers(1, 5), max_size=3))
    def hold_for_slow(self, number: int, slow: set[int]) -> None:
        self._node(number).slow = slow

    @rule(number=_NUMBERS)
    def disconnect(self, number: int) -> None:
        self.cluster.disconnect(self._node(number))

    @rule(number=st.integers(0, 2))
    def order(self, number: int) -> None:
        self.cluster.order(number)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.heal()
            self.cluster.check()
            self.cluster.check_logs()


def test_histories_of_hypothesis_lose_nothing_and_end_with_a_whole_set() -> None:
    effort = settings(
        max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(FailoverMachine, settings=effort)


# -- each rule is needed: without it, an invariant is violated -------------------------------------------------------


def _is_noticed(broken: str = "") -> bool:
    for seed in range(100):
        try:
            if _violation(seed, broken):
                return True
        except KeyError:
            return True
    return False


def test_it_is_noticed_if_one_replica_of_the_set_is_enough_for_an_ack() -> None:
    assert _is_noticed("one of the set is enough")


def test_it_is_noticed_if_the_end_is_read_before_a_replica_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: SyncSet, end: int) -> SyncSet:
        return dataclasses.replace(self, joining=dict.fromkeys(self.joining, 0))

    monkeypatch.setattr(SyncSet, "applied", hasty)
    assert _is_noticed()


def test_it_is_noticed_if_a_replica_is_dropped_before_the_shrink_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: SyncSet, members: frozenset[int]) -> SyncSet:
        return dataclasses.replace(self, members=frozenset(members), joining={})

    monkeypatch.setattr(SyncSet, "attempt", hasty)
    assert _is_noticed()


def test_it_is_noticed_if_a_replica_outside_the_set_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_rules, "_why_not", lambda state, me, my_id: "")
    assert _is_noticed()


def test_it_is_noticed_if_a_set_is_never_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncSet, "next_set", lambda self, followers, limit_s: None)
    assert _is_noticed()


class Script:
    """A history step by step: `a` founds the set, `b` and `c` follow it."""

    def __init__(self, broken: str = "") -> None:
        self.cluster = Cluster(3, 0, broken, interleaves=False)
        self.a, self.b, self.c = self.cluster.nodes.values()
        self.rounds(self.a, 4)
        for node in (self.b, self.c):
            self.rounds(node, 3)

    def rounds(self, node: ModelNode, count: int = 1) -> None:
        for _ in range(count):
            self.cluster.tick(node)

    def replicate(self, node: ModelNode, *, delivers: bool = True) -> None:
        """The node has all that its master has, and reports it."""
        for _ in range(20):
            self.cluster.copy(node)
        self.cluster.report(node)
        if delivers:
            self.cluster.deliver(len(self.cluster.messages) - 1)

    def put(self, node: ModelNode, count: int = 1) -> None:
        for _ in range(count):
            self.cluster.put(node)

    @property
    def sync(self) -> tuple[int, ...]:
        state = self.cluster.engine.view().state
        assert state is not None
        return state.sync


def _joins_unrequired() -> None:
    script = Script()
    script.replicate(script.b)
    script.put(script.a)
    script.rounds(script.a)  # b is required from here on
    script.replicate(script.b)
    script.put(script.a)
    script.cluster.acknowledge(script.a)
    script.rounds(script.a)  # b has what the log had then: the set is written


def test_a_replica_is_required_before_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    _joins_unrequired()

    def only_the_published(self: ModelNode, required: frozenset[int]) -> None:
        state = self.cluster.engine.view().state
        assert state is not None
        self.required = required & {*state.sync}

    monkeypatch.setattr(ModelNode, "require", only_the_published)
    with pytest.raises(Violated, match="lacks the acknowledged message"):
        _joins_unrequired()


def _expands_late() -> None:
    script = Script()
    script.replicate(script.b)
    script.cluster.tick(script.a, Fate.DELAYED)  # the set with b has no answer
    script.cluster.disconnect(script.b)
    script.rounds(script.a, 2)
    script.put(script.a)
    script.cluster.acknowledge(script.a)
    script.cluster.engine.apply_delayed(0)
    script.cluster.check()


def test_a_view_does_not_settle_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write without an answer may still be carried out after a view that does not show it."""
    _expands_late()
    seen = SyncSet.seen

    def forgetful(self: SyncSet, view: View) -> SyncSet:
        return dataclasses.replace(seen(self, view), attempted=frozenset())

    monkeypatch.setattr(SyncSet, "seen", forgetful)
    with pytest.raises(Violated, match="lacks the acknowledged message"):
        _expands_late()


def test_an_unknown_outcome_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncSet, "attempt", lambda self, members: self)
    with pytest.raises(Violated, match="lacks the acknowledged message"):
        _expands_late()


def _reports_late(broken: str) -> None:
    script = Script(broken)
    a, b, c, cluster = script.a, script.b, script.c, script.cluster
    script.put(a)
    script.replicate(b)
    script.rounds(a, 3)
    assert script.sync == (1, 2)
    script.put(a, 2)
    script.replicate(c, delivers=False)  # c has three messages of epoch 1; its report is on its way
    b.dead_leader = cluster.engine.view().leader_version
    script.rounds(b, 4)  # b is elected, without the last two
    script.put(b, 2)
    script.rounds(a, 2)
    script.replicate(a)
    script.rounds(b, 3)
    assert script.sync == (1, 2)
    a.dead_leader = cluster.engine.view().leader_version
    script.rounds(a, 4)
    assert script.sync == (1,)
    cluster.acknowledge(a)
    script.rounds(c)
    cluster.random.seed(1)
    cluster.connect(c)  # c cuts what epoch 1 has left it, and copies nothing yet
    cluster.deliver(0)
    script.rounds(a, 3)
    cluster.check()


def test_a_report_of_another_epoch_does_not_count() -> None:
    _reports_late("")
    with pytest.raises(Violated, match="lacks the acknowledged message"):
        _reports_late("reports of another epoch count")
