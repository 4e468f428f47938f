"""Tasks that read ranges of a cluster's queues on workers, by pulling from the brokers. Needs pyarrow.

    ClusterTask   the task, pickled by the driver; decodes records with the same compiled code as a store's tasks
    Prefetcher    pulls a few short ranges at once and returns their pages in order
    RangePuller   pulls one range and checks every record
    ClusterLink   the client: one event loop in its own thread, with retries

A task accounts for every message once: as a row, as a flaw (a damaged or missing record), or as lost. It checks records
as a store does: shape, CRC, topic, queue and offset. RocketMQ's brokers return damaged records; Penstock's brokers skip
them. Both cases become flaws. With a tag filter, the task cannot tell a skipped damaged record from a filtered message.

A broker returns at most 32 messages per pull by default, so a puller mostly waits for replies. Hence the prefetch. As
back-pressure, a range stops pulling at `_MAX_BUFFERED` unread bytes. Printing a `ClusterTask` or a `ClusterAccess`
shows no secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from penstock.client.client_instance import ClientInstance
from penstock.client.config import ClientConfig, Credentials
from penstock.client.event_loop_thread import LoopThread
from penstock.client.offsets import QueueOffsets
from penstock.client.pull_requests import Pull, PulledRecords, PullStatus, make_subscription, pull_records
from penstock.errors import BadSettings, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.format import kernels
from penstock.format.arrow_rows import rows_to_batch, select_columns
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernel_row_types import ROW, Reason
from penstock.format.kernels import Longs, Rows
from penstock.pipeline.offset_ranges import Flaw, OffsetRange, Queue, RowPage
from penstock.pipeline.options import Options
from penstock.pipeline.store_read_tasks import lost_messages
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.subscription import EVERYTHING
from penstock.store.message import MAX_BYTES, MAX_ROWS

log = logging.getLogger("penstock.pipeline")
T = TypeVar("T")


# -- the client ------------------------------------------------------------------------------------------------------

_TIMEOUT_S: Final = 10.0
"""Timeout of a request. A broker that reads a page from a cold disk needs longer than the client's default."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_MAX_CONCURRENT: Final = 256
"""The maximum number of requests in flight."""
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The address, consumer group, account and TLS properties for a cluster. The driver pickles it."""

    namesrv: str
    group: str
    credentials: Credentials | None = None
    patience_s: float = 30.0
    """Seconds for which requests are retried while a broker is unreachable."""
    tls: tuple[tuple[str, str], ...] = ()
    """RocketMQ's `tls.*` properties with their values; none for plain connections."""

    def config(self, timeout_s: float = _TIMEOUT_S) -> ClientConfig:
        """Returns the configuration of a client. Raises BadSettings for an invalid address or TLS file."""
        tls = dict(self.tls) or None
        return ClientConfig(self.namesrv, credentials=self.credentials, tls=tls, timeout_s=timeout_s)

    @classmethod
    def of(cls, options: Options) -> Self:
        """Returns the access that the options describe. Raises BadSettings if only one of the two keys is given."""
        if bool(options.access_key) != bool(options.secret_key):
            given, missing = ("accessKey", "secretKey") if options.access_key else ("secretKey", "accessKey")
            raise BadSettings(f"{given} is given without {missing}; give both, or none of them")
        account = Credentials(options.access_key, options.secret_key) if options.access_key else None
        tls = tuple(options.tls_properties.items())
        return cls(options.namesrv, options.consumer_group, account, options.wait_for_brokers, tls)


class ClusterLink:
    """A client with an event loop in its own thread, until `close`. Synchronous code runs coroutines with `run`.

    The constructor raises BadSettings for an invalid address.
    """

    def __init__(self, access: ClusterAccess, *, reached: bool = False) -> None:
        """`reached` says that the cluster was reachable recently, so that even the first request is retried."""
        self._access = access
        self._reached = reached
        config = access.config()
        self._thread = LoopThread("penstock pipeline")
        self.instance = self._thread.run(_create_instance(config))
        self.offsets = QueueOffsets(self.instance)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the link's event loop and returns its result. An interrupt cancels the coroutine."""
        return self._thread.run(work)

    def close(self) -> None:
        """Closes the client and its loop. Idempotent."""
        if not self._thread.is_closed:
            try:
                self._thread.run(self.instance.close())
            finally:
                self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- in its loop -----------------------------------------------------------------------------------------

    async def with_retries(self, ask: Callable[[], Awaitable[T]], doing: str, topics: tuple[str, ...] = ()) -> T:
        """Calls `ask` until it succeeds, for at most `patience_s`. Raises Unreachable after that.

        Retries if a server is unreachable, silent or busy. If the cluster was never reached, retries only if a server
        is busy, because the address is probably wrong. Reloads the routes of `topics` between attempts. `doing`
        completes "while ..." in the error.
        """
        clock = asyncio.get_running_loop().time
        began, pause = clock(), _FIRST_PAUSE_S
        while True:
            try:
                result = await ask()
            except (Unreachable, NoAnswer, NoRoute, Refused) as error:
                if not self._is_transient(error):
                    raise
                waited = clock() - began
                if waited >= self._access.patience_s:
                    raise Unreachable(
                        f"{error} (while {doing}; retried for {waited:.0f} s); check that all brokers are running"
                    ) from None
                log.debug("retrying: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                await self.instance.routes.refresh(topics)
            else:
                self._reached = True
                return result

    async def pull(self, queue: Queue, offset: int, max_messages: int, tags: str = EVERYTHING) -> PulledRecords:
        """Pulls a page from the queue's master, because a slave may lack messages. Retries."""
        pull = Pull(
            group=self._access.group,
            queue=message_queue(queue),
            offset=offset,
            subscription=make_subscription(queue.topic, tags),
            max_messages=max_messages,
        )

        async def ask() -> PulledRecords:
            routes = self.instance.routes
            await routes.find(queue.topic)
            return await pull_records(self.instance, pull, routes.address(queue.broker))

        doing = f"reading topic {queue.topic} queue {queue.queue_id} of broker {queue.broker} from {offset}"
        return await self.with_retries(ask, doing, (queue.topic,))

    async def min_offset(self, queue: Queue) -> int:
        """Returns the offset of the oldest message. Retries."""
        doing = f"reading the minimum offset of topic {queue.topic} queue {queue.queue_id}"
        return await self.with_retries(lambda: self.offsets.min_offset(message_queue(queue)), doing, (queue.topic,))

    def _is_transient(self, error: PenstockError) -> bool:
        """Returns whether a retry may succeed."""
        if isinstance(error, Refused):
            return error.code in _BUSY
        return self._reached


async def gather_limited(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines with limited concurrency and returns their results in order. An error cancels the others."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await each

    given = list(work)
    tasks = [asyncio.create_task(one(each)) for each in given]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in given:
            each.close()  # has an effect only on a coroutine that never started


def message_queue(queue: Queue) -> MessageQueue:
    """Returns the queue as the protocol's MessageQueue."""
    return MessageQueue(broker_name=queue.broker, queue_id=queue.queue_id, topic=queue.topic)


async def _create_instance(config: ClientConfig) -> ClientInstance:
    return ClientInstance(config)


# -- pulling a range -------------------------------------------------------------------------------------------------

_MAX_MESSAGES: Final = 1024
"""The maximum messages of a pull. Brokers have their own limit, 32 by default."""
_NO_ROWS: Final = np.empty(0, ROW)


class RecordPage(NamedTuple):
    """Messages of one queue: contiguous records, a ROW for each record, and the flaws among them."""

    queue: Queue
    records: memoryview
    rows: Rows
    flaws: tuple[Flaw, ...] = ()


class RangePuller:
    """Pulls ranges of queues. The broker filters by `tags`. Use it only in the link's event loop."""

    def __init__(self, link: ClusterLink, *, tags: str = EVERYTHING, fail_on_data_loss: bool = True) -> None:
        self._link = link
        self._tags = tags
        self._fail_on_data_loss = fail_on_data_loss
        self._reported: set[OffsetRange] = set()

    async def pieces(self, span: OffsetRange, start: int, stop: int) -> AsyncGenerator[RecordPage, None]:
        """Yields the pages of a span from queue offset `start` to `stop`, in order.

        Raises DataLost if messages no longer exist, unless `fail_on_data_loss` is false.
        """
        queue, at, careful_until = span.queue, start, start
        while at < stop:
            run_serially = at < careful_until
            page = await self._link.pull(queue, at, 1 if run_serially else min(stop - at, _MAX_MESSAGES), self._tags)
            if page.status in (PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MSG) and page.next_offset <= at:
                self._report_loss(span, at, span.stop)  # the queue ends before the range does
                return
            if page.status is PullStatus.OFFSET_ILLEGAL:
                following = page.min_offset if page.min_offset > at else span.stop
                self._report_loss(span, at, min(following, span.stop))
                at = following
                continue
            if page.next_offset <= at:
                raise NoAnswer(
                    f"broker {queue.broker} returns {page.next_offset} as the next offset for a pull of topic "
                    f"{queue.topic} queue {queue.queue_id} at {at}; it must be larger"
                )
            rows, flaw = valid_rows(page.body, queue, at)
            following, flaws = page.next_offset, []
            if flaw is not None and not run_serially:
                # Pull one by one to learn which message is damaged.
                careful_until, following = page.next_offset, _offset_after(rows, at)
            elif flaw is not None and following <= stop:
                flaws = [flaw._replace(queue_offset=following - 1)]
            inside = rows[: int(np.searchsorted(rows["queue_offset"], stop))]
            if self._tags == EVERYTHING:
                flaws += await self._missing(span, at, min(following, stop), inside["queue_offset"], flaws)
            if len(inside) or flaws:
                size = int(inside["size"].sum(dtype=np.int64))
                yield RecordPage(queue, memoryview(page.body)[:size], inside, tuple(flaws))
            at = following

    async def _missing(
        self, span: OffsetRange, start: int, stop: int, received: Longs, known: list[Flaw]
    ) -> list[Flaw]:
        """Returns flaws for the messages from `start` to `stop` that are neither in `received` nor in `known`.

        Reports messages below the queue's minimum offset as lost instead.
        """
        if len(received) == stop - start:
            return []
        accounted = {flaw.queue_offset for flaw in known}.union(received.tolist())
        missing = [number for number in range(start, stop) if number not in accounted]
        if not missing:
            return []
        lowest = await self._link.min_offset(span.queue)
        if missing[0] < lowest:
            self._report_loss(span, missing[0], min(lowest, span.stop))
        return [
            _queue_flaw(span.queue, f"the record of queue offset {number} is missing", number)
            for number in missing
            if number >= lowest
        ]

    def _report_loss(self, span: OffsetRange, start: int, stop: int) -> None:
        topic, broker, queue_id = span.queue
        error = lost_messages(topic, broker, queue_id, start, stop)
        if self._fail_on_data_loss:
            raise error
        if span not in self._reported:
            self._reported.add(span)
            log.warning("messages from %d on of topic %s queue %d (broker %s) are gone", start, topic, queue_id, broker)


def valid_rows(body: bytes | memoryview, queue: Queue, at: int) -> tuple[Rows, Flaw | None]:
    """Returns the ROWs of a page's valid records, and the flaw of the first invalid record, or None.

    Stops at the first record that is damaged, belongs to another queue, or is out of order. `at` is the pull's offset.
    """
    if not body:
        return _NO_ROWS, None
    room = np.empty(len(body) // MIN_RECORD_SIZE + 1, ROW)
    count, _, reason = kernels.loose_rows(body, 0, True, room)
    rows = room[:count]
    valid = _count_of_queue(body, rows, queue, at)
    if valid < count:
        return rows[:valid], _queue_flaw(queue, "a record belongs to another message")
    if reason != Reason.STOP:
        return rows, _queue_flaw(queue, f"a record is damaged ({Reason(reason).name})")
    return rows, None


def _count_of_queue(body: bytes | memoryview, rows: Rows, queue: Queue, at: int) -> int:
    """Returns how many leading rows are messages of the queue with ascending offsets from `at` on."""
    topic = np.frombuffer(queue.topic.encode(), np.uint8)
    numbers = rows["queue_offset"]
    good = (rows["queue_id"] == queue.queue_id) & (rows["topic_length"] == len(topic))
    good &= numbers > np.concatenate(([at - 1], numbers[:-1]))
    count = len(rows) if good.all() else int(good.argmin())
    lengths = rows["size"][:count].astype(np.int64)
    positions = np.cumsum(lengths) - lengths + rows["topic_at"][:count]
    names = np.empty((count, len(topic)), np.uint8)
    kernels.gather(body, positions, np.full(count, len(topic), np.int32), names.reshape(-1))
    same = (names == topic).all(axis=1)
    return count if same.all() else int(same.argmin())


def _offset_after(rows: Rows, at: int) -> int:
    return int(rows["queue_offset"][-1]) + 1 if len(rows) else at


def _queue_flaw(queue: Queue, what: str, queue_offset: int | None = None) -> Flaw:
    return Flaw(queue.topic, queue.queue_id, queue_offset, None, what)


# -- prefetching -----------------------------------------------------------------------------------------------------

_RANGE_MESSAGES: Final = 256
"""The maximum messages of a prefetched range."""
_PREFETCH_RANGES: Final = 4
_MAX_BUFFERED: Final = 1 << 20


class Prefetcher:
    """Pulls the pages of some spans ahead and returns them in order. Create and use it in the link's event loop."""

    def __init__(self, puller: RangePuller, spans: Iterable[OffsetRange]) -> None:
        self._puller = puller
        self._ranges = _ranges(spans)
        self._in_flight: deque[_PrefetchedRange] = deque()

    async def next(self) -> RecordPage | None:
        """Returns the next page, or None at the end. Raises the errors of `RangePuller.pieces`."""
        while True:
            while len(self._in_flight) < _PREFETCH_RANGES and (following := next(self._ranges, None)) is not None:
                self._in_flight.append(_PrefetchedRange(self._puller.pieces(*following)))
            if not self._in_flight:
                return None
            piece = await self._in_flight[0].next_page()
            if piece is not None:
                return piece
            self._in_flight.popleft()

    async def close(self) -> None:
        """Cancels the pulls of the ranges in flight."""
        for in_flight in self._in_flight:
            in_flight.task.cancel()
        await asyncio.gather(*(in_flight.task for in_flight in self._in_flight), return_exceptions=True)
        self._in_flight.clear()


class _PrefetchedRange:
    """A range whose pages a task pulls into `_pages`. The last item of `_pages` is None or the pull's error."""

    def __init__(self, pieces: AsyncGenerator[RecordPage, None]) -> None:
        self._pieces = pieces
        self._pages: asyncio.Queue[RecordPage | Exception | None] = asyncio.Queue()
        self._buffered = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.task = asyncio.create_task(self._pull_all())

    async def next_page(self) -> RecordPage | None:
        page = await self._pages.get()
        if isinstance(page, Exception):
            raise page
        if page is not None:
            self._buffered -= len(page.records)
            if self._buffered < _MAX_BUFFERED:
                self._has_room.set()
        return page

    async def _pull_all(self) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    self._pages.put_nowait(piece)
                    self._buffered += len(piece.records)
                    if self._buffered >= _MAX_BUFFERED:
                        self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:  # `next_page` raises it
            self._pages.put_nowait(error)
        else:
            self._pages.put_nowait(None)


def _ranges(spans: Iterable[OffsetRange]) -> Iterator[tuple[OffsetRange, int, int]]:
    for span in spans:
        for start in range(span.start, span.stop, _RANGE_MESSAGES):
            yield span, start, min(start + _RANGE_MESSAGES, span.stop)


# -- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """A task that reads ranges of queues.

    Brokers filter `tags` by hash code. A page may therefore have messages with other tags, but lacks none.
    """

    access: ClusterAccess
    spans: tuple[OffsetRange, ...]
    tags: str = EVERYTHING
    fail_on_data_loss: bool = True

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        """Yields the messages. Raises DataLost, Unreachable if a broker stays unreachable, Refused if it refuses."""
        schema = select_columns(columns)
        with ClusterLink(self.access, reached=True) as link:
            reader = _PageReader(link, self)
            try:
                while pieces := link.run(reader.page()):
                    yield _page(pieces, schema)
            finally:
                link.run(reader.close())


class _PageReader:
    """Joins pulled pages into pages of full size. Use it only in the link's event loop."""

    def __init__(self, link: ClusterLink, task: ClusterTask) -> None:
        puller = RangePuller(link, tags=task.tags, fail_on_data_loss=task.fail_on_data_loss)
        self._prefetcher = Prefetcher(puller, task.spans)
        self._left_over: RecordPage | None = None

    async def page(self) -> list[RecordPage]:
        """Returns the pulled pages that make up one full page, all from one broker. Returns [] at the end."""
        pieces: list[RecordPage] = []
        rows = size = 0
        while rows < MAX_ROWS and size < MAX_BYTES:
            piece, self._left_over = self._left_over or await self._prefetcher.next(), None
            if piece is None:
                break
            if pieces and piece.queue.broker != pieces[0].queue.broker:
                self._left_over = piece
                break
            pieces.append(piece)
            rows += len(piece.rows) + len(piece.flaws)
            size += len(piece.records)
        return pieces

    async def close(self) -> None:
        await self._prefetcher.close()


def _page(pieces: list[RecordPage], schema: pa.Schema) -> RowPage:
    records = b"".join(piece.records for piece in pieces)
    rows = np.concatenate([piece.rows for piece in pieces])
    sizes = rows["size"].astype(np.int64)
    batch = rows_to_batch(records, np.cumsum(sizes) - sizes, rows, schema)
    return RowPage(pieces[0].queue.broker, batch, tuple(flaw for piece in pieces for flaw in piece.flaws))
