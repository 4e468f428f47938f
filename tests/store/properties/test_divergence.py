"""Random histories of masters: what the whole sync set had is never cut, and what is left is the master's log.

The model has a log as a list of writes, each one unit long and named by its epoch and its place. The rules under test
are those of the product: `find_common`, `begun` and `without_tail`. Each invariant is shown to notice a broken rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.store.replication.divergence import Common, LogHistory, find_common
from penstock.store.replication.epochs import Entries, EpochEntry, begun, without_tail

Write = tuple[int, int]
"""Which epoch wrote it, and a number that no other write has."""


@dataclass
class Replica:
    """One copy of the log."""

    log: list[Write] = field(default_factory=list)
    entries: Entries = ()
    reported: dict[int, int] = field(default_factory=dict)
    """By epoch, up to where this replica has told its master that it has the log."""
    masters_epoch: int = 0
    """The epoch of which it takes itself for the master; 0 if it knows that it is none."""

    def history(self) -> LogHistory:
        return LogHistory(self.entries, 0, len(self.log))


@dataclass
class Rules:
    """The rules that a test may break."""

    find: Callable[[LogHistory, LogHistory], Common] = find_common
    begin: Callable[[Entries, int, int], Entries] = begun
    acknowledged: Callable[[list[int]], int] = min
    """From the reports of the set, up to where the log is acknowledged."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Cluster:
    """A master, replicas that follow it, and what was acknowledged. `epoch` and `sync` are the engine's."""

    def __init__(self, count: int, rules: Rules) -> None:
        self.rules = rules
        self.replicas = [Replica() for _ in range(count)]
        self.epoch = 0
        self.master = 0
        self.sync = {0}
        self.writes = 0
        self.acknowledged: list[Write] = []
        self.elect(0)

    def elect(self, chosen: int) -> None:
        """A member of the set becomes master, alone in its set."""
        members = sorted(self.sync)
        self.master = members[chosen % len(members)]
        self.epoch += 1
        master = self.replicas[self.master]
        master.entries = self.rules.begin(master.entries, self.epoch, len(master.log))
        master.masters_epoch = self.epoch
        self.sync = {self.master}

    def write(self, count: int, by: int) -> None:
        """The master appends, or a former master that does not know that it is none any more."""
        writer = self.replicas[by]
        for _ in range(count if writer.masters_epoch else 0):
            self.writes += 1
            writer.log.append((writer.masters_epoch, self.writes))
        self.acknowledge()

    def follow(self, number: int, most: int) -> None:
        """A replica connects: it cuts what the master does not have, and copies at most so many writes."""
        if number == self.master:
            return
        replica, master = self.replicas[number], self.replicas[self.master]
        cut = self.rules.find(replica.history(), master.history()).end
        lost = [write for write in replica.log[cut:] if write in self.acknowledged]
        if lost:
            raise Violation(f"{lost} were acknowledged and are cut")
        del replica.log[cut:]
        replica.entries = without_tail(replica.entries, cut)
        if replica.log != master.log[:cut]:
            raise Violation("what is left is not the master's log")
        replica.entries = master.entries
        replica.masters_epoch = 0
        replica.log += master.log[cut : cut + most]
        replica.reported = {self.epoch: len(replica.log)}
        self.acknowledge()

    def expand(self, number: int) -> None:
        """A replica that has the whole log in this epoch joins the set."""
        if self.replicas[number].reported.get(self.epoch) == len(self.replicas[self.master].log):
            self.sync.add(number)

    def shrink(self, number: int) -> None:
        self.sync = (self.sync - {number}) | {self.master}
        self.acknowledge()

    def acknowledge(self) -> None:
        log = self.replicas[self.master].log
        reports = [self.replicas[each].reported.get(self.epoch, 0) for each in self.sync if each != self.master]
        end = self.rules.acknowledged([*reports, len(log)])
        if log[: len(self.acknowledged)] != self.acknowledged:
            raise Violation("the master lacks what was acknowledged")
        self.acknowledged = log[: max(end, len(self.acknowledged))]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["write", "late", "follow", "follow", "expand", "shrink", "elect"]), st.integers(0, 30)),
    max_size=60,
)


def play(actions: list[tuple[str, int]], rules: Rules) -> Cluster:
    cluster = Cluster(4, rules)
    for name, number in actions:
        if name == "write":
            cluster.write(1 + number % 3, cluster.master)
        elif name == "late":
            cluster.write(1 + number % 2, number % 4)
        elif name == "follow":
            cluster.follow(number % 4, number % 5)
        elif name == "expand":
            cluster.follow(number % 4, 1000)
            cluster.expand(number % 4)
        elif name == "shrink":
            cluster.shrink(number % 4)
        else:
            cluster.elect(number)
    for number in range(4):
        cluster.follow(number, 1000)
    assert all(replica.log == cluster.replicas[cluster.master].log for replica in cluster.replicas)
    return cluster


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(ACTIONS)
def test_what_the_whole_set_had_is_never_cut_and_all_logs_become_equal(actions: list[tuple[str, int]]) -> None:
    play(actions, Rules())


def keep_older(entries: Entries, epoch: int, start: int) -> Entries:
    """RocketMQ 5's rule: an epoch in which nothing was written keeps its entry, and the next one gets none."""
    if entries and entries[-1].start == start:
        return entries
    return begun(entries, epoch, start)


BROKEN = {
    "nothing is cut": Rules(find=lambda own, masters: Common(min(own.end, masters.end), is_proved=True)),
    "one of the set is enough": Rules(acknowledged=max),
    "the older epoch of one start stays": Rules(begin=keep_older),
    "the oldest common epoch decides": Rules(
        find=lambda own, masters: (
            find_common(own._replace(entries=own.entries[:1]), masters)
            if len(own.entries) < 2
            else Common(min(own.end_of(0), masters.end_of(0), own.entries[1].start), is_proved=True)
        )
    ),
}


@pytest.mark.parametrize("rules", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_noticed(rules: Rules) -> None:
    @settings(
        max_examples=3000,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(ACTIONS)
    def run(actions: list[tuple[str, int]]) -> None:
        play(actions, rules)

    with pytest.raises(AssertionError):
        run()


# -- single cases ----------------------------------------------------------------------------------------------------


def entries(*pairs: tuple[int, int]) -> Entries:
    return tuple(EpochEntry(*pair) for pair in pairs)


def test_an_old_master_with_a_tail_is_cut_where_the_new_epoch_begins() -> None:
    own = LogHistory(entries((1, 0), (2, 500)), 0, 1700)
    masters = LogHistory(entries((1, 0), (2, 500), (3, 1500)), 0, 1900)
    assert find_common(own, masters) == Common(1500, is_proved=True)


def test_a_slave_that_is_only_behind_cuts_nothing() -> None:
    both = entries((1, 0), (2, 500))
    assert find_common(LogHistory(both, 0, 700), LogHistory(both, 0, 900)) == Common(700, is_proved=True)
    assert find_common(LogHistory(both, 0, 200), LogHistory(both, 0, 900)) == Common(200, is_proved=True), (
        "behind its epochs"
    )


def test_a_master_that_lost_its_unsynced_tail_and_began_again_is_followed_from_there() -> None:
    own = LogHistory(entries((1, 0)), 0, 900)
    masters = LogHistory(entries((1, 0), (2, 700)), 0, 5000)
    assert find_common(own, masters) == Common(700, is_proved=True)


def test_without_a_common_epoch_only_what_is_older_than_epochs_may_be_the_same() -> None:
    masters = LogHistory(entries((1, 1000)), 0, 2000)
    assert find_common(LogHistory((), 0, 900), masters) == Common(900, is_proved=False), "a slave of before"
    assert find_common(LogHistory(entries((2, 900)), 0, 1500), masters) == Common(900, is_proved=False)
    assert find_common(LogHistory(entries((5, 0)), 0, 1500), masters) == Common(0, is_proved=False), "a stranger"
