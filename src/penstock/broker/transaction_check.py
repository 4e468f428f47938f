"""Asks producers about half messages that nobody has ended (code 39), and gives up on those that never are.

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

from penstock.broker.client_table import ClientTable
from penstock.broker.offset_table import OffsetTable
from penstock.broker.settings import SettingsInForce
from penstock.broker.system_topics import CHECK_MAX_TIME_TOPIC
from penstock.broker.topic_table import TopicTable
from penstock.broker.transactions import CHECK_TIMES, HALF_QUEUE, again, done_mark
from penstock.errors import PenstockError
from penstock.format.constants import HALF_TOPIC, OP_HALF_TOPIC, PGROUP, REAL_QID, REAL_TOPIC
from penstock.format.record import Record, decode_record, encode_record
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.fields import write
from penstock.protocol.headers.transactions import CheckTransaction
from penstock.store.message import Message
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

GROUP: Final = "CID_RMQ_SYS_TRANS"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_HOUR_MS: Final = 3_600_000
_PAGE: Final = 32


class TransactionCheck:
    """Goes over the half messages now and then."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
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
