"""Transactions: a half message waits out of sight until its producer says commit or rollback (code 37).

Half messages lie in RMQ_SYS_TRANS_HALF_TOPIC, with the topic and queue that they are meant for in REAL_TOPIC and
REAL_QID. A commit puts the message where it belongs; commit and rollback both put a mark into
RMQ_SYS_TRANS_OP_HALF_TOPIC, which says that this half message is dealt with. The message comes first and the mark
second: a crash in between has the producer asked again, and at worst the message is there twice; it is never lost.

An administrator may have a message that was given up asked about anew (code 323).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.flow import UnflushedSends
from penstock.broker.hold import HeldPulls
from penstock.broker.put_reply import STORED, PutReplies
from penstock.broker.system_topics import CHECK_MAX_TIME_TOPIC
from penstock.broker.tally import Tally
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
from penstock.format.record import Record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.protocol.headers.transactions import EndTransaction, ResumeCheck
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.message import Message
from penstock.store.status import PutResult
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

    def __init__(self, store: MessageStore, unflushed: UnflushedSends, held: HeldPulls, tally: Tally) -> None:
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
