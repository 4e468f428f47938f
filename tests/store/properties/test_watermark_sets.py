"""Random reports, sets and roles: a put is answered PUT_OK, and a record visible, only if the whole set has it.

The model keeps for itself what each replica has said since it last connected in the present epoch. Each invariant is
shown to notice a broken rule.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.store import BrokerRole, PutStatus, Settings
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.watermarks import Waiter, Watermarks

REPLICAS = (1, 2)
SETTINGS = Settings.dev(broker_role=BrokerRole.SYNC_MASTER)
STEP = 10


class Queue:
    """The ends of a log that a test moves by hand."""

    wrote_offset = max_offset = flushed_where = 0


class Model:
    """Watermarks, and what they must never say."""

    def __init__(self, kind: type[Watermarks]) -> None:
        self.queue = Queue()
        self.marks = kind(cast(MappedFileQueue, self.queue), SETTINGS)
        self.marks.enter_epoch(1)
        self.marks.require(frozenset())
        self.required: frozenset[int] = frozenset()
        self.said: dict[int, int] = {}
        """What each replica has said since it connected last, in this epoch."""
        self.connected: set[int] = set()
        self.waiting: dict[int, int] = {}
        """The end of each put that is not answered, and the epoch in which it was stored."""
        self.visible = 0

    def has(self, replica: int) -> int:
        return self.said.get(replica, 0)

    def answered(self, waiters: list[Waiter[None]]) -> None:
        for waiter in waiters:
            epoch = self.waiting.pop(waiter.end_offset)
            if waiter.status is PutStatus.PUT_OK:
                assert epoch == self.marks.epoch, "a put of a former epoch was acknowledged"
                lacking = [each for each in self.required if self.has(each) < waiter.end_offset]
                assert not lacking, f"{waiter.end_offset} was acknowledged without {lacking}"

    def check(self) -> None:
        visible = self.marks.visible
        assert self.visible <= visible <= self.marks.stored
        if self.marks.role.accepts_puts and visible > self.visible:
            lacking = [each for each in self.required if self.has(each) < visible]
            assert not lacking, f"{visible} is visible without {lacking}"
        self.visible = visible

    # -- what may happen -------------------------------------------------------------------------------------

    def put(self) -> None:
        if self.marks.role.accepts_puts:
            self.queue.wrote_offset += STEP
            self.queue.max_offset = self.queue.wrote_offset
            end = self.queue.wrote_offset
            self.waiting[end] = self.marks.epoch
            self.marks.wait(end, self.answered, None)

    def connect(self, replica: int, offset: int) -> None:
        if replica not in self.connected:
            self.connected.add(replica)
            self.said[replica] = offset
            self.marks.slave_connected(replica, offset)

    def disconnect(self, replica: int) -> None:
        if replica in self.connected:
            self.connected.discard(replica)
            self.marks.slave_disconnected(replica)

    def report(self, replica: int, offset: int, epoch: int) -> None:
        if epoch == self.marks.epoch and replica in self.connected:
            self.said[replica] = max(offset, self.has(replica))
        self.marks.acknowledge(offset, replica, epoch)

    def require(self, replicas: frozenset[int]) -> None:
        self.required = replicas
        self.said = {each: said for each, said in self.said.items() if each in self.connected | replicas}
        self.marks.require(replicas)

    def change_role(self, name: BrokerRole) -> None:
        self.required, self.said, self.connected = frozenset(), {}, set()
        self.marks.change_role(Role(name, self.marks.epoch + 1))
        self.marks.role_changed()
        assert not self.waiting, "waits belong to an epoch"


ACTIONS = st.lists(st.tuples(st.integers(0, 19), st.sampled_from(REPLICAS), st.integers(0, 12)), max_size=40)
"""What happens, to which replica, and a number."""
Action = tuple[int, int, int]


def play(actions: list[Action], kind: type[Watermarks] = Watermarks) -> None:
    model = Model(kind)
    for what, replica, number in actions:
        if what < 6:
            model.put()
        elif what < 9:
            model.connect(replica, number * STEP)
        elif what < 10:
            model.disconnect(replica)
        elif what < 15:
            model.report(replica, number * STEP, model.marks.epoch)
        elif what < 16:
            model.report(replica, number * STEP, model.marks.epoch - 1)
        elif what < 19:
            model.require(frozenset(each for each in REPLICAS if number >> each & 1))
        else:
            model.change_role(BrokerRole.SLAVE if number % 3 == 0 else BrokerRole.SYNC_MASTER)
        model.check()


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(ACTIONS)
def test_only_what_the_whole_set_has_is_acknowledged_and_visible(actions: list[Action]) -> None:
    play(actions)


class AnyOfTheSet(Watermarks):
    """One replica is enough."""

    def _count(self) -> list[Waiter[Any]]:
        before = self._reports
        self._reports = dict.fromkeys(before, max(before.values(), default=0))
        try:
            return super()._count()
        finally:
            self._reports = before


class AnyEpoch(Watermarks):
    """Reports of every epoch count."""

    def acknowledge(self, offset: int, replica: int | None = None, epoch: int | None = None) -> None:
        super().acknowledge(offset, replica)


class ForgetsNothing(Watermarks):
    """A replica that comes back with less counts for what it had."""

    def slave_connected(self, replica: int | None = None, offset: int = 0) -> None:
        super().slave_connected(replica, max(offset, self._reports.get(replica or 0, 0)))


class ShowsAll(Watermarks):
    """What is stored is visible."""

    @property
    def visible(self) -> int:
        return self.stored


class KeepsWaits(Watermarks):
    """A change of the role leaves the waits."""

    def change_role(self, role: Role) -> None:
        self.role = role


JOIN = [(6, 1, 0), (6, 2, 0)]
BOTH, ONE = (16, 1, 6), (16, 1, 2)
PUT = (0, 1, 0)
NOTICED: dict[type[Watermarks], list[Action]] = {
    AnyOfTheSet: [*JOIN, BOTH, PUT, (10, 1, 1)],
    AnyEpoch: [*JOIN, ONE, PUT, (15, 1, 1)],
    ForgetsNothing: [*JOIN, BOTH, PUT, (10, 1, 1), (9, 1, 0), (6, 1, 0), (10, 2, 1)],
    ShowsAll: [*JOIN, ONE, PUT],
    KeepsWaits: [*JOIN, ONE, PUT, (19, 1, 1)],
}


@pytest.mark.parametrize(("kind", "actions"), NOTICED.items(), ids=[kind.__name__ for kind in NOTICED])
def test_a_broken_rule_is_noticed(kind: type[Watermarks], actions: list[Action]) -> None:
    play(actions)
    with pytest.raises(AssertionError):
        play(actions, kind)
