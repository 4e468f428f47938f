"""Long polling: pulls that found nothing and are held until a message arrives.

A held pull runs again, and is settled, when a message arrives that may match its filter, or when its time is up. If
its client closes the connection, the pull is dropped. The dispatch thread reports arrivals; many arrivals reach the
loop in one call. The caller limits the number of held pulls per client.

One message may settle thousands of pulls, each with a copy of it. So a pull whose client has not read its earlier
replies waits until it has, and one turn of the loop settles pulls with at most TURN_BYTES. Pulls that wait for the disk
share the budget, and read one after the other for each client, when it has read its earlier replies (`read_turn`). Use
everything but `_on_arrival` and `_on_flushed` from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from penstock.broker.filters import Selection
from penstock.broker.operations_as_plain_calls import Client, Deferred
from penstock.broker.send_and_pull_results import PullOutcome
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.table_memory_limits import Budget
from penstock.store.message_store import MessageStore
from penstock.store.settings import FlushDiskType

_Key = tuple[str, int]
_MAX_CODES = 4096
"""The number of arrivals in one queue up to which their tags are compared. If more messages arrived, every held pull of
the queue runs."""


TURN_BYTES: Final = 32 << 20
_RETRY_S: Final = 0.02
"""Seconds until postponed pulls are looked at again."""
_STOPPING: Final = "this broker is stopping; pull from another"
MAX_BYTES: Final = 256 << 20
MAX_BYTES_OF_CLIENT: Final = 64 << 20


class HeldPull(Deferred[PullOutcome]):
    """A pull that waits for a message at `offset` or later."""

    __slots__ = ("client", "cost", "key", "offset", "run", "selection", "size", "timer")

    def __init__(
        self,
        client: Client,
        topic: str,
        queue_id: int,
        offset: int,
        selection: Selection,
        run: Callable[[HeldPull, bool], bool],
        cost: int,
    ) -> None:
        """`cost` is an estimate of the memory that it takes while it is held."""
        super().__init__()
        self.cost = cost
        self.client = client
        self.key = (topic, queue_id)
        self.offset = offset
        self.selection = selection
        self.run = run
        """Runs the pull. The second argument says whether this is the last attempt. Returns whether the pull was
        settled. May advance `offset`."""
        self.timer: asyncio.TimerHandle | None = None
        """None if the pull is not held (any more)."""
        self.size = 0
        """Bytes of the messages in the outcome."""

    def settle(self, outcome: PullOutcome | Exception) -> None:
        if isinstance(outcome, PullOutcome):
            self.size = len(outcome.page.data)
        super().settle(outcome)


class HeldPulls:
    """All held pulls, by queue."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._by_queue: dict[_Key, set[HeldPull]] = {}
        self._by_client: dict[Client, set[HeldPull]] = {}
        self._arrived: dict[_Key, tuple[int, list[npt.NDArray[np.int64]]]] = {}
        """New messages by queue: the queue's end and the tags codes. The dispatch thread fills it, the loop empties it.
        `_lock` guards it and `_wake_scheduled`."""
        self._wake_scheduled = False
        self._lock = threading.Lock()
        self._reading: set[asyncio.Task[PullOutcome]] = set()
        """The tasks of former held pulls that wait for the disk."""
        self._turns: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()
        """For each client with pulls that wait for the disk: whose turn it is to read."""
        self._closed = False
        self._catch_up_scheduled = False
        self.budget = Budget("waiting pulls", MAX_BYTES, MAX_BYTES_OF_CLIENT)
        self._turn_bytes = 0
        """Bytes of the pulls that were settled in this turn of the loop."""
        self._postponed: dict[HeldPull, bool] = {}
        """Pulls that are due, in order, and whether each runs for the last time."""
        store.on_arrival(self._on_arrival)
        if store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            store.watermarks.on_advance(self._on_flushed)

    def __len__(self) -> int:
        return sum(len(pulls) for pulls in self._by_client.values())

    @property
    def queues(self) -> dict[_Key, set[HeldPull]]:
        """The held pulls by topic and queue id; one dict for all time."""
        return self._by_queue

    def count_of(self, client: Client) -> int:
        return len(self._by_client.get(client, ()))

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Holds a pull for at most `seconds`. Raises Refusal if held pulls take too much memory, or its client has gone
        while it waited for the disk: nothing would drop it then.
        """
        if pull.client.closed:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "the connection of this pull is closed")
        self.budget.charge(pull.cost, pull.client)
        self._by_queue.setdefault(pull.key, set()).add(pull)
        of_client = self._by_client.get(pull.client)
        if of_client is None:
            of_client = self._by_client[pull.client] = set()
            pull.client.on_close.append(self._client_closed)
        of_client.add(pull)
        pull.timer = self._loop.call_later(0 if self._closed else seconds, self._answer_now, pull)
        queue = self._store.queues.find(*pull.key)
        if queue is not None and queue.max_offset > pull.offset:
            self._loop.call_soon(self._poll, pull)  # the message arrived before the pull was held

    def on_stored(self, topic: str, queue_id: int) -> None:
        """Schedules the dispatch of a message that was just put into a queue, if a pull is held there."""
        if self._by_queue and (topic, queue_id) in self._by_queue and not self._catch_up_scheduled:
            self._catch_up_scheduled = True
            self._loop.call_soon(self._catch_up)

    def _on_flushed(self) -> None:
        """Schedules the dispatch of flushed messages, which consumers may now see. The flush thread calls this."""
        if self._by_queue and not self._catch_up_scheduled:
            self._catch_up_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._catch_up)

    def _catch_up(self) -> None:
        self._catch_up_scheduled = False
        self._store.try_catch_up()  # if another thread dispatches, it reports the arrivals

    def settle_later(self, pull: HeldPull, outcome: Coroutine[Any, Any, PullOutcome]) -> None:
        """Settles a pull that is no longer held with an outcome that waits for the disk, or with its error."""

        def settle(done: asyncio.Task[PullOutcome]) -> None:
            """Nothing else would settle this pull, and a task that is cancelled before its first step cannot."""
            self._reading.discard(done)
            if done.cancelled():
                pull.settle(Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPPING))
            elif isinstance(error := done.exception(), Exception):
                pull.settle(error)
            elif error is None:
                pull.settle(done.result())

        task = asyncio.create_task(outcome)
        self._reading.add(task)
        task.add_done_callback(settle)

    @contextlib.asynccontextmanager
    async def read_turn(self, client: Client, cost: int) -> AsyncIterator[None]:
        """The turn of a pull to read from the disk. It comes after the client's earlier pulls, once their replies are
        read. Raises Refusal if waiting pulls take too much memory.
        """
        with self.budget.charged(cost, client):
            async with self._turns.setdefault(client, asyncio.Lock()):
                while client.is_behind and not (client.closed or self._closed):
                    await asyncio.sleep(_RETRY_S)
                if client.is_behind or client.closed:
                    raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPPING)
                yield

    async def drained(self) -> None:
        """Returns when no former held pull waits for the disk. A cancellation refuses those that still do."""
        await asyncio.gather(*self._reading, return_exceptions=True)

    def release_all(self) -> None:
        """Answers all held pulls now, because the broker stops. From then on no pull is held."""
        self._closed = True
        for pulls in list(self._by_client.values()):
            for pull in list(pulls):
                self._answer_now(pull)

    # -- arrivals --------------------------------------------------------------------------------------------

    def _on_arrival(self, topic: str, queue_id: int, max_offset: int, tags_codes: npt.NDArray[np.int64]) -> None:
        """Records new messages and wakes the loop.

        The dispatch thread calls this; or the loop's thread, when a read dispatched messages.
        """
        key = (topic, queue_id)
        if key not in self._by_queue:
            return
        with self._lock:
            _, codes = self._arrived.get(key, (0, []))
            self._arrived[key] = (max_offset, [*codes, tags_codes])
            if self._wake_scheduled:
                return
            self._wake_scheduled = True
        is_here = threading.get_ident() == self._thread
        with contextlib.suppress(RuntimeError):  # the loop is closed
            (self._loop.call_soon if is_here else self._loop.call_soon_threadsafe)(self._wake)

    def _wake(self) -> None:
        with self._lock:
            self._wake_scheduled = False
            arrived, self._arrived = self._arrived, {}
        for key, (max_offset, codes) in arrived.items():
            many = sum(map(len, codes)) > _MAX_CODES
            tags_codes = codes[0] if len(codes) == 1 else np.concatenate(codes)
            for pull in list(self._by_queue.get(key, ())):
                if max_offset > pull.offset and (many or pull.selection.may_match(tags_codes)):
                    self._poll(pull)

    def _poll(self, pull: HeldPull) -> None:
        self._run(pull, False)

    def _run(self, pull: HeldPull, is_last: bool) -> None:
        """Runs a pull, or postpones it; see the module's docstring."""
        if pull.timer is None:
            return
        if self._closed and pull.client.is_behind:
            self._remove(pull)  # the client would not read the answer before its connection is closed
        elif pull.client.is_behind or (self._turn_bytes >= TURN_BYTES and not self._closed):
            if not self._postponed:
                self._loop.call_later(_RETRY_S, self._run_postponed)
            self._postponed[pull] = is_last or self._postponed.get(pull, False)
        elif pull.run(pull, is_last):
            self._remove(pull)
            if pull.size and not self._turn_bytes:
                self._loop.call_soon(self._end_turn)
            self._turn_bytes += pull.size

    def _end_turn(self) -> None:
        self._turn_bytes = 0

    def _run_postponed(self) -> None:
        postponed, self._postponed = self._postponed, {}
        for pull, is_last in postponed.items():
            self._run(pull, is_last)

    # -- ending ----------------------------------------------------------------------------------------------

    def _answer_now(self, pull: HeldPull) -> None:
        self._run(pull, True)

    def _remove(self, pull: HeldPull) -> None:
        if pull.timer is None:
            return
        pull.timer.cancel()
        pull.timer = None
        self.budget.charge(-pull.cost, pull.client)
        self._by_client[pull.client].discard(pull)
        pulls = self._by_queue[pull.key]
        pulls.discard(pull)
        if not pulls:
            del self._by_queue[pull.key]

    def _client_closed(self, client: Client) -> None:
        for pull in list(self._by_client.get(client, ())):
            self._remove(pull)
        self._by_client.pop(client, None)
