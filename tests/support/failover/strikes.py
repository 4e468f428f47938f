"""Carries out a plan on a cluster. Each blow begins, lasts and is healed; what was done is noted as strikes."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from support.failover.cluster import Cluster, Member
from support.failover.evidence import EngineAway
from support.failover.history import Strike
from support.failover.network import HERE
from support.failover.plan import Blow, Kind, Side, StrikePlan

Heal = Callable[[], None]


@dataclass
class _Begun:
    """A strike whose cause lasts."""

    plan: StrikePlan
    target: str
    at: float
    heal: Heal


class Nemesis:
    """Does what plans say. Use it from one thread."""

    def __init__(self, cluster: Cluster, seed: int, tell: Callable[[str], None] = print) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._tell = tell
        self._orders = 0
        self.strikes: list[Strike] = []
        self.wiped: list[str] = []
        """Addresses of brokers that have lost their disk."""

    def strike(self, blow: Blow) -> None:
        """Carries out one blow, and heals it."""
        time.sleep(blow.after_s)
        master, slaves = self._cluster.master(), self._cluster.slaves()
        started = time.monotonic()
        begun = [each for plan in blow.strikes if (each := self._begin(plan, master, slaves)) is not None]
        try:
            for each in sorted(begun, key=lambda each: each.plan.lasts_s):
                time.sleep(max(0.0, started + each.plan.lasts_s - time.monotonic()))
                each.heal()
                healed = time.monotonic()
                self._tell(f"{each.plan.name}: {each.target}, {healed - each.at:.2f} s")
                is_writable = all(other.plan.is_writable for other in begun)
                self.strikes.append(Strike(str(each.plan.kind), each.target, each.at, healed, is_writable))
            for member in self._cluster.members:  # now, because a machine that was cut off as well answers only now
                member.start()
        except BaseException:
            for each in begun:
                each.heal()
            raise

    def _begin(self, plan: StrikePlan, master: Member | None, slaves: list[Member]) -> _Begun | None:
        """Begins a strike; None if there is nobody whom it could hit."""
        targets = self._targets(plan.target, master, slaves)
        if plan.target in (Side.ENGINE_LEADER, Side.ENGINE):
            return self._hit_engine(plan)
        if not targets:
            return None
        names = ", ".join(member.name for member in targets)
        at = time.monotonic()
        heals = [self._hit(plan, member, slaves) for member in targets]
        return _Begun(plan, names, at, lambda: [heal() for heal in heals] and None)

    def _targets(self, side: Side, master: Member | None, slaves: list[Member]) -> list[Member]:
        if side is Side.BROKERS:
            return self._cluster.members
        if side is Side.SLAVE:
            return [self._chance.choice(slaves)] if slaves else []
        return [master] if side is Side.MASTER and master is not None else []

    # -- brokers ---------------------------------------------------------------------------------------------

    def _hit(self, plan: StrikePlan, member: Member, slaves: list[Member]) -> Heal:
        match plan.kind:
            case Kind.KILL:
                member.kill()
                return member.launch
            case Kind.STOP:
                member.stop()
                return member.launch
            case Kind.PAUSE:
                member.pause()
                return member.resume
            case Kind.LOSE_DISK:
                return self._lose_disk(member)
            case Kind.CLOCK:
                member.step_clock(plan.step_s)
                return lambda: member.step_clock(0.0)
            case Kind.SWITCHOVER:
                return self._switch_over()
            case _:
                return self._harm_link(plan, member, slaves)

    def _lose_disk(self, member: Member) -> Heal:
        """Kills a broker, and empties its folder if another replica has every acknowledged message."""
        member.kill()
        try:
            others = self._cluster.sync_set() - {member.address}
        except EngineAway:
            others = frozenset()
        if others:
            member.wipe()
            self.wiped.append(member.address)
        return member.launch

    def _switch_over(self) -> Heal:
        self._orders += 1
        if self._cluster.engine is not None:
            with contextlib.suppress(EngineAway):
                self._cluster.engine.order_switchover(f"order{self._orders}")
        return lambda: None

    def _harm_link(self, plan: StrikePlan, member: Member, slaves: list[Member]) -> Heal:
        network = self._cluster.machines
        assert network is not None
        if plan.kind is Kind.SLOW:
            network.slow(member.name)
            return lambda: network.hasten(member.name)
        engines = [node.name for node in self._cluster.nodes]
        brokers = [each.name for each in self._cluster.members if each is not member]
        match plan.other:
            case Side.ENGINE:
                others = engines
            case Side.SLAVE:
                others = [each.name for each in slaves if each is not member]
            case Side.MASTER:
                master = self._cluster.master()
                others = [master.name] if master is not None and master is not member else []
            case Side.CLIENT:
                others = [HERE, "names"]
            case _:
                others = [*engines, *brokers, HERE, "names"]
        return self._cut(plan, member.name, others)

    def _cut(self, plan: StrikePlan, name: str, others: list[str]) -> Heal:
        """Cuts one machine off from others, in the ways of the plan."""
        network = self._cluster.machines
        assert network is not None
        ways = {0: ((0, 1), (1, 0)), 1: ((0, 1),), 2: ((1, 0),)}[plan.way]
        links = [((name, other)[a], (name, other)[b]) for other in others for a, b in ways]
        for sender, receiver in links:
            network.cut(sender, receiver)
        return lambda: [network.mend(sender, receiver) for sender, receiver in links] and None

    # -- the engine ------------------------------------------------------------------------------------------

    def _hit_engine(self, plan: StrikePlan) -> _Begun | None:
        leader = self._cluster.engine_leader()
        if leader is None:
            return None
        nodes = [leader]
        if plan.target is Side.ENGINE:  # so many that the others have no majority
            rest = [node for node in self._cluster.nodes if node is not leader]
            nodes += rest[: len(self._cluster.nodes) // 2]
        at = time.monotonic()
        if plan.kind is Kind.CUT:
            others = [node.name for node in self._cluster.nodes if node is not leader]
            if plan.other is Side.OTHERS:
                others += [*(member.name for member in self._cluster.members), HERE]
            return _Begun(plan, leader.name, at, self._cut(plan, leader.name, others))
        for node in nodes:
            if plan.kind is Kind.KILL:
                node.end()
            else:
                node.signal(signal.SIGSTOP)

        def heal() -> None:
            for node in nodes:
                if plan.kind is Kind.KILL:
                    node.restart()
                else:
                    node.signal(signal.SIGCONT)

        return _Begun(plan, ", ".join(node.name for node in nodes), at, heal)
