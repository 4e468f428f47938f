"""Which accidents happen to a cluster, and when: from a seed. Pure: the same seed and shape give the same plan.

A plan is a list of blows, one after the other. A blow is one to three strikes that begin together. A plan does not say
which broker is master: a target such as MASTER is looked up when the strike begins.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Kind(StrEnum):
    """An accident."""

    KILL = "kill"
    """SIGKILL, and a new start later."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT later."""
    LOSE_DISK = "lose disk"
    """SIGKILL, and a start with an empty folder, if another replica has everything."""
    CUT = "cut"
    """Packets between two sides are lost, one way or both."""
    SLOW = "slow"
    """Little passes from and to a machine."""
    STOP = "stop"
    """SIGTERM, and a new start later."""
    SWITCHOVER = "switchover"
    CLOCK = "clock"
    """The wall clock of a broker jumps."""


class Side(StrEnum):
    """Whom a strike hits, or from whom somebody is cut off."""

    MASTER = "master"
    SLAVE = "slave"
    BROKERS = "all brokers"
    ENGINE_LEADER = "the engine's leader"
    ENGINE = "the engine"
    CLIENT = "clients"
    OTHERS = "everything else"


class StrikePlan(msgspec.Struct, frozen=True):
    """One accident of a blow."""

    kind: Kind
    target: Side
    lasts_s: float = 0.0
    other: Side | None = None
    """For a cut: the other side."""
    way: int = 0
    """For a cut: 0 both ways, 1 from the target to the other side only, 2 the other way only."""
    step_s: float = 0.0
    """For a clock: by how much it jumps."""

    @property
    def name(self) -> str:
        way = ("", " one way", " one way")[self.way]
        return f"{self.kind} {self.target}{'' if self.other is None else f' from {self.other}'}{way}"

    @property
    def is_writable(self) -> bool:
        """Whether messages must be acknowledged again while it lasts, if nothing else is wrong."""
        hits_all = self.target is Side.BROKERS and self.kind is not Kind.CLOCK
        return not hits_all and self.kind is not Kind.SLOW


class Blow(msgspec.Struct, frozen=True):
    """Strikes that begin together, `after_s` seconds after the blow before has been healed."""

    after_s: float
    strikes: tuple[StrikePlan, ...]


class Shape(msgspec.Struct, frozen=True):
    """What a cluster allows for."""

    brokers: int = 3
    engines: int = 1
    ttl_s: float = 3.0
    has_network: bool = False
    has_clocks: bool = False
    has_switchover: bool = True


_PAUSES: Final = (0.2, 3.0)
"""Lengths of a pause, as multiples of the lease's time to live."""
_DOWN_S: Final = (0.0, 2.0)
_CUT_S: Final = (0.5, 8.0)
_CLOCK_S: Final = (-3600.0, 3600.0)
_REPLACING: Final = frozenset({Kind.KILL, Kind.PAUSE, Kind.STOP, Kind.LOSE_DISK, Kind.CUT, Kind.SWITCHOVER})
"""Strikes on a master after which another broker may be master."""
_PAIRS: Final = 0.3
"""Share of blows with more than one strike."""


def possible(shape: Shape) -> list[tuple[Kind, Side]]:
    """Returns the strikes that a cluster of this shape allows for; the ones that matter most come several times."""
    found = [
        *((Kind.KILL, Side.MASTER),) * 4,
        *((Kind.PAUSE, Side.MASTER),) * 3,
        (Kind.KILL, Side.SLAVE),
        (Kind.PAUSE, Side.SLAVE),
        (Kind.KILL, Side.BROKERS),
        (Kind.STOP, Side.MASTER),
        (Kind.LOSE_DISK, Side.MASTER),
        (Kind.LOSE_DISK, Side.SLAVE),
        (Kind.KILL, Side.ENGINE_LEADER),
        (Kind.PAUSE, Side.ENGINE_LEADER),
    ]
    if shape.engines > 1:
        found += [(Kind.PAUSE, Side.ENGINE)]
    if shape.has_switchover:
        found += [(Kind.SWITCHOVER, Side.MASTER)] * 2
    if shape.has_clocks:
        found += [(Kind.CLOCK, Side.MASTER), (Kind.CLOCK, Side.SLAVE), (Kind.CLOCK, Side.BROKERS)]
    if shape.has_network:
        found += [(Kind.CUT, Side.MASTER)] * 4 + [
            (Kind.CUT, Side.SLAVE),
            (Kind.SLOW, Side.MASTER),
            (Kind.SLOW, Side.SLAVE),
        ]
        if shape.engines > 1:
            found += [(Kind.CUT, Side.ENGINE_LEADER)]
    return found


def make_plan(
    seed: int, count: int, shape: Shape, only: Collection[Kind] = (), *, on_master: float = 0.0
) -> list[Blow]:
    """Returns so many blows; `only` restricts them to some kinds.

    `on_master` is the share of blows that are sure to have a strike after which there may be another master.
    """
    chance = random.Random(f"{seed} {shape}")
    choices = [each for each in possible(shape) if not only or each[0] in only]
    replacing = [each for each in choices if each[1] is Side.MASTER and each[0] in _REPLACING]
    return [
        _blow(chance, choices, shape, replacing if on_master and chance.random() < on_master else ())
        for _ in range(count)
    ]


def _blow(
    chance: random.Random,
    choices: Sequence[tuple[Kind, Side]],
    shape: Shape,
    first: Sequence[tuple[Kind, Side]] = (),
) -> Blow:
    """Returns one blow. Its first strike is one of `first`, if there are any."""
    size = chance.randrange(2, 4) if chance.random() < _PAIRS else 1
    strikes = [_strike(chance, *chance.choice(first), shape)] if first else []
    for _ in range(size - len(strikes)):
        strike = _strike(chance, *chance.choice(choices), shape)
        if _goes_with(strike, strikes):
            strikes.append(strike)
    return Blow(round(chance.uniform(0.2, 1.5), 3), tuple(strikes))


def _strike(chance: random.Random, kind: Kind, target: Side, shape: Shape) -> StrikePlan:
    lasts_s = {
        Kind.PAUSE: shape.ttl_s * chance.uniform(*_PAUSES),
        Kind.CUT: chance.uniform(*_CUT_S),
        Kind.SLOW: chance.uniform(*_CUT_S),
        Kind.SWITCHOVER: 0.0,
        Kind.CLOCK: chance.uniform(0.0, 2.0),
    }.get(kind, chance.uniform(*_DOWN_S))
    made = StrikePlan(kind, target, round(lasts_s, 3))
    if kind is Kind.CUT:
        brokers = Side.SLAVE if target is Side.MASTER else Side.MASTER
        others: tuple[Side, ...] = (Side.ENGINE, brokers, Side.CLIENT, Side.OTHERS)
        if target is Side.ENGINE_LEADER:
            others = (Side.ENGINE, Side.OTHERS)
        return msgspec.structs.replace(made, other=chance.choice(others), way=chance.choice((0, 0, 1, 2)))
    if kind is Kind.CLOCK:
        return msgspec.structs.replace(made, step_s=round(chance.uniform(*_CLOCK_S), 1))
    return made


def _goes_with(strike: StrikePlan, others: list[StrikePlan]) -> bool:
    """Whether a strike may begin with these: none twice, no second accident of one process, at most one disk."""
    for other in others:
        if strike.target is other.target and strike.kind not in (Kind.SWITCHOVER, Kind.CUT, Kind.CLOCK):
            return False
        if strike.kind is other.kind and (strike.target is other.target or strike.kind is Kind.LOSE_DISK):
            return False
        if Side.BROKERS in (strike.target, other.target):
            return False
    return True


def kinds_of(plan: list[Blow]) -> Iterator[Kind]:
    for blow in plan:
        yield from (strike.kind for strike in blow.strikes)
