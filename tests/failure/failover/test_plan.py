"""Plans of accidents: the same for the same seed, within what a cluster allows for."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.failover.plan import Kind, Shape, Side, kinds_of, make_plan, possible

SHAPES = st.builds(
    Shape,
    brokers=st.integers(2, 5),
    engines=st.sampled_from([1, 3]),
    ttl_s=st.sampled_from([2.0, 3.0, 6.0]),
    has_network=st.booleans(),
    has_clocks=st.booleans(),
    has_switchover=st.booleans(),
)


@given(seed=st.integers(0, 1 << 30), shape=SHAPES)
def test_a_seed_gives_one_plan(seed: int, shape: Shape) -> None:
    assert make_plan(seed, 20, shape) == make_plan(seed, 20, shape)
    assert make_plan(seed, 20, shape) != make_plan(seed + 1, 20, shape)


@given(seed=st.integers(0, 1 << 30), shape=SHAPES)
def test_a_plan_has_only_what_the_cluster_allows_for(seed: int, shape: Shape) -> None:
    allowed = set(possible(shape))
    for blow in make_plan(seed, 50, shape):
        assert 1 <= len(blow.strikes) <= 3
        assert {(strike.kind, strike.target) for strike in blow.strikes} <= allowed
        assert sum(strike.kind is Kind.LOSE_DISK for strike in blow.strikes) <= 1
        assert len(blow.strikes) == 1 or all(strike.target is not Side.BROKERS for strike in blow.strikes)
        for strike in blow.strikes:
            assert strike.lasts_s >= 0
            assert strike.kind is not Kind.PAUSE or 0.2 * shape.ttl_s <= strike.lasts_s <= 3 * shape.ttl_s
            assert (strike.other is not None) == (strike.kind is Kind.CUT)


def test_a_long_plan_has_every_kind_alone_and_with_others() -> None:
    plan = make_plan(1, 500, Shape(engines=3, has_network=True, has_clocks=True))
    assert set(kinds_of(plan)) == set(Kind)
    assert all(count > 10 for count in Counter(kinds_of(plan)).values())
    assert {len(blow.strikes) for blow in plan} == {1, 2, 3}
    together = {frozenset(strike.kind for strike in blow.strikes) for blow in plan if len(blow.strikes) > 1}
    assert any(Kind.SWITCHOVER in kinds and Kind.PAUSE in kinds for kinds in together)
    pauses = [strike.lasts_s for blow in plan for strike in blow.strikes if strike.kind is Kind.PAUSE]
    assert min(pauses) < 3.0 < max(pauses), "below and beyond the time to live"


def test_links_between_any_two_sides_are_cut() -> None:
    plan = make_plan(1, 500, Shape(engines=3, has_network=True), only={Kind.CUT})
    cuts = {(strike.target, strike.other) for blow in plan for strike in blow.strikes}
    for broker, peer in ((Side.MASTER, Side.SLAVE), (Side.SLAVE, Side.MASTER)):
        assert {(broker, other) for other in (Side.ENGINE, peer, Side.CLIENT, Side.OTHERS)} <= cuts
    assert {(Side.ENGINE_LEADER, Side.ENGINE), (Side.ENGINE_LEADER, Side.OTHERS)} <= cuts
    assert {strike.way for blow in plan for strike in blow.strikes} == {0, 1, 2}


def test_a_plan_can_be_restricted_to_some_kinds() -> None:
    assert set(kinds_of(make_plan(1, 50, Shape(), only={Kind.KILL}))) == {Kind.KILL}


def test_strikes_under_which_nothing_can_be_stored_are_known() -> None:
    strikes = [strike for blow in make_plan(3, 300, Shape(engines=3)) for strike in blow.strikes]
    for strike in strikes:
        assert strike.is_writable == (strike.target is not Side.BROKERS), strike.name


def test_a_share_of_blows_hits_the_master() -> None:
    shape = Shape(engines=3, has_network=True, has_clocks=True)
    plan = make_plan(5, 500, shape, on_master=0.8)
    hits = [any(strike.target is Side.MASTER for strike in blow.strikes) for blow in plan]
    assert sum(hits) >= 0.75 * len(plan)
    assert set(kinds_of(plan)) == set(Kind), "the other accidents happen too"
    assert {len(blow.strikes) for blow in plan} == {1, 2, 3}
