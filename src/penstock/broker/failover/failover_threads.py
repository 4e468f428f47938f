"""Failover of one broker process: a thread with the keeper, one with the lease, and the node that both direct.

The keeper's thread opens a session, does the keeper's rounds, and opens another session when the lease has ended. While
the engine is away it tries again; the node goes on as `rules.may_write` allows. Any other failure ends the thread; then
the lease is released and the broker leaves: a process that cannot be directed must not stay master.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from penstock.broker.failover.consensus_engine import BadEngine, EngineAway, Session, boot_time
from penstock.broker.failover.election_loop import Keeper
from penstock.broker.failover.election_rules import Part
from penstock.broker.failover.lease import LeaseThread, MasterHealth
from penstock.broker.failover.role_switch import BrokerNode
from penstock.broker.failover.status import SHOWN_MASTERS, masterships_of, replicas_of, role_of
from penstock.protocol.bodies.admin import HaElections, HaMastership

log = logging.getLogger("penstock.failover")

_AWAY_S: Final = 0.25
_BAD_S: Final = 2.0
_HAND_OVER_S: Final = 5.0


class Failover:
    """Directs a node from `start` to `stop`. Use it from the loop's thread."""

    def __init__(self, node: BrokerNode, open_session: Callable[[bool], Session], ttl_s: float) -> None:
        self._node = node
        self._open = open_session
        self._ttl_s = ttl_s
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._lease: LeaseThread | None = None
        self._lost_lease = False
        self.keeper: Keeper | None = None
        """None until the engine was reached for the first time."""
        self._problem = ""
        self._renewals: tuple[int, LeaseThread | None] = 0, None
        """Renewals without an answer in former sessions, and the thread that counts those of this one."""
        self._masters: list[HaMastership] = []
        self._masters_epoch = 0
        """The epoch in which the history was read."""
        self._stopping = threading.Event()
        self._has_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-keeper", daemon=True)
        self.on_death: Callable[[BaseException], object] = lambda error: None
        """Called on the loop if the keeper's thread has failed."""
        node.wake = self._wake
        node.deadline = self._deadline

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Hands over if this is the master, ends the threads, and releases the lease."""
        self._stopping.set()
        if self.keeper is not None:
            self.keeper.stop()
        self._wake()
        try:
            async with asyncio.timeout(_HAND_OVER_S + self._ttl_s):
                await self._has_ended.wait()
        except TimeoutError:
            log.error("the keeper did not end in time; its lease ends by itself")

    # -- the keeper's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._keep()
        except BaseException as error:
            failure = error
            log.critical("the keeper of this replica has failed, and the broker leaves", exc_info=error)
        finally:
            self._end_session()
            self._loop.call_soon_threadsafe(self._ended, failure)

    def _ended(self, failure: BaseException | None) -> None:
        self._has_ended.set()
        if failure is not None:
            self.on_death(failure)

    def _keep(self) -> None:
        give_up = float("inf")
        while True:
            if self._stopping.is_set():
                give_up = min(give_up, boot_time() + _HAND_OVER_S)
                if self.keeper is None or not self.keeper.is_leading or self.keeper.has_resigned:
                    return
                if boot_time() > give_up:
                    log.error("no other replica took over in time")
                    return
            pause = self._round()
            session = self._session
            if session is None:
                self._stopping.wait(pause)
            else:
                session.wait(min(pause, self._ttl_s / 4))

    def _round(self) -> float:
        """Does one round. Returns the seconds after which the next one is due."""
        try:
            if self._lost_lease:
                self._end_session()
            if self._session is None:
                self._begin_session()
            assert self.keeper is not None
            pause = self.keeper.step()
            self._read_history(self.keeper)
        except EngineAway as error:
            self._say(f"the engine does not answer: {error}")
            return _AWAY_S
        except BadEngine as error:
            self._say(str(error))
            return _BAD_S
        self._say("")
        return pause

    def _read_history(self, keeper: Keeper) -> None:
        """Reads the last masters for `report`, when another one has taken its part: never while one is elected."""
        state, session = keeper.view.state, self._session
        if state is None or session is None or keeper.part not in (Part.LEAD, Part.FOLLOW):
            return
        if keeper.view.leader is None or self._masters_epoch == state.epoch:
            return
        try:
            self._masters = masterships_of(session.history(SHOWN_MASTERS))
        except EngineAway:
            return  # the next round notices it, too
        except BadEngine as error:  # elections do not need the history, so they go on
            log.warning("the history of masters cannot be read: %s", error)
        self._masters_epoch = state.epoch

    def _say(self, problem: str) -> None:
        if problem and problem.partition("(")[0] != self._problem.partition("(")[0]:
            log.error("%s", problem)
        elif self._problem and not problem:
            log.info("the engine answers again")
        self._problem = problem

    @property
    def problem(self) -> str:
        """What is wrong with the engine, or what this replica waits for; empty if all is well."""
        return self._problem or ("" if self.keeper is None else self.keeper.why)

    def report(self) -> HaElections:
        """Returns how the elections of this broker stand. Any thread may call it; it asks no engine."""
        keeper, session, node, (failed, lease) = self.keeper, self._session, self._node, self._renewals
        answers = keeper is not None and not self._problem
        report = HaElections(
            id=node.id,
            role=role_of(Part.WAIT if keeper is None else keeper.part),
            required=node.required,
            engine_answers=answers,
            problem=self.problem or ("" if answers else "the consensus engine has not answered yet"),
            fenced=node.fenced,
            failed_renewals=failed + (0 if lease is None else lease.failed),
            elections_won=node.elections_won,
            role_changes=node.role_changes,
            tails_cut=node.tails_cut,
            tail_bytes_cut=node.tail_bytes_cut,
            masters=self._masters,
        )
        if session is not None:
            report.left_seconds = max(0.0, session.deadline - boot_time())
            report.renewed_seconds = max(0.0, boot_time() - (session.deadline - session.ttl_s))
        if keeper is not None and (state := keeper.view.state) is not None:
            report.epoch, report.sync, report.paused = state.epoch, list(state.sync), state.paused
            report.master = 0 if keeper.view.leader is None else keeper.view.leader.id
            report.replicas = replicas_of(keeper.view)
        return report

    # -- sessions ---------------------------------------------------------------------------------------------

    def _begin_session(self) -> None:
        session = self._open(True)
        failed, former = self._renewals
        self._lease = LeaseThread(session, self._health, lambda why: self._on_lease_end(session, why))
        self._renewals = failed + (0 if former is None else former.failed), self._lease
        if self.keeper is None:
            self.keeper = Keeper(session, self._node)
        else:
            self.keeper.use(session)
        self._session, self._lost_lease = session, False
        self._lease.start()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if self._lease is not None:
            self._lease.stop()
        if session is not None:
            session.release()
            session.close()

    def _on_lease_end(self, session: Session, why: str) -> None:
        """The lease's thread calls this at its end."""
        log.warning("%s", why)
        self._lost_lease = True
        session.wake()

    def _health(self) -> MasterHealth:
        return self._node.health(self._ttl_s / 3)

    def _deadline(self) -> float:
        session = self._session
        return session.deadline if session is not None else 0.0

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()
