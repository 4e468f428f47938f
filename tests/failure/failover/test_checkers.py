"""Each checker of failover notices a broken rule, and a cluster that keeps all rules passes.

The histories are made by hand, or by a model of a cluster in which one rule at a time is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.failover.checkers import CHECKERS, check, outages
from support.failover.history import (
    Commit,
    Consumption,
    History,
    Leader,
    Outcome,
    Replica,
    Send,
    State,
    Stored,
    Strike,
    Tail,
)
from support.failover.model import ModelCluster, Rule

STEPS = 300
SEEDS = range(40)
NOTICED = {
    Rule.ALL_OF_THE_SET: {"C1", "C4", "C5", "C7", "C8"},
    Rule.REQUIRED_FIRST: {"C1", "C4", "C5", "C7", "C8"},
    Rule.ONLY_FROM_THE_SET: {"C1", "C8", "C9"},
    Rule.EPOCH_IN_FRAMES: {"C8"},
    Rule.SAME_START: {"C6", "C7"},
    Rule.VISIBLE: {"C4", "C5"},
    Rule.CUT: {"C4", "C6"},
    Rule.KEPT: {"C8"},
    Rule.WAITS_END: {"C1", "C4", "C7", "C8"},
    Rule.REFUSED: {"C2"},
    Rule.ONCE: {"C1", "C2"},
    Rule.OWN_OFFSET: {"C1", "C3", "C4"},
    Rule.COMMITS: {"C5"},
    Rule.ONE_TRANSACTION: {"C9"},
}


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, STEPS))
def test_a_cluster_that_keeps_all_rules_passes(seed: int, steps: int) -> None:
    assert check(ModelCluster(seed).run(steps)) == []


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name.lower())
def test_a_broken_rule_is_noticed(rule: Rule) -> None:
    found: set[str] = set()
    for seed in SEEDS:
        found |= {finding.rule for finding in check(ModelCluster(seed, rule).run(STEPS))}
        if NOTICED[rule] <= found:
            return
    pytest.fail(f"only {sorted(found)} noticed that {rule}")


# -- by hand ---------------------------------------------------------------------------------------------------------


def stored(number: int, **changes: Any) -> Stored:
    """The record with the token `m<number>`, as the only queue has it."""
    made = Stored(number * 100, 100, f"d{number}", "q", number, f"m{number}", "a" if number < 2 else "b")
    return msgspec.structs.replace(made, **changes)


def sent(number: int, outcome: Outcome = Outcome.OK, /, **changes: Any) -> Send:
    made = Send("p", number, f"m{number}", "q", number + 0.0, number + 0.5, outcome, number, number * 100)
    return msgspec.structs.replace(made, **{"broker": "a" if number < 2 else "b", **changes})


def replica(name: str, *records: Stored, **changes: Any) -> Replica:
    end = records[-1].physical + records[-1].size if records else 0
    made = Replica(name, name, 0, end, records, ((1, 0), (2, 200)))
    return msgspec.structs.replace(made, **changes)


def sound(**changes: Any) -> History:
    """Two messages of epoch 1 and two of epoch 2; all were acknowledged and consumed."""
    records = [stored(number) for number in range(4)]
    made = History(
        sends=tuple(sent(number) for number in range(4)),
        consumptions=tuple(Consumption("g", "c", "q", number, f"m{number}", number + 0.7) for number in range(4)),
        commits=(Commit("g", "q", 2, 2.0), Commit("g", "q", 4, 5.0)),
        groups=("g",),
        ordered=("g",),
        replicas=(replica("a", *records), replica("b", *records)),
        states=(State(1, 1, 1, (1,)), State(2, 1, 1, (1, 2)), State(3, 2, 2, (2,)), State(4, 2, 2, (1, 2))),
        leaders=(Leader(1, 1, 1, "a"), Leader(3, 2, 2, "b")),
        strikes=(Strike("kill", "a", 1.6, 1.8),),
    )
    return msgspec.structs.replace(made, **changes)


def both(*records: Stored, **changes: Any) -> tuple[Replica, Replica]:
    return replica("a", *records, **changes), replica("b", *records, **changes)


def consumed(*offsets: int, at: float = 0.7) -> tuple[Consumption, ...]:
    return tuple(Consumption("g", "c", "q", each, f"m{each}", number + at) for number, each in enumerate(offsets))


ALL = [stored(number) for number in range(4)]
BROKEN: dict[str, tuple[str, Callable[[], History]]] = {
    "lost": ("C1", lambda: sound(replicas=both(*ALL[:3]))),
    "at another offset": ("C1", lambda: sound(sends=(*sound().sends[:3], sent(3, offset=9)))),
    "at another place of the log": ("C1", lambda: sound(sends=(*sound().sends[:3], sent(3, physical=900)))),
    "doubled": ("C1", lambda: sound(replicas=both(*ALL, stored(4, token="m3")))),
    "invented": ("C2", lambda: sound(replicas=both(*ALL, stored(4)))),
    "refused and stored": ("C2", lambda: sound(sends=(*sound().sends[:3], sent(3, Outcome.REFUSED)))),
    "stored twice without a promise": (
        "C2",
        lambda: sound(
            sends=(*sound().sends, sent(9, Outcome.UNKNOWN)),
            replicas=both(*ALL, stored(4, token="m9"), stored(5, token="m9")),
        ),
    ),
    "out of order": ("C3", lambda: sound(sends=(sent(0, number=7), *sound().sends[1:]))),
    "another message at a consumer": (
        "C4",
        lambda: sound(consumptions=(*sound().consumptions, Consumption("g", "c", "q", 2, "m9", 9.0))),
    ),
    "another message in a log": (
        "C4",
        lambda: sound(replicas=(replica("a", *ALL[:3], stored(3, token="m8")), both(*ALL)[1])),
    ),
    "not consumed": ("C5", lambda: sound(consumptions=consumed(0, 1, 2), commits=())),
    "consumed elsewhere than acknowledged": (
        "C5",
        lambda: sound(consumptions=(*sound().consumptions, Consumption("g", "c", "q", 9, "m3", 9.0))),
    ),
    "consumed in another queue": (
        "C5",
        lambda: sound(consumptions=(*sound().consumptions, Consumption("g", "c", "r", 3, "m3", 9.0))),
    ),
    "consumed out of order": ("C5", lambda: sound(consumptions=consumed(0, 2, 1, 3), commits=())),
    "a commit that skips": ("C5", lambda: sound(commits=(Commit("g", "q", 4, 2.0),))),
    "twice after a switchover": (
        "C5",
        lambda: sound(strikes=(Strike("switchover", "a", 1.6, 1.8),), consumptions=consumed(0, 1, 1, 2, 3), commits=()),
    ),
    "other bytes": ("C6", lambda: sound(replicas=(replica("a", *ALL[:3], stored(3, digest="?")), both(*ALL)[1]))),
    "a shorter log": ("C6", lambda: sound(replicas=(replica("a", *ALL[:3]), both(*ALL)[1]))),
    "an unsound index": ("C6", lambda: sound(replicas=both(*ALL, problems=("an index item points nowhere",)))),
    "two masters of an epoch": ("C7", lambda: sound(leaders=(*sound().leaders, Leader(5, 2, 1, "a")))),
    "two starts of an epoch": (
        "C7",
        lambda: sound(replicas=(replica("a", *ALL, epochs=((1, 0), (2, 300))), both(*ALL)[1])),
    ),
    "another epoch of the same bytes": (
        "C7",
        lambda: sound(replicas=(replica("a", *ALL, epochs=((1, 0), (3, 200))), both(*ALL)[1]), leaders=()),
    ),
    "two starts of an epoch without messages": (
        "C7",
        lambda: sound(
            replicas=tuple(
                replica(name, *ALL, epochs=((1, 0), (2, 200), (3, start))) for name, start in (("a", 400), ("b", 450))
            )
        ),
    ),
    "an epoch that is listed twice": ("C7", lambda: sound(replicas=both(*ALL, epochs=((1, 0), (2, 200), (2, 200))))),
    "epochs out of order": ("C7", lambda: sound(replicas=both(*ALL, epochs=((2, 0), (1, 200))))),
    "two writers of an epoch": ("C7", lambda: sound(replicas=both(*ALL[:3], stored(3, writer="a")))),
    "acknowledged after its epoch": ("C7", lambda: sound(sends=(*sound().sends[:3], sent(3, broker="a")))),
    "two epochs at once": ("C7", lambda: sound(sends=(sent(0), sent(1, began=3.6, ended=3.7), sent(2), sent(3)))),
    "an acknowledged tail": ("C8", lambda: sound(replicas=both(*ALL, tails=(Tail(200, 300, ("m1",)),)))),
    "a tail that is not kept": ("C8", lambda: sound(sends=(*sound().sends, sent(7, Outcome.STORED)))),
    "a master outside its set": ("C9", lambda: sound(states=(*sound().states, State(5, 2, 2, (1,))))),
    "elected from outside": ("C9", lambda: sound(states=(*sound().states, State(5, 3, 3, (3,))))),
    "a new epoch with a wide set": ("C9", lambda: sound(states=(*sound().states, State(5, 3, 1, (1, 2, 3))))),
    "an epoch that is left out": ("C9", lambda: sound(states=(*sound().states, State(5, 4, 2, (2,))))),
    "another master in an epoch": ("C9", lambda: sound(states=(*sound().states, State(5, 2, 1, (1, 2))))),
    "a wrong foundation": ("C9", lambda: sound(states=sound().states[1:])),
    "a long outage": (
        "C10",
        lambda: sound(strikes=(Strike("kill", "a", 0.1, 0.2),), sends=(*sound().sends[:1], sent(3))),
    ),
    "an outage without an end": ("C10", lambda: sound(strikes=(Strike("kill", "b", 8.0, 8.1),))),
}


def test_a_sound_history_passes() -> None:
    assert check(sound(), {"kill": 1.0}) == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_way_to_break_a_rule_is_noticed(name: str) -> None:
    rule, broken = BROKEN[name]
    assert rule in {finding.rule for finding in check(broken(), {"kill": 1.0})}


def test_a_message_without_a_promise_may_be_cut_off_and_its_offset_given_again() -> None:
    early = sent(9, Outcome.STORED, offset=2, physical=200, broker="a")
    tails = (Tail(200, 300, ("m9",)),)
    assert check(sound(sends=(*sound().sends, early), replicas=both(*ALL, tails=tails))) == []


def test_a_late_answer_of_an_earlier_epoch_to_an_early_send_is_allowed() -> None:
    assert check(sound(sends=(sent(0), sent(1, ended=9.0), sent(2), sent(3)))) == []


def test_each_checker_has_histories_that_break_its_rule() -> None:
    assert {rule for rule, _ in BROKEN.values()} == {*CHECKERS, "C10"}


def test_what_a_lost_disk_had_is_not_asked_for() -> None:
    gone = sent(9, Outcome.STORED, offset=2, physical=200, broker="a")
    assert check(sound(sends=(*sound().sends, gone), wiped=("a",))) == []


def test_a_store_that_was_moved_aside_as_a_whole_may_hold_acknowledged_messages() -> None:
    assert check(sound(replicas=both(*ALL, tails=(Tail(0, 400, ("m1",), is_whole=True),)))) == []


def test_a_forced_election_may_choose_any_replica_alone() -> None:
    forced = (*sound().states, State(5, 3, 3, (3,), forced=True))
    assert check(sound(states=forced)) == []
    assert check(sound(states=(*sound().states, State(5, 3, 3, (1, 3), forced=True)))) != []


def test_a_switchover_may_begin_with_the_old_master_in_the_set() -> None:
    assert check(sound(states=(*sound().states, State(5, 3, 1, (1, 2))))) == []


def test_what_consumers_that_join_receive_twice_before_the_first_strike_is_allowed() -> None:
    late = (Strike("switchover", "a", 4.0, 4.1),)
    assert check(sound(strikes=late, consumptions=consumed(0, 1, 1, 2, 3), commits=())) == []


def test_an_outage_lasts_from_the_strike_to_the_first_answer_of_a_later_send() -> None:
    strikes = (Strike("kill", "a", 1.6, 1.8), Strike("engine lost", "n1", 1.2, 2.9, is_writable=False))
    found = {kind: seconds for kind, _, seconds in outages(sound(strikes=strikes))}
    assert found == {"kill": pytest.approx(0.9), "engine lost": pytest.approx(0.6)}


def test_a_history_is_saved_and_read_again(tmp_path: Path) -> None:
    made = ModelCluster(1).run(STEPS)
    made.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json") == made
