"""How a slave joins a master with epochs: which part of its log is the master's, and what has to be cut.

The slave computes for itself up to where the logs are the same, and compares it with the master's result and with the
last message before that offset. Then there are five cases:

| This log | Then |
|---|---|
| is a prefix of the master's | the slave takes the master's epochs over, on disk, and follows |
| has a part that the master's does not have | that part is kept in the quarantine; the next open cuts it |
| has a gap, where the master's has messages | the log from there on is kept, cut, and copied again (`log_gaps`) |
| has epochs, but nothing in common, or nothing that the master's can continue | the next open moves all of it aside |
| has no epochs, and is no prefix of the master's | nothing is changed, and an operator decides, as without epochs |

Use everything here from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from penstock.broker.replication.config_sync import LogMismatch, Master, MasterLink, check_same_log, compare_before
from penstock.broker.replication.handshake import (
    Hello,
    Welcome,
    history_of,
    named_ranges,
    names_all,
    ranges_of,
    sent_entries,
    slaves_ranges,
)
from penstock.errors import BadFrame, PenstockError, StoreFailed
from penstock.store.damage_and_quarantine import inside
from penstock.store.message_store import MessageStore
from penstock.store.replication.divergence import Common, LogHistory, find_common
from penstock.store.replication.log_gaps import accept_gaps, first_gap, limit_mending, log_damage, without
from penstock.store.replication.replica_identity import replica_identity
from penstock.store.replication.tail_cut import CutPlan, prepare_cut

log = logging.getLogger("penstock.broker")


class CutNeeded(PenstockError):
    """A part of this log is set aside, and has to be cut by a restart before the master can be followed."""


class NotTheMaster(PenstockError):
    """The broker at the master's address is not, or not yet, the master that this slave may follow."""


class Joining:
    """Joins the master of a link. `accept_loss` is set after a forced failover only."""

    def __init__(self, store: MessageStore, link: MasterLink) -> None:
        self._store = store
        self._link = link
        self.accept_loss = False
        """Whether the master may lack what was acknowledged here."""

    def hello(self) -> Hello:
        """Returns what this slave says of itself."""
        store, who = self._store, self._link.who
        own = self._history()
        return Hello(
            cluster=who.cluster,
            broker=who.broker,
            replica=replica_identity(store.engine.io, store.layout),
            id=who.broker_id,
            epoch=store.role.epoch,
            entries=[(entry.epoch, entry.start) for entry in own.entries],
            begin=own.begin,
            end=own.end,
            learner=who.learner,
            damage=slaves_ranges(log_damage(store)),
        )

    def _history(self) -> LogHistory:
        store = self._store
        begin = max(store.log.min_offset, 0)
        return LogHistory(sent_entries(store.epochs.entries), begin, max(begin, store.log.queue.wrote_offset))

    async def join(self, answer: Welcome, master: Master) -> int:
        """Makes this log ready to follow the master that gave this answer. Returns the master's epoch.

        Raises CutNeeded if the store has to be opened again first; LogMismatch if an operator has to decide; BadFrame,
        StoreFailed, and the errors of `MasterLink.ask`.
        """
        theirs = self._check(answer)
        own = self._history()
        if own.end > own.begin:
            if own.entries:
                await self._compare(own, theirs, answer)
            else:
                await check_same_log(self._store, self._link, master)
        await asyncio.to_thread(limit_mending, self._store, theirs.end)
        await asyncio.to_thread(self._store.roles.follow_epochs, theirs.entries)
        return answer.epoch

    def _check(self, answer: Welcome) -> LogHistory:
        """Checks what a master says of itself. Returns its history."""
        if answer.why:
            raise NotTheMaster(f"the master does not accept this slave: {answer.why}")
        theirs, known = history_of(answer), self._store.role.epoch
        if not theirs.entries or theirs.entries[-1].epoch != answer.epoch:
            raise BadFrame(f"the master says that it is in epoch {answer.epoch}, but its last entry is another one")
        expected = self._link.expected_epoch
        if expected is not None and answer.epoch != expected:
            raise NotTheMaster(f"the master is in epoch {answer.epoch}, but the cluster is in epoch {expected}")
        if answer.epoch < known:
            raise NotTheMaster(
                f"the master is in epoch {answer.epoch}, but this slave knows epoch {known}: another broker became "
                "master since; follow that one, or restart this master if it is to stay"
            )
        return theirs

    async def _compare(self, own: LogHistory, theirs: LogHistory, answer: Welcome) -> None:
        """Checks that this log is a prefix of the master's. If it is not, sets aside what has to be cut."""
        common = find_common(own, theirs)
        if common.end != answer.cut:
            raise BadFrame(f"the logs are the same up to {common.end}, but the master says up to {answer.cut}")
        if common.end < theirs.begin or (common.end <= own.begin and not common.is_proved):
            why = f"the logs are the same up to {common.end} at most, and the master's begins at {theirs.begin}"
            # The last message cannot be compared. Only of elected masters it is certain that an epoch had one of them.
            is_certain = common.is_proved and self._link.expected_epoch is not None
            await self._cut(own, 0, theirs, why, at_master=common.end if is_certain else 0)
        try:
            await compare_before(self._store, self._link, common.end, theirs.begin)
        except LogMismatch as error:
            if common.is_proved:
                raise
            await self._cut(own, 0, theirs, str(error), at_master=0)
        if answer.damage is not None:
            await self._mend(own, theirs, common, answer)
        if common.end < own.end:
            why = f"the master's log parts from this one at {common.end}"
            await self._cut(own, common.end, theirs, why, at_master=common.end)

    async def _mend(self, own: LogHistory, theirs: LogHistory, common: Common, answer: Welcome) -> None:
        """Has the log cut at its first gap, if the master has what is missing there, so that it is sent again.

        Raises CutNeeded then. Whatever was acknowledged here: the epochs prove that the master has all that is cut
        before `common.end`, because both logs are the same up to there, and it has damage only where this log has.
        What is cut behind it must not have been acknowledged. If a gap cannot be mended, says why and returns: the
        master does not count a slave with a gap.
        """
        store, masters = self._store, ranges_of(answer)
        damage = log_damage(store)
        if first_gap(named_ranges(damage), masters, theirs.begin, common.end) is None:
            await asyncio.to_thread(accept_gaps, store, inside(damage, 0, common.end))
            return
        gap = first_gap(damage, masters, theirs.begin, common.end)
        if gap is None:
            log.error(
                "this log has %d damaged ranges, as the master's: too many for a handshake, so this slave counts for "
                "no acknowledgement; run `penstock store repair` on the master's store",
                len(damage),
            )
            return
        at, marks = gap.physical_offset, store.watermarks
        why = f"this log has a gap of {gap.size} bytes at {at}, and the master has what is missing there"
        if not common.is_proved:
            problem = "no common epoch proves that the logs are the same"
        elif not names_all(answer):
            problem = "the master's log has more damaged ranges than a handshake can name"
        elif only_here := without(inside(masters, at, common.end), damage):
            problem = f"the master's log is damaged, too, at {only_here[0].physical_offset}, where this one is whole"
        elif marks.is_limited and marks.visible > common.end:
            return  # the cut at the common end is refused
        else:
            try:
                folder = await self._set_aside(own, at, theirs, why, mended_to=common.end)
            except StoreFailed as error:
                problem = str(error)
            else:
                raise CutNeeded(
                    f"{why}: the log from there on is kept in {folder}, is cut when this broker starts again, and is "
                    "copied from the master again"
                )
        log.error("%s; it is not copied again, and this slave counts for no acknowledgement: %s", why, problem)

    async def _cut(self, own: LogHistory, offset: int, theirs: LogHistory, why: str, *, at_master: int) -> None:
        """Sets aside what has to be cut. Raises CutNeeded, or LogMismatch if an operator has to decide.

        Up to `at_master` both logs are the same: what the master does not have of that, its retention has deleted. So
        what was acknowledged before that offset is not lost by the cut.
        """
        marks = self._store.watermarks
        if marks.is_limited and marks.visible > at_master and not self.accept_loss:
            raise LogMismatch(
                f"{why}, but messages up to {marks.visible} were acknowledged here: the new master lacks them; nothing "
                "is cut; make this broker the master, or decide that they may be lost"
            )
        folder = await self._set_aside(own, offset, theirs, why)
        size = own.end - max(own.begin, offset)
        raise CutNeeded(f"{why}: {size} bytes are kept in {folder}, and are cut when this broker starts again")

    async def _set_aside(
        self, own: LogHistory, offset: int, theirs: LogHistory, why: str, *, mended_to: int = 0
    ) -> Path:
        """Keeps the log from `offset` on, and has it cut. Returns the folder of the copy. Raises StoreFailed.

        If nothing would be left that the master's log can continue, all is moved aside: only an empty store is sent the
        master's log from its begin. Such a store lacks messages until it has reached the end of the master's log.
        """
        is_whole = offset <= own.begin or offset < theirs.begin
        plan = CutPlan(
            None if is_whole else offset,
            self._link.log_address,
            theirs.entries[-1].epoch,
            why,
            theirs.end if is_whole else mended_to,
        )
        return await asyncio.to_thread(prepare_cut, self._store, plan)
