"""Sends messages that appear only when a transaction of the sender's own has been committed.

    async with TransactionProducer("orders-service", check, "127.0.0.1:9876") as producer:
        await producer.send_in_transaction(Message("orders", b"paid"), book)

The message is stored, hidden, before `book` runs; its outcome is sent to the broker afterwards. Where that does not
arrive, or the outcome is not known, the broker asks some producer of the group later, and `check` must say from what is
in the sender's own database. Belongs to the thread of one event loop.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self, TypeAlias

from penstock.client.config import Namesrv
from penstock.client.message import Message, ReceivedMessage, SendResult
from penstock.client.producer import Producer, ProducerOptions, pack
from penstock.errors import BadMessage, PenstockError
from penstock.format.constants import PGROUP, TRAN_MSG, UNIQ_KEY
from penstock.format.message_id import decode_message_id
from penstock.format.record import decode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers.send import CheckTransaction, EndTransaction
from penstock.remoting.connection import Connection

log = logging.getLogger("penstock.client")


class TransactionState(IntEnum):
    """How a transaction of the sender stands."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE
    """The broker will ask."""


LocalTransaction: TypeAlias = Callable[[Message], "Awaitable[TransactionState] | TransactionState"]
"""Does the sender's own part, after the message is stored."""
TransactionCheck: TypeAlias = Callable[[ReceivedMessage], "Awaitable[TransactionState] | TransactionState"]
"""Says how the transaction of a message stands."""

_UNANSWERED: Final = frozenset({TransactionState.UNKNOWN})
"""A broker does not answer these."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """A hidden message, and what became of its transaction."""

    sent: SendResult
    state: TransactionState
    is_ended: bool
    """Whether the broker has confirmed the outcome; if not, it will ask."""


class TransactionProducer(Producer):
    """A producer that can also send in transactions."""

    def __init__(
        self,
        group: str,
        check: TransactionCheck,
        namesrv: Namesrv = None,
        *,
        options: ProducerOptions | None = None,
    ) -> None:
        """`check` is called on the loop's thread for transactions of any producer of the group."""
        super().__init__(group, namesrv, options=options)
        self._check = check
        self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._checked

    async def start(self) -> Self:
        """Tells all brokers that this producer is here: they may have transactions of its group to ask about."""
        await super().start()
        self._instance.every(self._instance.config.route_refresh_s, self._meet_brokers)
        try:
            await self._meet_brokers()
        except PenstockError as error:
            log.warning("no broker can ask this producer about transactions yet: %s", error)
        return self

    async def _meet_brokers(self) -> None:
        await self._instance.routes.learn_brokers()
        await self._instance.beat()

    async def send_in_transaction(
        self, message: Message, local: LocalTransaction, *, timeout_s: float | None = None
    ) -> TransactionResult:
        """Stores the message hidden, runs `local`, and has the message appear or vanish as it says.

        An error in `local` leaves the transaction open for the check, and is raised.
        """
        if message.delay_level > 0:
            raise BadMessage("a message in a transaction cannot have a delay")
        half = {TRAN_MSG: "true", PGROUP: self.group}
        outgoing = pack(message, self._packing, extra=half, sys_flag=TRANSACTION_PREPARED)
        (sent,) = await self._deliver(outgoing, None, timeout_s)
        if not sent.ok:  # not as safe as it should be, so it must not count
            return TransactionResult(sent, TransactionState.ROLLBACK, await self._end(sent, TransactionState.ROLLBACK))
        try:
            state = await _state_of(local(message))
        except Exception:
            await self._end(sent, TransactionState.UNKNOWN)
            raise
        return TransactionResult(sent, state, await self._end(sent, state))

    async def _end(self, sent: SendResult, state: TransactionState) -> bool:
        header = self._header(sent.offset_msg_id, sent.queue_offset, sent.msg_id, sent.queue.topic, state)
        try:
            address = (await self._route(sent.queue.topic)).masters[sent.queue.broker_name]
            if state in _UNANSWERED:
                await self._instance.tell(address, RequestCode.END_TRANSACTION, header)
                return False
            await self._instance.ask(address, RequestCode.END_TRANSACTION, header)
            return True
        except (PenstockError, KeyError) as error:
            log.warning("the broker does not know yet that transaction %s ended: %s", sent.msg_id, error)
            return False

    def _header(
        self, offset_msg_id: str, queue_offset: int, msg_id: str, topic: str, state: TransactionState
    ) -> EndTransaction:
        _, physical_offset = decode_message_id(offset_msg_id)
        return EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=state.value,
            msg_id=msg_id,
            transaction_id=msg_id,
            topic=topic,
        )

    async def _checked(self, connection: Connection, command: Command) -> None:
        """A broker asks; the answer is a request of its own."""
        asked = command.read(CheckTransaction)
        message = ReceivedMessage(decode_record(command.body), "")
        try:
            state = await _state_of(self._check(message))
        except Exception:
            log.warning("the check of %r failed; the broker will ask again", message, exc_info=True)
            state = TransactionState.UNKNOWN
        header = EndTransaction(
            producer_group=message.properties.get(PGROUP, self.group),
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=message.properties.get(UNIQ_KEY) or asked.msg_id or "",
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=message.topic,
        )
        self._instance.tell_over(connection, RequestCode.END_TRANSACTION, header)


async def _state_of(result: Awaitable[TransactionState] | TransactionState) -> TransactionState:
    return await result if inspect.isawaitable(result) else result
