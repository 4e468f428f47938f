"""A set of replicas in memory, directed by real keepers over the model engine, and the invariants of failover.

A log is a list of (epoch, value). Puts, copies, reports and acks are steps of their own, and happen also in the middle
of a keeper's round. Processes die, lose what they had not flushed, and come back; commits have every fate; a master may
be held for dead although it lives. `broken` switches a rule off, for the tests that the invariants notice it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from penstock.broker.failover.consensus_engine import STATE, EngineAway, KeyValue, Leader, Transaction, View
from penstock.broker.failover.election_loop import Keeper
from penstock.broker.failover.election_rules import ReplicaState
from penstock.broker.failover.operator_orders import BadOrder, forget, pause, switch_over
from penstock.broker.failover.sync_set import FollowerState

from .model_dcs import Fate, ModelEngine, ModelSession

TTL_S = 6.0
Item = tuple[int, int]


class Violated(AssertionError):
    """An invariant of failover does not hold."""


@dataclass
class ModelNode:
    """A replica: its store, which outlives its process, and the process, which a keeper directs."""

    cluster: Cluster
    name: str
    log: list[Item] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, start), as in the epoch file."""
    flushed: int = 0
    was_member: bool = False
    lives: bool = False
    incarnation: int = 0
    id: int = 0
    epoch: int = 0
    """In which it leads or follows; 0 if it does neither."""
    leads: bool = False
    takes_writes: bool = False
    master: str = ""
    is_connected: bool = False
    required: frozenset[int] = frozenset()
    reports: dict[int, int] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    """The followers that this master holds for too slow."""
    dead_leader: int = 0
    session: ModelSession = field(init=False)
    keeper: Keeper = field(init=False)

    # -- the process -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.lives = True
        self.incarnation += 1
        self.session = ModelSession(self.cluster.engine, TTL_S)
        self.keeper = Keeper(self.session, self, lambda: self.cluster.engine.now)
        self._idle()

    def kill(self, keeps: int) -> None:
        """Ends the process. Of what is not flushed, `keeps` items stay."""
        self.lives = False
        del self.log[self.flushed + keeps :]
        self._idle()

    def _idle(self) -> None:
        for other in self.cluster.nodes.values():
            if other.master == self.name:
                other.is_connected = False
        self.leads = self.takes_writes = self.is_connected = False
        self.master, self.epoch, self.reports, self.required = "", 0, {}, frozenset()
        self.slow.clear()

    # -- what a keeper calls ---------------------------------------------------------------------------------

    def describe(self) -> ReplicaState:
        self.cluster.meanwhile(self)
        return ReplicaState(
            name=self.name,
            incarnation=f"{self.name}.{self.incarnation}",
            place=self.name,
            epoch=self.epochs[-1][0] if self.epochs else 0,
            end=len(self.log),
            was_member=self.was_member,
            dead_leader=self.dead_leader,
            hears_master=self.is_connected,
        )

    def saw(self, view: View) -> None:
        self.was_member = self.was_member or (view.state is not None and self.name in view.state.ids)

    def follow(self, my_id: int, leader: Leader) -> None:
        master = next(each for each in self.cluster.nodes if leader.incarnation.startswith(each + "."))
        if (self.master, self.epoch, self.leads) != (master, leader.epoch, False):
            self._idle()
            self.master, self.epoch, self.id = master, leader.epoch, my_id

    def stand(self) -> None:
        self._idle()
        self.flushed = len(self.log)

    def lead(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        self.flushed = len(self.log)
        _begin(self.epochs, epoch, len(self.log))
        self.leads = self.takes_writes = True
        self.id, self.epoch, self.required = my_id, epoch, required
        self.cluster.led(self)

    def wait(self, why: str) -> None:
        if self.leads or self.master:
            self._idle()

    def require(self, required: frozenset[int]) -> None:
        self.cluster.meanwhile(self)
        self.required = required
        self.cluster.meanwhile(self)

    def followers(self) -> Mapping[int, FollowerState]:
        self.cluster.meanwhile(self)
        return {
            other.id: FollowerState(
                offset=self.reports.get(other.id, 0),
                is_connected=other.is_connected and other.lives,
                behind_s=inf if other.id in self.slow else 0.0,
            )
            for other in self.cluster.nodes.values()
            if other.master == self.name and other.epoch == self.epoch and other.id
        }

    def log_end(self) -> int:
        end = len(self.log)
        self.cluster.meanwhile(self)
        return end

    def close_writes(self) -> None:
        self.takes_writes = False

    def open_writes(self) -> None:
        self.takes_writes = True


def _begin(epochs: list[tuple[int, int]], epoch: int, start: int) -> None:
    if epochs and epochs[-1][1] == start:
        epochs.pop()
    epochs.append((epoch, start))


class Cluster:
    """The replicas, the engine, and everything that was acknowledged."""

    def __init__(self, count: int, seed: int, broken: str = "", *, interleaves: bool = True) -> None:
        """With `interleaves`, other steps happen by chance in the middle of a keeper's round."""
        self.engine = ModelEngine()
        self.engine.on_change = self._on_change
        self.random = random.Random(seed)
        self.broken = broken
        self.nodes: dict[str, ModelNode] = {}
        self.acknowledged: dict[int, int] = {}
        """The offset of each value whose send was acknowledged."""
        self.messages: list[tuple[str, int, int, int]] = []
        """Reports on their way: to which process, from which id, epoch, offset."""
        self.leaders: dict[int, str] = {}
        self.written: dict[Item, int] = {}
        self.elections = 0
        self._values = 0
        self._depth = 0 if interleaves else 2
        for number in range(count):
            self.add(f"r{number}")

    def add(self, name: str) -> None:
        self.nodes[name] = ModelNode(self, name)
        self.nodes[name].start()

    # -- steps -----------------------------------------------------------------------------------------------

    def tick(self, node: ModelNode, fate: Fate = Fate.ANSWERED) -> None:
        """One round of a replica's keeper."""
        if not node.lives:
            return
        if node.session.lease not in self.engine.leases and fate is Fate.ANSWERED:
            node.session = ModelSession(self.engine, TTL_S)
            node.keeper.use(node.session)
        node.session.fate = fate
        try:
            node.keeper.step()
        except EngineAway:
            pass
        finally:
            node.session.fate = Fate.ANSWERED
        self.check()

    def renew(self, node: ModelNode) -> None:
        if node.lives:
            node.session.renew()

    def put(self, node: ModelNode) -> None:
        if node.lives and node.leads and node.takes_writes:
            self._values += 1
            where = (node.epoch, len(node.log))
            if where in self.written:
                raise Violated(f"two messages at offset {where[1]} of epoch {where[0]}")
            self.written[where] = self._values
            node.log.append((node.epoch, self._values))

    def copy(self, node: ModelNode) -> None:
        """A follower takes what its master has, after the handshake."""
        master = self.nodes.get(node.master)
        if master is None or not self.connect(node):
            return
        more = master.log[len(node.log) :]
        node.log += more[: self.random.randint(0, len(more))]
        node.epochs = [each for each in master.epochs if each[1] <= len(node.log)]

    def connect(self, node: ModelNode) -> bool:
        """A follower and its master shake hands, if they are not connected. Returns whether they are connected."""
        master = self.nodes.get(node.master)
        if not node.lives or master is None or not (master.lives and master.leads):
            return False
        if node.is_connected:
            return True
        if master.epoch != node.epoch:
            return False
        cut = _cut(node, master)
        del node.log[cut:]
        node.flushed = min(node.flushed, cut)
        node.epochs = [each for each in master.epochs if each[1] <= cut]
        node.is_connected = True
        master.reports.pop(node.id, None)
        return True

    def report(self, node: ModelNode) -> None:
        """A follower flushes its log and tells its master how much it has."""
        if node.lives and node.is_connected:
            node.flushed = len(node.log)
            master = self.nodes[node.master]
            self.messages.append((f"{master.name}.{master.incarnation}", node.id, node.epoch, node.flushed))

    def deliver(self, number: int) -> None:
        """A report arrives."""
        to, sender, epoch, offset = self.messages.pop(number)
        master = self.nodes.get(to.partition(".")[0])
        if master is None or not master.lives or not master.leads or to != f"{master.name}.{master.incarnation}":
            return
        if epoch == master.epoch or self.broken == "reports of another epoch count":
            master.reports[sender] = max(offset, master.reports.get(sender, 0))

    def acknowledge(self, node: ModelNode) -> None:
        """A master answers the sends that every required replica has."""
        if not (node.lives and node.leads):
            return
        node.flushed = len(node.log)
        others = [node.reports.get(each, 0) for each in node.required if each != node.id]
        if self.broken == "one of the set is enough":
            others = [max(others)] if others else []
        for offset in range(min([node.flushed, *others])):
            self.acknowledged.setdefault(node.log[offset][1], offset)

    def disconnect(self, node: ModelNode) -> None:
        node.is_connected = False

    def order(self, number: int) -> None:
        """An operator's order, carried out at once."""
        view = self.engine.view()
        ids = sorted(view.state.ids.values()) if view.state else [1]
        try:
            transaction = (
                switch_over(view, 0, "order", 0),
                pause(view, paused=not (view.state and view.state.paused)),
                forget(view, self.random.choice(ids)),
            )[number]
        except BadOrder:
            return
        self.engine.apply(transaction, 0)

    def lose_disk(self, node: ModelNode) -> None:
        """A replica comes back with an empty store. Allowed while it is in no set."""
        state = self.engine.view().state
        if state is None or state.ids.get(node.name) in (None, *state.sync):
            return
        if node.lives:
            node.kill(0)
        del self.nodes[node.name]
        self.add(f"{node.name}x")

    # -- chance ----------------------------------------------------------------------------------------------

    def meanwhile(self, node: ModelNode) -> None:
        """What may happen in the middle of a keeper's round."""
        if self._depth > 1:
            return
        self._depth += 1
        for _ in range(self.random.choice((0, 0, 1, 2, 4))):
            other = self.random.choice(list(self.nodes.values()))
            self.random.choice((self.put, self.copy, self.report, self.acknowledge, self._deliver_any))(other)
        self._depth -= 1

    def _deliver_any(self, node: ModelNode) -> None:
        if self.messages:
            self.deliver(self.random.randrange(len(self.messages)))

    def run(self, steps: int) -> None:
        """Does random steps. Raises Violated."""
        for _ in range(steps):
            self.step_by_chance()
            self.check()

    def step_by_chance(self) -> None:
        chance = self.random
        node = chance.choice(list(self.nodes.values()))
        what = chance.randrange(100)
        if what < 40:
            self.tick(node, chance.choice([Fate.ANSWERED] * 6 + list(Fate)))
        elif what < 52:
            self.put(node)
        elif what < 62:
            self.copy(node)
        elif what < 70:
            self.report(node)
        elif what < 76:
            self._deliver_any(node)
        elif what < 84:
            self.acknowledge(node)
        elif what < 88:
            self.renew(node)
        elif what < 90:
            self.engine.pass_time(chance.choice((0.1, 1.0, TTL_S / 2)))
        elif what < 92:
            if self.engine.delayed:
                self.engine.apply_delayed(chance.randrange(len(self.engine.delayed)))
        elif what < 94:
            if node.lives:
                node.kill(chance.randint(0, 2))
        elif what < 96:
            if not node.lives:
                node.start()
        elif what < 97:
            self.disconnect(node)
        elif what < 98:
            node.slow = {each for each in range(1, 6) if chance.random() < 0.3}
        elif what < 99:
            node.dead_leader = self.engine.view().leader_version
        elif chance.random() < 0.8:
            self.order(chance.randrange(3))
        else:
            self.lose_disk(node)

    def heal(self) -> None:
        """Lets everything work again, until one master leads and all follow. Raises Violated if that never comes."""
        while self.engine.delayed:
            self.engine.apply_delayed(0)
        state = self.engine.view().state
        if state is not None and state.paused:
            self.order(1)
        for node in self.nodes.values():
            node.slow.clear()
            node.dead_leader = 0
            if not node.lives:
                node.start()
        for _ in range(400):
            for node in list(self.nodes.values()):
                self.renew(node)
                self.tick(node)
                for step in (self.put, self.copy, self.report, self.acknowledge):
                    step(node)
                while self.messages:
                    self.deliver(0)
            self.engine.pass_time(0.2)
            if self._is_whole():
                return
        raise Violated(f"no whole set after all was healed: {self.engine.view()}")

    def _is_whole(self) -> bool:
        state = self.engine.view().state
        if state is None:
            return False
        leaders = [each for each in self.nodes.values() if each.leads and each.epoch == state.epoch]
        alive = {state.ids.get(each.name) for each in self.nodes.values()}
        return len(leaders) == 1 and set(state.sync) == alive

    # -- invariants ------------------------------------------------------------------------------------------

    def led(self, node: ModelNode) -> None:
        who = f"{node.name}.{node.incarnation}"
        if self.leaders.setdefault(node.epoch, who) != who:
            raise Violated(f"epoch {node.epoch} has two masters: {self.leaders[node.epoch]} and {who}")
        self.elections += 1

    def check(self) -> None:
        """Every member of the sync set in the engine has every acknowledged message, at its offset."""
        state = self.engine.view().state
        if state is None:
            return
        by_id = {state.ids[each.name]: each for each in self.nodes.values() if each.name in state.ids}
        for member in state.sync:
            log = by_id[member].log
            for value, offset in self.acknowledged.items():
                if offset >= len(log) or log[offset][1] != value:
                    raise Violated(f"replica {member} of the sync set lacks the acknowledged message {value}")

    def check_logs(self) -> None:
        """All logs are equal as far as they go. Holds once the set is whole."""
        longest = max((each.log for each in self.nodes.values()), key=len)
        for node in self.nodes.values():
            if node.log != longest[: len(node.log)]:
                raise Violated(f"the log of {node.name} differs")

    def _on_change(self, transaction: Transaction) -> None:
        if STATE in transaction.puts:
            check_transition(self.engine.view(), transaction)


def check_transition(view: View, transaction: Transaction) -> None:
    """Raises Violated unless the change of the key `state` is one that failover allows."""
    before = view.state
    after = View.of(0, {STATE: KeyValue(transaction.puts[STATE], 1)}).state
    assert after is not None
    if before is None:
        if after.sync != (after.master,):
            raise Violated("a set was founded with several members")
        return
    if after.epoch == before.epoch:
        if after.master != before.master:
            raise Violated("the master changed within an epoch")
    elif after.epoch != before.epoch + 1:
        raise Violated(f"epoch {before.epoch} was followed by {after.epoch}")
    elif after.sync != (after.master,):
        raise Violated("an epoch began with several members")
    elif after.master not in before.sync and after.forced != after.epoch:
        raise Violated(f"replica {after.master} was elected, but the sync set was {before.sync}")
    if any(after.ids.get(name, number) != number for name, number in before.ids.items()):
        raise Violated("a replica got another id")


def _cut(node: ModelNode, master: ModelNode) -> int:
    """Returns where the follower's log has to be cut: the end of the newest epoch that both have."""
    for epoch, start in reversed(node.epochs):
        if (epoch, start) in master.epochs:
            return min(_end(node, epoch), _end(master, epoch))
    return 0


def _end(node: ModelNode, epoch: int) -> int:
    later = [start for each, start in node.epochs if each > epoch]
    return min([*later, len(node.log)])
