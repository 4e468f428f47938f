"""A cluster as a small model: replicas, a sync set, epochs, cuts and a consumer, moved by chance from a seed.

It keeps the rules of failover, except those that are named in `broken`, and records a history as a real cluster does.
A sound model shows that the checkers do not cry wolf; a broken one, that they notice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

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

SIZE = 100
"""Bytes of a record."""
QUEUES = ("orders-0", "orders-1")


class Rule(StrEnum):
    """A rule that the model can break, and what then happens."""

    ALL_OF_THE_SET = "a send is acknowledged when one other member of the set has it"
    REQUIRED_FIRST = "a replica is published in the set before it has everything"
    ONLY_FROM_THE_SET = "any replica may be elected"
    EPOCH_IN_FRAMES = "replicas follow, and report to, masters of older epochs"
    SAME_START = "an epoch that begins where the last one began stays under the old number"
    VISIBLE = "consumers see all that a master has"
    CUT = "a log that has parted from its master's is not cut"
    KEPT = "what is cut is not kept"
    WAITS_END = "sends that wait are acknowledged by a master that was deposed"
    REFUSED = "a send is stored and then refused"
    ONCE = "a send is stored twice"
    OWN_OFFSET = "a send is answered with the offset of the one before it"
    COMMITS = "a consumer group's stored offset runs ahead"
    ONE_TRANSACTION = "master and set are written in two steps"


@dataclass
class Entry:
    """A record in a model's log."""

    token: str
    queue: str
    offset: int
    writer: str


@dataclass
class Waiting:
    """A send that waits for replicas."""

    producer: str
    number: int
    token: str
    at: int
    """Index in the log of the master that has it."""
    entry: Entry
    epoch: int
    began: float


@dataclass
class Node:
    """One replica."""

    id: int
    log: list[Entry] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Epochs and the index in the log at which they begin."""
    known: int = 0
    """The newest epoch that it has heard of."""
    leads: int = 0
    """The epoch in which it is master, as it thinks; 0: it is a slave."""
    required: set[int] = field(default_factory=set)
    reports: dict[int, int] = field(default_factory=dict)
    """Ends of logs that others have reported in its epoch."""
    joining: dict[int, int] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    confirmed: int = 0

    @property
    def address(self) -> str:
        return f"broker{self.id}"

    def visible(self) -> int:
        if not self.leads:
            return min(self.confirmed, len(self.log))
        others = self.required - {self.id}
        return min([len(self.log), *(self.reports.get(each, 0) for each in others)])

    def end_of(self, epoch: int) -> int:
        return min((start for each, start in self.epochs if each > epoch), default=len(self.log))


class ModelCluster:
    """Three replicas, an engine, two producers and a consumer group."""

    def __init__(self, seed: int, *broken: Rule) -> None:
        self._chance = random.Random(seed)
        self._broken = frozenset(broken)
        self._now = 0.0
        self._nodes = {number: Node(number) for number in (1, 2, 3)}
        self._epoch, self._master, self._sync = 0, 0, {1}
        self._states: list[State] = []
        self._leaders: list[Leader] = []
        self._sends: list[Send] = []
        self._consumed: list[Consumption] = []
        self._commits: list[Commit] = []
        self._strikes: list[Strike] = []
        self._numbers = {"p0": 0, "p1": 0}
        self._busy: set[str] = set()
        self._positions = dict.fromkeys(QUEUES, 0)
        self._last_offset: dict[tuple[str, str], int] = {}
        self._elect(1)

    def run(self, steps: int) -> History:
        """Takes steps by chance, then lets everything catch up."""
        moves = (self._send, self._send, self._copy, self._copy, self._settle, self._consume, self._look, self._join)
        for _ in range(steps):
            self._now += 1.0
            if self._chance.random() < 0.03:
                self._depose()
            else:
                self._chance.choice(moves)()
        self._heal()
        return self._history()

    def _breaks(self, rule: Rule) -> bool:
        return rule in self._broken

    # -- the engine ------------------------------------------------------------------------------------------

    def _write(self, epoch: int, master: int, sync: set[int]) -> None:
        self._epoch, self._master, self._sync = epoch, master, set(sync)
        self._states.append(State(len(self._states) + 1, epoch, master, tuple(sorted(sync))))

    def _elect(self, number: int) -> None:
        node, epoch = self._nodes[number], self._epoch + 1
        if self._breaks(Rule.ONE_TRANSACTION) and self._master:
            self._write(epoch, number, self._sync - {number})
        self._write(epoch, number, {number})
        self._leaders.append(Leader(len(self._states), epoch, number, node.address))
        self._fail_waits(node)
        node.leads = node.known = epoch
        node.required, node.reports, node.joining = {number}, {}, {}
        start = len(node.log)
        if node.epochs and node.epochs[-1][1] == start:
            if self._breaks(Rule.SAME_START):
                return
            node.epochs.pop()
        node.epochs.append((epoch, start))

    def _depose(self) -> None:
        """The master is cut off from all others, and goes on; another one is elected, if there is one."""
        allowed = set(self._nodes) if self._breaks(Rule.ONLY_FROM_THE_SET) else self._sync
        candidates = sorted(allowed - {self._master})
        if candidates:
            old = self._nodes[self._master].address
            self._strikes.append(Strike("partition", old, self._now, self._now))
            self._elect(self._chance.choice(candidates))

    def _look(self) -> None:
        """A replica reads the engine."""
        node = self._chance.choice(list(self._nodes.values()))
        if node.leads and node.leads < self._epoch:
            self._fail_waits(node)
            node.leads = 0
        if not self._breaks(Rule.EPOCH_IN_FRAMES):
            node.known = max(node.known, self._epoch)

    # -- producers -------------------------------------------------------------------------------------------

    def _masters(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.leads]

    def _send(self) -> None:
        free = [name for name in self._numbers if name not in self._busy]
        if not free:
            return
        producer, node = self._chance.choice(free), self._chance.choice(self._masters())
        number = self._numbers[producer] = self._numbers[producer] + 1
        token, queue = f"{producer}-{number}", self._chance.choice(QUEUES)
        if self._chance.random() < 0.1:
            if self._breaks(Rule.REFUSED):
                self._append(node, token, queue)
            self._answer(Outcome.REFUSED, producer, number, token, queue)
            return
        entry = self._append(node, token, queue)
        if self._breaks(Rule.ONCE) and self._chance.random() < 0.2:
            self._append(node, token, queue)
        self._busy.add(producer)
        waiting = Waiting(producer, number, token, node.log.index(entry), entry, node.leads, self._now)
        node.waiting.append(waiting)

    def _append(self, node: Node, token: str, queue: str) -> Entry:
        offset = sum(each.queue == queue for each in node.log)
        entry = Entry(token, queue, offset, node.address)
        node.log.append(entry)
        return entry

    def _answer(self, outcome: Outcome, producer: str, number: int, token: str, queue: str) -> None:
        self._sends.append(Send(producer, number, token, queue, self._now, self._now, outcome))

    def _end(self, waiting: Waiting, outcome: Outcome, node: Node) -> None:
        self._busy.discard(waiting.producer)
        offset, key = waiting.entry.offset, (waiting.producer, waiting.entry.queue)
        if outcome is Outcome.OK:
            if self._breaks(Rule.OWN_OFFSET):
                offset = self._last_offset.get(key, offset)
            self._last_offset[key] = waiting.entry.offset
        self._sends.append(
            Send(
                waiting.producer,
                waiting.number,
                waiting.token,
                waiting.entry.queue,
                waiting.began,
                self._now,
                outcome,
                offset,
                waiting.at * SIZE,
                node.address,
            )
        )

    def _settle(self) -> None:
        """A master answers the sends that enough replicas have."""
        node = self._chance.choice(self._masters())
        for waiting in list(node.waiting):
            others = node.required - {node.id}
            have = [each for each in others if node.reports.get(each, 0) > waiting.at]
            one = self._breaks(Rule.ALL_OF_THE_SET) and (have or not others)
            if one or len(have) == len(others):
                node.waiting.remove(waiting)
                self._end(waiting, Outcome.OK, node)
            elif self._chance.random() < 0.05:
                node.waiting.remove(waiting)
                self._end(waiting, self._chance.choice((Outcome.STORED, Outcome.UNKNOWN)), node)

    def _fail_waits(self, node: Node) -> None:
        for waiting in node.waiting:
            self._end(waiting, Outcome.OK if self._breaks(Rule.WAITS_END) else Outcome.STORED, node)
        node.waiting.clear()

    # -- replicas --------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        """A slave follows one of the masters for a few records."""
        slaves = [node for node in self._nodes.values() if not node.leads]
        if slaves:
            self._follow(self._chance.choice(slaves), self._chance.choice(self._masters()), self._chance.randrange(4))

    def _follow(self, slave: Node, master: Node, count: int) -> None:
        if slave.known > master.leads and not self._breaks(Rule.EPOCH_IN_FRAMES):
            return
        slave.known = max(slave.known, master.leads)
        self._cut(slave, master)
        slave.log += master.log[len(slave.log) : len(slave.log) + count]
        slave.epochs = [each for each in master.epochs if each[1] <= len(slave.log)]
        master.reports[slave.id] = len(slave.log)
        slave.confirmed = master.visible()

    def _cut(self, slave: Node, master: Node) -> None:
        common = next((each for each in reversed(slave.epochs) if each in master.epochs), None)
        cut = 0 if common is None else min(slave.end_of(common[0]), master.end_of(common[0]))
        if cut >= len(slave.log) or self._breaks(Rule.CUT):
            return
        if not self._breaks(Rule.KEPT):
            tokens = tuple(each.token for each in slave.log[cut:])
            slave.tails.append(Tail(cut * SIZE, len(slave.log) * SIZE, tokens))
        del slave.log[cut:]
        slave.epochs = [each for each in slave.epochs if each[1] <= cut]

    def _join(self) -> None:
        """The master changes its set: expands, or shrinks."""
        master = self._nodes[self._master]
        if master.leads != self._epoch:
            return
        other = self._chance.choice([number for number in self._nodes if number != self._master])
        if other in self._sync:
            if self._chance.random() < 0.3:
                self._write(self._epoch, self._master, self._sync - {other})
                master.required = set(self._sync) | set(master.joining)
            return
        if self._breaks(Rule.REQUIRED_FIRST):
            self._write(self._epoch, self._master, self._sync | {other})
            return
        if other not in master.joining:
            master.required.add(other)
            master.reports.pop(other, None)
            master.joining[other] = len(master.log)
        elif master.reports.get(other, -1) >= master.joining[other]:
            del master.joining[other]
            self._write(self._epoch, self._master, self._sync | {other})

    # -- the consumer ----------------------------------------------------------------------------------------

    def _consume(self) -> None:
        """Reads one queue of one replica from where the group is, and stores its offset."""
        node, queue = self._chance.choice(list(self._nodes.values())), self._chance.choice(QUEUES)
        self._read(node, queue)

    def _read(self, node: Node, queue: str) -> None:
        end = len(node.log) if self._breaks(Rule.VISIBLE) else node.visible()
        for entry in node.log[:end]:
            if entry.queue == queue and entry.offset >= self._positions[queue]:
                self._now += 0.001
                self._consumed.append(Consumption("g", "c", queue, entry.offset, entry.token, self._now))
                self._positions[queue] = entry.offset + 1
        if self._breaks(Rule.COMMITS) and self._chance.random() < 0.1:
            self._positions[queue] += 1
        self._now += 0.001
        self._commits.append(Commit("g", queue, self._positions[queue], self._now))

    # -- the end ---------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        master = self._nodes[self._master]
        for node in self._nodes.values():
            self._now += 1.0
            self._fail_waits(node)
            if node is not master:
                node.leads = 0
                self._follow(node, master, len(master.log) + 1)
        master.required = {master.id}
        for queue in QUEUES:
            self._read(master, queue)

    def _history(self) -> History:
        return History(
            sends=tuple(self._sends),
            consumptions=tuple(self._consumed),
            commits=tuple(self._commits),
            groups=("g",),
            ordered=("g",),
            replicas=tuple(_replica(node) for node in self._nodes.values()),
            states=tuple(self._states),
            leaders=tuple(self._leaders),
            strikes=tuple(self._strikes),
        )


def _replica(node: Node) -> Replica:
    records = tuple(
        Stored(at * SIZE, SIZE, each.token, each.queue, each.offset, each.token, each.writer)
        for at, each in enumerate(node.log)
    )
    epochs = tuple((epoch, start * SIZE) for epoch, start in node.epochs)
    return Replica(node.address, node.address, 0, len(node.log) * SIZE, records, epochs, tuple(node.tails))
