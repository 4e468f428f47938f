"""How a slave joins a master with epochs: which part of its log is the master's, and what has to be cut.

The slave computes for itself up to where the logs are the same, and compares it with the master's result and with the
last message before that offset. Then there are four cases:

| This log | Then |
|---|---|
| is a prefix of the master's | the slave takes the master's epochs over, on disk, and follows |
| has a part that the master's does not have | that part is kept in the quarantine; the next open cuts it |
| has epochs, but nothing in common, or ends before the master's begins | the next open moves all of it aside |
| has no epochs, and is no prefix of the master's | nothing is changed, and an operator decides, as without epochs |

Use everything here from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.replication.config_sync import LogMismatch, Master, MasterLink, check_same_log, compare_before
from penstock.broker.replication.handshake import Hello, Welcome, history_of, sent_entries
from penstock.errors import BadFrame, PenstockError
from penstock.store.message_store import MessageStore
from penstock.store.replication.divergence import LogHistory, find_common
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
            await self._cut(own, None, answer, why)
        try:
            await compare_before(self._store, self._link, common.end, theirs.begin)
        except LogMismatch as error:
            if common.is_proved:
                raise
            await self._cut(own, None, answer, str(error))
        if common.end < own.end:
            await self._cut(own, common.end, answer, f"the master's log parts from this one at {common.end}")

    async def _cut(self, own: LogHistory, offset: int | None, answer: Welcome, why: str) -> None:
        """Sets aside what has to be cut. Raises CutNeeded, or LogMismatch if an operator has to decide."""
        marks = self._store.watermarks
        if marks.is_limited and marks.visible > (offset or 0) and not self.accept_loss:
            raise LogMismatch(
                f"{why}, but messages up to {marks.visible} were acknowledged here: the new master lacks them; nothing "
                "is cut; make this broker the master, or decide that they may be lost"
            )
        plan = CutPlan(offset, self._link.log_address, answer.epoch, why)
        folder = await asyncio.to_thread(prepare_cut, self._store, plan)
        size = own.end - (own.begin if offset is None else offset)
        raise CutNeeded(f"{why}: {size} bytes are kept in {folder}, and are cut when this broker starts again")
