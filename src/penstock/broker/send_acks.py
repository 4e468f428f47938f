"""Pending acks: sends that are stored but not yet on disk (SYNC_FLUSH) or on a slave (SYNC_MASTER).

The loop never blocks on them. Each waits in the store's watermarks (`store/watermarks.py`), which decide how it ends:
the outcome says SUCCESS, that the disk or a slave was too late, that no slave can ack soon, or that the log could not
be synced. One fsync, or one report of a slave, acks every send that it covers, with one call into the loop.

The number of pending acks per client is limited (maxUnflushedSends), and that of all clients. Further sends get
SYSTEM_BUSY before anything is stored. An ack counts as one more for each `ACK_BYTES` of its reply: the reply to a batch
has the ids of all its messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from penstock.broker.operations_as_plain_calls import Client, Deferred
from penstock.broker.send_and_pull_results import SendOutcome, code_of
from penstock.broker.settings import SettingsInForce
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.store.message import PutStatus
from penstock.store.message_store import MessageStore
from penstock.store.watermarks import Waiter
from penstock.task_supervision import OnDeath, Supervisor

ACK_BYTES: Final = 2048
"""What an ack that waits may take."""
MAX_PENDING: Final = 131_072
"""Limit of the sends that wait, over all connections: 256 MiB at `ACK_BYTES` each."""


class PendingAck(Deferred[SendOutcome]):
    """The outcome of a send that waits until the log is safe."""

    __slots__ = ("client", "is_settled", "outcome", "weight")
    count = 1
    """The number of sends."""

    def __init__(self, client: Client, outcome: SendOutcome) -> None:
        super().__init__()
        self.client = client
        self.outcome = outcome
        self.weight = 1 + len(outcome.msg_id) // ACK_BYTES
        """As how many sends it counts for the limits."""
        self.is_settled = False

    def end(self, status: PutStatus, reason: str) -> None:
        """Passes the outcome on, with another code if the log is not safe in time."""
        if status is not PutStatus.PUT_OK:
            self.outcome.code, self.outcome.remark = code_of(status), reason
        self.is_settled = True
        self.settle(self.outcome)


class PendingReplies:
    """Encoded replies to several sends that wait until the log is safe; `send` sends them, with another code if it is
    not safe in time."""

    __slots__ = ("client", "count", "send", "weight")

    def __init__(self, client: Client, count: int, size: int, send: Callable[[ResponseCode, str], object]) -> None:
        self.client = client
        self.count = count
        self.weight = max(count, 1 + size // ACK_BYTES)
        self.send = send

    def end(self, status: PutStatus, reason: str) -> None:
        self.send(code_of(status), reason)


class PendingAcks:
    """Settles each outcome once the log is flushed, and under SYNC_MASTER replicated, up to the outcome's offset.

    Use it from the loop's thread only, except `_on_ended`, which any thread may call.
    """

    def __init__(self, store: MessageStore, settings: SettingsInForce) -> None:
        self._watermarks = store.watermarks
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._by_client: Counter[Client] = Counter()
        self._pending = 0
        self._weight = 0
        """The pending acks by weight; `_by_client` has those of each client."""
        self._ended: deque[Waiter[PendingAck | PendingReplies]] = deque()
        """Acks that other threads have ended, until the loop settles them."""
        self._is_scheduled = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._settle_now: Callable[[], object] = self._settle_ended

    @property
    def is_needed(self) -> bool:
        """Whether sends have to wait at all: under SYNC_FLUSH or SYNC_MASTER."""
        return any(self._watermarks.needs)

    def supervise(self, tasks: Supervisor) -> None:
        """Has the broker leave if settling fails: senders would wait in vain. Call it before `when_safe`."""
        self._settle_now = tasks.guard("acks of sends", self._settle_ended, OnDeath.LEAVE)

    def __len__(self) -> int:
        return self._pending

    def check(self, client: Client) -> None:
        """Raises Refusal if too many sends of a client wait already."""
        if self._weight >= MAX_PENDING:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "too many sends of all connections wait for the disk")
        if self._by_client[client] >= self._settings.now.max_unflushed_sends:
            why = "too many sends of this connection wait for the disk (maxUnflushedSends); wait for their replies"
            raise Refusal(ResponseCode.SYSTEM_BUSY, why)

    def room(self, client: Client) -> int:
        """Returns how many more sends of a client may wait."""
        of_client = self._settings.now.max_unflushed_sends - self._by_client[client]
        return max(0, min(MAX_PENDING - self._weight, of_client))

    def when_safe(self, client: Client, end_offset: int, outcome: SendOutcome) -> SendOutcome | PendingAck:
        """Returns the outcome, deferred until the log is safe up to `end_offset` if it has to be.

        The outcome gets another code if the log is not safe in time. A message that was stored under a former role is
        not answered by the rules of the present one.
        """
        if not self._watermarks.may_wait:
            return outcome
        pending = PendingAck(client, outcome)
        self._wait(end_offset, pending)
        return outcome if pending.is_settled else pending

    def send_when_safe(
        self, client: Client, end_offset: int, count: int, size: int, send: Callable[[ResponseCode, str], object]
    ) -> None:
        """Calls `send` with SUCCESS once the log is safe up to `end_offset`, or with another code and its reason.

        For `count` sends of a client whose replies are encoded, in `size` bytes: one step ends them all.
        """
        self._wait(end_offset, PendingReplies(client, count, size, send))

    def _wait(self, end_offset: int, pending: PendingAck | PendingReplies) -> None:
        self._by_client[pending.client] += pending.weight
        self._weight += pending.weight
        self._pending += pending.count
        self._drained.clear()
        self._watermarks.wait(end_offset, self._on_ended, pending)

    async def drained(self) -> None:
        """Returns when no ack is pending."""
        await self._drained.wait()

    def _on_ended(self, waiters: list[Waiter[PendingAck | PendingReplies]]) -> None:
        """Settles the outcomes; on another thread than the loop's, has the loop do it.

        The loop's own thread reads the reports of slaves, so then the loop need not be woken.
        """
        self._ended.extend(waiters)
        if threading.get_ident() == self._thread:
            self._settle_now()
        elif not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._settle_now)
            except RuntimeError:  # the loop is closed
                self._is_scheduled = False

    def _settle_ended(self) -> None:
        self._is_scheduled = False
        while self._ended:
            waiter = self._ended.popleft()
            pending = waiter.token
            self._pending -= pending.count
            self._weight -= pending.weight
            self._by_client[pending.client] -= pending.weight
            if self._by_client[pending.client] <= 0:
                del self._by_client[pending.client]
            pending.end(waiter.status, waiter.reason)
        if not self._by_client:
            self._drained.set()
