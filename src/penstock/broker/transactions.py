"""Transactions: a half message waits out of sight until its producer says commit or rollback (code 37).

Half messages lie in RMQ_SYS_TRANS_HALF_TOPIC, with the topic and queue that they are meant for in REAL_TOPIC and
REAL_QID. A commit puts the message where it belongs; commit and rollback both put a mark into
RMQ_SYS_TRANS_OP_HALF_TOPIC, which says that this half message is dealt with. The message comes first and the mark
second: a crash in between has the producer asked again, and at worst the message is there twice; it is never lost.

An administrator may have a message that was given up asked about anew (code 323).


Asks producers about half messages that nobody has ended (code 39), and gives up on those that never are.

A round reads the marks of ended transactions, then the half messages from where the last round stopped. One that is not
marked and old enough is put into the half queue again, with one more in TRANSACTION_CHECK_TIMES, and its producer is
asked about the new copy; the old one is marked. So the round moves on, and nothing that is undecided is left behind.
After `transactionCheckMax` questions, or when it is as old as files are kept, a message goes to
TRANS_CHECK_MAX_TIME_TOPIC, where a person can find it.

A message may ask for more time before the first question (CHECK_IMMUNITY_TIME_IN_SECONDS). Those behind it are dealt
with meanwhile, but the place to go on from stays at it, and the marks from there on are kept in memory: about 100 bytes
for each transaction that was begun since.

How far it is stands with the consumers' offsets, under the group CID_RMQ_SYS_TRANS, as in RocketMQ. After a crash those
are a few seconds old, and the copies that were marked meanwhile are passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from penstock.broker.consumers import ClientTable
from penstock.broker.long_polling import HeldPulls
from penstock.broker.offsets import OffsetTable
from penstock.broker.replies import STORED, PutReplies
from penstock.broker.send_acks import PendingAcks
from penstock.broker.settings import SettingsInForce
from penstock.broker.stats import MessageCounters
from penstock.broker.topics import CHECK_MAX_TIME_TOPIC, BrokerTopics
from penstock.errors import BadMessage, PenstockError
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
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.protocol.fields import write
from penstock.protocol.headers.send import CheckTransaction, EndTransaction, ResumeCheck
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.message import Message, PutResult
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")
HALF_QUEUE: Final = 0
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
_DONE_TAG: Final = "d"


def make_half(message: Message) -> Message:
    """The half message that is stored in place of a transactional one. It is not delayed, whatever it says."""
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
    """What says that the half message at an offset of the half queue is dealt with."""
    return Message(OP_HALF_TOPIC, str(half_queue_offset).encode(), tags=_DONE_TAG, queue_id=HALF_QUEUE)


def again(half: Record, times_asked: int) -> Message:
    """A half message once more; its producer has been asked about it so many times."""
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
    """Answers producers that end their transactions."""

    def __init__(self, store: MessageStore, unflushed: PendingAcks, held: HeldPulls, tally: MessageCounters) -> None:
        self._store = store
        self._unflushed = unflushed
        self._held = held
        self._tally = tally
        self._replies = PutReplies(store)
        self._waits_for_disk = unflushed.is_needed
        self.on_end: list[Callable[[int, int], None]] = []
        """Called with the queue offsets of a half message that is ended, and of its mark."""

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.END_TRANSACTION: self._end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume}

    def _end(self, connection: Connection, command: Command) -> Command | None:
        header = command.read(EndTransaction)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return command.reply(ResponseCode.SUCCESS)  # the producer does not know yet; it will be asked
        half = self._half(header)
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            message = _committed(half)
            committed = self._store.append(message)
            if committed.status not in STORED:
                return self._replies.refused(command, committed)
            self._tally.count_sent(message.topic, 1, committed.size)
            self._held.stored(message.topic, message.queue_id)
        marked = self._store.append(done_mark(half.queue_offset))
        if marked.status not in STORED:
            log.warning("a transaction's end is not marked, so its producer will be asked again: %s", marked.reason)
        else:
            for ended in self.on_end:
                ended(half.queue_offset, marked.queue_offset)
        return self._answer(connection, command, marked)

    def _half(self, header: EndTransaction) -> Record:
        """The half message that a request is about. Raises Refusal."""
        half = self._store.look_up(header.commit_log_offset)
        if half is None or half.topic != HALF_TOPIC:
            why = f"there is no half message at offset {header.commit_log_offset}"
        elif half.properties.get(PGROUP) != header.producer_group:
            why = f"the half message is not of producer group '{header.producer_group}'"
        elif half.queue_offset != header.tran_state_table_offset:
            why = f"the half message has queue offset {half.queue_offset}, not {header.tran_state_table_offset}"
        elif not _says_where_to(half):
            why = "the half message does not say where it belongs"
        else:
            return half
        raise Refusal(ResponseCode.SYSTEM_ERROR, why)

    def _resume(self, connection: Connection, command: Command) -> Command | None:
        """Has the producer asked again about a message that was given up, as if for the first time."""
        msg_id = command.read(ResumeCheck).msg_id or ""
        try:
            found = self._store.look_up_id(msg_id)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if found is None or found.topic not in (CHECK_MAX_TIME_TOPIC, HALF_TOPIC) or not _says_where_to(found):
            why = f"there is no message with the id {msg_id[:64]} whose transaction was not ended"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        stored = self._store.append(again(found, times_asked=0))
        if stored.status not in STORED:
            return self._replies.refused(command, stored)
        return self._answer(connection, command, stored)

    def _answer(self, connection: Connection, command: Command, stored: PutResult) -> Command | None:
        if command.flag & ONE_WAY:
            return None
        reply = command.reply(ResponseCode.SUCCESS)
        if self._waits_for_disk and stored.status in STORED:
            self._unflushed.add(connection, stored.end_offset, reply)
            return None
        return reply


def _says_where_to(half: Record) -> bool:
    return bool(half.properties.get(REAL_TOPIC)) and half.properties.get(REAL_QID, "").isdecimal()


def _committed(half: Record) -> Message:
    """The message that consumers get."""
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


GROUP: Final = "CID_RMQ_SYS_TRANS"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_HOUR_MS: Final = 3_600_000
_PAGE: Final = 32


class TransactionCheck:
    """Goes over the half messages now and then."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        offsets: OffsetTable,
        clients: ClientTable,
        settings: SettingsInForce,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._marks: dict[int, int] = {}
        """Of half messages that were not reached yet and are ended: their offset, and that of their mark."""
        self._read_marks = -1
        """Up to which offset marks were read; -1: none yet."""

    def ended(self, half_offset: int, mark_offset: int) -> None:
        """A transaction is ended just now; its mark may not be on disk yet, and so not be seen in its queue."""
        if half_offset >= self._position(HALF_TOPIC):
            self._marks[half_offset] = mark_offset

    async def run(self) -> None:
        """Rounds for ever, `transactionCheckInterval` apart."""
        while True:
            await asyncio.sleep(self._settings.now.transaction_check_interval / 1000)
            try:
                await self.round()
            except PenstockError as error:
                log.warning("half messages wait: %s", error)
            except Exception:
                log.exception("half messages wait")

    async def round(self) -> int:
        """One round; returns how many half messages were dealt with."""
        end = self._store.max_offset(HALF_TOPIC, HALF_QUEUE)
        offset = max(self._position(HALF_TOPIC), self._store.min_offset(HALF_TOPIC, HALF_QUEUE), 0)
        waits_from: int | None = None
        """The first half message that is to be left alone for longer."""
        dealt_with = 0
        while offset < end:
            await asyncio.sleep(0)
            await self._read_all_marks()  # for each page, because transactions end meanwhile
            if all(number in self._marks for number in range(offset, min(offset + _PAGE, end))):
                halves, following = {}, offset + _PAGE
            else:
                page = self._store.get(HALF_TOPIC, HALF_QUEUE, offset, _PAGE)
                halves = {record.queue_offset: record for record in map(decode_record, page.records)}
                following = max(page.next_begin_offset, offset + 1)
            for number in range(offset, min(following, end)):
                half = halves.get(number)
                if half is not None and number not in self._marks:
                    if self._is_immune(half):
                        waits_from = number if waits_from is None else waits_from
                        continue
                    if self._is_too_young(half) or not self._deal_with(half):
                        self._move_to(number if waits_from is None else waits_from)
                        return dealt_with
                    dealt_with += 1
            offset = following
            self._move_to(min(offset, end) if waits_from is None else waits_from)
        return dealt_with

    # -- marks -----------------------------------------------------------------------------------------------

    async def _read_all_marks(self) -> None:
        lowest = max(self._position(OP_HALF_TOPIC), self._store.min_offset(OP_HALF_TOPIC, HALF_QUEUE), 0)
        offset = max(lowest, self._read_marks)
        half_offset = self._position(HALF_TOPIC)
        while offset < self._store.max_offset(OP_HALF_TOPIC, HALF_QUEUE):
            page = self._store.get(OP_HALF_TOPIC, HALF_QUEUE, offset, _PAGE)
            for record in map(decode_record, page.records):
                for number in _offsets_in(record.body):
                    if number >= half_offset:
                        self._marks[number] = record.queue_offset
            offset = max(page.next_begin_offset, offset + 1)
            await asyncio.sleep(0)
        self._read_marks = offset

    def _position(self, topic: str) -> int:
        return max(self._offsets.query(GROUP, topic, HALF_QUEUE), 0)

    def _move_to(self, half_offset: int) -> None:
        """Remembers how far this is; marks are only behind us where no half message before us needs them."""
        for number in range(self._position(HALF_TOPIC), half_offset):
            self._marks.pop(number, None)
        self._offsets.commit(GROUP, HALF_TOPIC, HALF_QUEUE, half_offset)
        needed = min(self._marks.values(), default=self._read_marks)
        self._offsets.commit(GROUP, OP_HALF_TOPIC, HALF_QUEUE, needed)

    # -- half messages ---------------------------------------------------------------------------------------

    def _is_immune(self, half: Record) -> bool:
        """Whether its producer asked that it be left alone for a while, which is not over yet."""
        seconds = half.properties.get(IMMUNITY, "")
        if not (seconds.isascii() and seconds.isdecimal()) or _times_asked(half):
            return False
        return self._clock() - half.store_timestamp < int(seconds[:10]) * 1000

    def _is_too_young(self, half: Record) -> bool:
        """Whether the producer is probably still at it; then so are the producers of all that is behind it."""
        if IMMUNITY in half.properties or _times_asked(half):
            return False
        return self._clock() - half.store_timestamp < self._settings.now.transaction_time_out

    def _deal_with(self, half: Record) -> bool:
        """Asks the producer, or gives up on the message; false if the store takes nothing now."""
        times_asked = _times_asked(half)
        too_old = self._clock() - half.born_timestamp > self._store.settings.file_reserved_time * _HOUR_MS
        if times_asked >= self._settings.now.transaction_check_max or too_old:
            return self._give_up(half)
        stored = self._store.append(again(half, times_asked + 1))
        if not stored.stored:
            log.warning("a half message waits: %s", stored.reason)
            return False
        self._mark(half)
        copy = self._store.look_up(stored.physical_offset)
        if copy is not None:
            self._ask(copy)
        return True

    def _give_up(self, half: Record) -> bool:
        self._topics.create_for_send_back(CHECK_MAX_TIME_TOPIC, 1)
        kept = Message(
            CHECK_MAX_TIME_TOPIC,
            half.body,
            properties=half.properties,
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_timestamp=half.born_timestamp,
            born_host=half.born_host,
            reconsume_times=half.reconsume_times,
        )
        stored = self._store.append(kept)
        if stored.stored:
            log.warning("nobody ended the transaction of %s: it went to %s", half.msg_id, CHECK_MAX_TIME_TOPIC)
            self._mark(half)
        else:
            log.warning("a half message waits: %s", stored.reason)
        return stored.stored

    def _mark(self, half: Record) -> None:
        """If it cannot be stored, the message is dealt with again after a restart, and not before."""
        marked = self._store.append(done_mark(half.queue_offset))
        self._marks[half.queue_offset] = marked.queue_offset if marked.stored else self._read_marks

    def _ask(self, half: Record) -> None:
        group = half.properties.get(PGROUP, "")
        producers = self._clients.producers(group)
        if not producers:
            log.warning("no producer of group '%s' is here to be asked about %s", group, half.msg_id)
            return
        shown = msgspec.structs.replace(
            half, topic=half.properties.get(REAL_TOPIC, ""), queue_id=int(half.properties.get(REAL_QID) or 0)
        )
        header = CheckTransaction(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=half.unique_key or half.msg_id,
            transaction_id=half.unique_key or None,
            offset_msg_id=half.msg_id,
        )
        client = producers[half.queue_offset % len(producers)]
        command = Command(RequestCode.CHECK_TRANSACTION_STATE, write(header), encode_record(shown))
        client.connection.request_oneway(command)


def _times_asked(half: Record) -> int:
    times = half.properties.get(CHECK_TIMES, "")
    return int(times[:10]) if times.isascii() and times.isdecimal() else 0


def _offsets_in(body: bytes) -> Iterator[int]:
    """One offset, or several joined by commas as 5.x writes them."""
    for piece in body.split(b","):
        if piece.strip().isdigit():
            yield int(piece)
