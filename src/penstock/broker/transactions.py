"""Transactions: half messages, their end, and checks with producers.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC, hidden from consumers. Its properties REAL_TOPIC and REAL_QID name its
real topic and queue. A commit stores the message in its real topic. Commit and rollback both store a done mark, a
message in RMQ_SYS_TRANS_OP_HALF_TOPIC that holds the half message's queue offset. The message is stored before the
mark. After a crash in between, the broker asks the producer again, so the message may be stored twice, but it is never
lost.

`TransactionCheck` asks producers about half messages without a mark. A round reads the marks, and then the half
messages from the position where the last round stopped. If a half message is old enough, the broker stores a copy with
an incremented TRANSACTION_CHECK_TIMES, marks the old one, and asks the producer about the copy. So the position can
advance. After `transactionCheckMax` checks, or when it is older than log files are kept, the half message moves to
TRANS_CHECK_MAX_TIME_TOPIC. There an administrator can find it and restart its checks.

A message may delay its first check (CHECK_IMMUNITY_TIME_IN_SECONDS). Later half messages are checked meanwhile, but the
saved position stays at the delayed one, and which of the later half messages have ended stays in memory: a bit for each
(`EndedHalves`), and only of the 67 million that follow the position; those behind them are checked once it has moved.
The position is a consumer offset of group CID_RMQ_SYS_TRANS, as in RocketMQ. After a
crash it is a few seconds old, and the next round skips the half messages that were marked meanwhile. The position rests
on marks in the log, and does not wait for the replicas: a slave takes it over when its own log has them (`OwnOffsets`).
A round stores nothing while the broker refuses messages. Use everything here from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from penstock.broker.consumers import ClientTable, GroupMember
from penstock.broker.long_polling import HeldPulls
from penstock.broker.offsets import CHECK_GROUP as GROUP
from penstock.broker.offsets import OffsetTable
from penstock.broker.operations_as_plain_calls import Client, ClientRequests, Operation, WriteGuard, administration
from penstock.broker.reads_without_blocking_the_loop import after_read, completed
from penstock.broker.send_acks import PendingAck, PendingAcks
from penstock.broker.send_and_pull_results import STORED, PutOutcomes, SendOutcome
from penstock.broker.settings import SettingsInForce
from penstock.broker.stats import MessageCounters
from penstock.broker.topics import CHECK_MAX_TIME_TOPIC, BrokerTopics
from penstock.errors import BadMessage
from penstock.format.constants import (
    DELAY,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
)
from penstock.format.record import Record, decode_record, encode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.send import CheckTransaction, EndTransaction, ResumeCheck
from penstock.store.cold_reads import try_read
from penstock.store.message import EVERYTHING, Message, Page, PutResult
from penstock.store.message_store import MessageStore

log = logging.getLogger("penstock.broker")
HALF_QUEUE: Final = 0
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
_DONE_TAG: Final = "d"


def make_half(message: Message) -> Message:
    """Returns the half message to store in place of a transactional message. A half message has no delay."""
    properties = dict(message.properties or {})
    properties.pop(DELAY, None)
    return Message(
        HALF_TOPIC,
        message.body,
        properties={**properties, REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)},
        queue_id=HALF_QUEUE,
        flag=message.flag,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        wait=message.wait,
    )


def done_mark(half_queue_offset: int) -> Message:
    """Returns the mark which says that the half message at this queue offset is done."""
    return Message(OP_HALF_TOPIC, str(half_queue_offset).encode(), tags=_DONE_TAG, queue_id=HALF_QUEUE)


def copy_half(half: Record, times_asked: int) -> Message:
    """Returns a copy of a half message whose number of checks is `times_asked`."""
    return Message(
        HALF_TOPIC,
        half.body,
        properties={**half.properties, CHECK_TIMES: str(times_asked)},
        queue_id=HALF_QUEUE,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
    )


class Transactions:
    """Ends transactions at the request of producers."""

    def __init__(
        self, store: MessageStore, acks: PendingAcks, held: HeldPulls, counters: MessageCounters, guard: WriteGuard
    ) -> None:
        self._store = store
        self._guard = guard
        self._acks = acks
        self._held = held
        self._counters = counters
        self._outcomes = PutOutcomes(store)
        self.on_end: list[Callable[[int, int], None]] = []
        """Called when a transaction ends, with the queue offset of the half message and that of its mark."""

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("end transaction", self.end, writes=True),
            administration("resume check", self.resume, changes=True),
        )

    def end(
        self, client: Client, request: EndTransaction, answered: bool = True
    ) -> SendOutcome | PendingAck | Awaitable[SendOutcome | PendingAck]:
        """Commits or rolls back. Raises Refusal. If the client gets an answer, the outcome waits until it is safe."""
        if request.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return SendOutcome()  # the producer does not know: the broker asks it later
        found = self._store.try_look_up(request.commit_log_offset)
        return after_read(self._store, found, client, partial(self._end, client, request, answered))

    def _end(
        self, client: Client, request: EndTransaction, answered: bool, found: Record | None
    ) -> SendOutcome | PendingAck:
        half = _half(request, found)
        self._guard.check()  # the look-up may have waited for the disk
        if answered:
            self._acks.check(client)
        if request.commit_or_rollback == TRANSACTION_COMMIT:
            message = _committed(half)
            committed = self._store.append(message, again=True)
            if committed.status not in STORED:
                raise self._outcomes.refusal(committed)
            self._counters.count_sent(message.topic, 1, committed.size)
            self._held.on_stored(message.topic, message.queue_id)
        marked = self._store.append(done_mark(half.queue_offset))
        if marked.status not in STORED:
            log.warning("cannot mark the end of a transaction; its producer will be asked again: %s", marked.reason)
            return SendOutcome()
        for ended in self.on_end:
            ended(half.queue_offset, marked.queue_offset)
        outcome = SendOutcome()
        return self._acks.when_safe(client, marked.end_offset, outcome) if answered else outcome

    def resume(
        self, client: Client, request: ResumeCheck, answered: bool = True
    ) -> SendOutcome | PendingAck | Awaitable[SendOutcome | PendingAck]:
        """Restarts the checks of a half message whose transaction never ended. Raises Refusal.

        Stores a copy of the half message with 0 checks.
        """
        msg_id = request.msg_id or ""
        try:
            half = try_read(self._store.look_up_id, msg_id)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return after_read(self._store, half, client, partial(self._resume, client, msg_id, answered))

    def _resume(self, client: Client, msg_id: str, answered: bool, half: Record | None) -> SendOutcome | PendingAck:
        if half is None or half.topic not in (CHECK_MAX_TIME_TOPIC, HALF_TOPIC) or not _has_target(half):
            why = f"no unended transaction has the message id {msg_id[:64]}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        self._guard.check()
        if answered:
            self._acks.check(client)
        stored = self._store.append(copy_half(half, times_asked=0), again=True)
        if stored.status not in STORED:
            raise self._outcomes.refusal(stored)
        outcome = SendOutcome()
        return self._acks.when_safe(client, stored.end_offset, outcome) if answered else outcome


def _half(request: EndTransaction, half: Record | None) -> Record:
    """Returns the half message that a request ends. Raises Refusal if it does not match the request."""
    if half is None or half.topic != HALF_TOPIC:
        why = f"no half message at offset {request.commit_log_offset}"
    elif half.properties.get(PGROUP) != request.producer_group:
        why = f"the half message does not belong to producer group '{request.producer_group}'"
    elif half.queue_offset != request.tran_state_table_offset:
        why = f"the half message has queue offset {half.queue_offset}, not {request.tran_state_table_offset}"
    elif not _has_target(half):
        why = "the half message has no real topic or queue"
    else:
        return half
    raise Refusal(ResponseCode.SYSTEM_ERROR, why)


def _has_target(half: Record) -> bool:
    return bool(half.properties.get(REAL_TOPIC)) and half.properties.get(REAL_QID, "").isdecimal()


def _committed(half: Record) -> Message:
    """Returns the message that consumers get after a commit."""
    hidden = (REAL_TOPIC, REAL_QID, TRAN_MSG)
    return Message(
        half.properties[REAL_TOPIC],
        half.body,
        properties={name: value for name, value in half.properties.items() if name not in hidden},
        queue_id=int(half.properties[REAL_QID]),
        flag=half.flag,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.physical_offset,
    )


IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_HOUR_MS: Final = 3_600_000
_PAGE: Final = 32


MayPublish = Callable[[GroupMember, str], bool]
"""Whether a producer may send to a topic. Only such a producer is shown the topic's half messages, because a producer
group is a name that any client can claim."""


def all_may_publish(producer: GroupMember, topic: str) -> bool:
    """The rule without access control."""
    return True


_BLOCK: Final = 4096
_WINDOW: Final = 16_384 * _BLOCK
"""Half messages behind the position whose end is kept in memory: at most 16 MiB."""
_MAX_DIGITS: Final = 19


class EndedHalves:
    """Which half messages have ended, of those from a position in their queue on, up to a window of so many.

    It has one bit for each, in blocks, and for each block the lowest queue offset of the marks that say so.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._begin = 0
        self._bits: dict[int, bytearray] = {}
        self._first_marks: dict[int, int] = {}
        self._first_mark: int | None = None
        self._left_out: tuple[int, int] | None = None
        """The lowest half message behind the window that ended, and the lowest of all marks behind the window."""

    @property
    def end(self) -> int:
        """The queue offset at which the window ends."""
        return self._begin + self._window

    @property
    def first_mark(self) -> int | None:
        """A queue offset at or before every mark that is still needed; None if none is."""
        if self._left_out is None or self._first_mark is None:
            return self._first_mark if self._left_out is None else self._left_out[1]
        return min(self._first_mark, self._left_out[1])

    def __contains__(self, half: int) -> bool:
        block, at = divmod(half, _BLOCK)
        bits = self._bits.get(block)
        return bits is not None and half >= self._begin and bool(bits[at >> 3] & 1 << (at & 7))

    def add(self, half: int, mark: int) -> None:
        """Records that a half message has ended, as the mark at queue offset `mark` says."""
        if half < self._begin:
            return
        if half >= self.end:
            lowest = self._left_out or (half, mark)
            self._left_out = min(lowest[0], half), min(lowest[1], mark)
            return
        block, at = divmod(half, _BLOCK)
        bits = self._bits.get(block)
        if bits is None:
            bits = self._bits[block] = bytearray(_BLOCK // 8)
        bits[at >> 3] |= 1 << (at & 7)
        self._first_marks[block] = min(mark, self._first_marks.get(block, mark))
        self._first_mark = mark if self._first_mark is None else min(mark, self._first_mark)

    def move_to(self, begin: int) -> None:
        """Moves the position, and forgets the half messages before it."""
        if begin == self._begin:
            return
        old, self._begin = self._begin, begin
        block, at = divmod(begin, _BLOCK)
        passed = range(old // _BLOCK, block)
        gone = [each for each in passed if each in self._bits] if len(passed) < len(self._bits) else [*self._bits]
        gone = [each for each in gone if each < block]
        if block in self._bits and not int.from_bytes(self._bits[block], "little") >> at:
            gone.append(block)
        for each in gone:
            del self._bits[each], self._first_marks[each]
        if gone:
            self._first_mark = min(self._first_marks.values(), default=None)

    def read_again_from(self) -> int | None:
        """Returns the mark from which to read again, because the window has come to half messages that were left out;
        None if it has not. They count as left out no more.
        """
        if self._left_out is None or self._left_out[0] >= self.end:
            return None
        _, mark = self._left_out
        self._left_out = None
        return mark


class TransactionCheck:
    """Checks half messages, in rounds."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        offsets: OffsetTable,
        clients: ClientTable,
        requests: ClientRequests,
        settings: SettingsInForce,
        clock: Callable[[], int],
        may_publish: MayPublish,
    ) -> None:
        self._may_publish = may_publish
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._requests = requests
        self._settings = settings
        self._clock = clock
        self.may_append: Callable[[], bool] = lambda: True
        """Whether this broker may store messages now. The broker sets it."""
        self._ended = EndedHalves()
        self._read_marks = -1
        """The queue offset up to which marks were read; -1 if none were read yet."""

    def on_end(self, half_offset: int, mark_offset: int) -> None:
        """Records an ended transaction, because its mark may not be readable in its queue yet."""
        self._ended.move_to(self._position(HALF_TOPIC))
        self._ended.add(half_offset, mark_offset)

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds: `transactionCheckInterval`."""
        return self._settings.now.transaction_check_interval / 1000

    async def round(self) -> int:
        """Runs one round. Returns how many half messages were checked."""
        self._ended.move_to(self._position(HALF_TOPIC))
        if (again_from := self._ended.read_again_from()) is not None:
            self._read_marks = min(self._read_marks, again_from)
        end = min(await self._end(HALF_TOPIC), self._ended.end)
        offset = max(self._position(HALF_TOPIC), await self._begin(HALF_TOPIC), 0)
        delayed_from: int | None = None
        """The queue offset of the first half message whose check is delayed."""
        checked = 0
        while offset < end:
            await asyncio.sleep(0)
            await self._read_all_marks()  # once a page, because transactions end meanwhile
            if all(number in self._ended for number in range(offset, min(offset + _PAGE, end))):
                halves, following = {}, offset + _PAGE
            else:
                page = await self._page(HALF_TOPIC, offset)
                halves = {record.queue_offset: record for record in map(decode_record, page.records)}
                following = max(page.next_begin_offset, offset + 1)
            for number in range(offset, min(following, end)):
                half = halves.get(number)
                if half is not None and number not in self._ended:
                    if self._is_immune(half):
                        delayed_from = number if delayed_from is None else delayed_from
                        continue
                    if self._is_too_young(half) or not await self._check(half):
                        self._save_position(number if delayed_from is None else delayed_from)
                        return checked
                    checked += 1
            offset = following
            self._save_position(min(offset, end) if delayed_from is None else delayed_from)
        return checked

    async def _begin(self, topic: str) -> int:
        return await completed(self._store, try_read(self._store.min_offset, topic, HALF_QUEUE), self)

    async def _end(self, topic: str) -> int:
        return await completed(self._store, try_read(self._store.max_offset, topic, HALF_QUEUE), self)

    async def _page(self, topic: str, offset: int) -> Page:
        return await completed(self._store, self._store.try_get(topic, HALF_QUEUE, offset, _PAGE, EVERYTHING), self)

    # -- marks -----------------------------------------------------------------------------------------------

    async def _read_all_marks(self) -> None:
        lowest = max(self._position(OP_HALF_TOPIC), await self._begin(OP_HALF_TOPIC), 0)
        offset = max(lowest, self._read_marks)
        while offset < await self._end(OP_HALF_TOPIC):
            page = await self._page(OP_HALF_TOPIC, offset)
            end = self._dispatched_end(HALF_TOPIC)  # a mark lies behind its half message in the log
            for record in map(decode_record, page.records):
                for number in _offsets_in(record.body):
                    if number < end:
                        self._ended.add(number, record.queue_offset)
            offset = max(page.next_begin_offset, offset + 1)
            await asyncio.sleep(0)
        self._read_marks = offset

    def _position(self, topic: str) -> int:
        """Returns the saved position; 0 if there is none, or the queue ends before it, as after a damaged file."""
        saved = self._offsets.query(GROUP, topic, HALF_QUEUE)
        return saved if 0 <= saved <= self._dispatched_end(topic) else 0

    def _dispatched_end(self, topic: str) -> int:
        """Returns the end of a queue as it is now. Never waits for dispatch, unlike the store's `max_offset`."""
        queue = self._store.queues.find(topic, HALF_QUEUE)
        return 0 if queue is None else queue.max_offset

    def _save_position(self, half_offset: int) -> None:
        """Saves the position among the half messages, and a position among the marks before every mark still needed."""
        self._ended.move_to(half_offset)
        self._offsets.commit(GROUP, HALF_TOPIC, HALF_QUEUE, half_offset)
        needed = self._ended.first_mark
        self._offsets.commit(GROUP, OP_HALF_TOPIC, HALF_QUEUE, self._read_marks if needed is None else needed)

    # -- half messages ---------------------------------------------------------------------------------------

    def _is_immune(self, half: Record) -> bool:
        """Whether the producer delayed the first check of this half message, and the delay is not over."""
        seconds = half.properties.get(IMMUNITY, "")
        if not (seconds.isascii() and seconds.isdecimal()) or _times_asked(half):
            return False
        return self._clock() - half.store_timestamp < int(seconds[:10]) * 1000

    def _is_too_young(self, half: Record) -> bool:
        """Whether a half message is too young to be checked. If so, every half message behind it is, too."""
        if IMMUNITY in half.properties or _times_asked(half):
            return False
        return self._clock() - half.store_timestamp < self._settings.now.transaction_time_out

    async def _check(self, half: Record) -> bool:
        """Asks the producer, or expires the half message. Returns False if no messages are accepted now."""
        if not self.may_append():
            return False
        times_asked = _times_asked(half)
        too_old = self._clock() - half.born_timestamp > self._store.settings.file_reserved_time * _HOUR_MS
        if times_asked >= self._settings.now.transaction_check_max or too_old:
            return self._expire(half)
        stored = self._store.append(copy_half(half, times_asked + 1), again=True)
        if not stored.stored:
            return self._passes_over(half, stored)
        self._mark(half)
        copy = await completed(self._store, self._store.try_look_up(stored.physical_offset), self)
        if copy is not None:
            self._ask(copy)
        return True

    def _expire(self, half: Record) -> bool:
        self._topics.create_for_send_back(CHECK_MAX_TIME_TOPIC, 1)
        expired = Message(
            CHECK_MAX_TIME_TOPIC,
            half.body,
            properties=half.properties,
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_timestamp=half.born_timestamp,
            born_host=half.born_host,
            reconsume_times=half.reconsume_times,
        )
        stored = self._store.append(expired, again=True)
        if stored.stored:
            log.warning("transaction of %s was never ended: moved to %s", half.msg_id, CHECK_MAX_TIME_TOPIC)
            self._mark(half)
        return stored.stored or self._passes_over(half, stored)

    def _passes_over(self, half: Record, result: PutResult) -> bool:
        """Returns whether the round goes on without a half message that could not be stored; False to try it again.

        A half message that is passed over is not checked any more, but its producer may still end it.
        """
        if result.refused_for_good:
            log.error("cannot check the transaction of %s: %s", half.msg_id, result.reason)
        else:
            log.warning("cannot store a half message, retrying: %s", result.reason)
        return result.refused_for_good

    def _mark(self, half: Record) -> None:
        """Stores a done mark. If that fails, the half message is checked again after a restart only."""
        marked = self._store.append(done_mark(half.queue_offset))
        self._ended.add(half.queue_offset, marked.queue_offset if marked.stored else self._read_marks)

    def _ask(self, half: Record) -> None:
        group = half.properties.get(PGROUP, "")
        topic = half.properties.get(REAL_TOPIC, "")
        producers = [each for each in self._clients.producers(group) if self._may_publish(each, topic)]
        if not producers:
            log.warning("no producer of group '%s' is connected to check transaction of %s", group, half.msg_id)
            return
        shown = msgspec.structs.replace(half, topic=topic, queue_id=int(half.properties.get(REAL_QID) or 0))
        request = CheckTransaction(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=half.unique_key or half.msg_id,
            transaction_id=half.unique_key or None,
            offset_msg_id=half.msg_id,
        )
        client = producers[half.queue_offset % len(producers)]
        self._requests.tell(client.client, request, encode_record(shown))


def _times_asked(half: Record) -> int:
    times = half.properties.get(CHECK_TIMES, "")
    return int(times[:10]) if times.isascii() and times.isdecimal() else 0


def _offsets_in(body: bytes) -> Iterator[int]:
    """Yields the half messages' queue offsets in a mark: one, or several joined by commas, as 5.x writes them."""
    for piece in body.split(b","):
        digits = piece.strip()
        if digits.isdigit() and len(digits) <= _MAX_DIGITS:
            yield int(digits)
