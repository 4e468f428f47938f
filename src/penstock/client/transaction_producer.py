"""The transaction producer: consumers see its messages only after the sender's local transaction has committed.

    async with TransactionProducer("orders-service", check, "127.0.0.1:9876") as producer:
        await producer.send_in_transaction(Message("orders", b"paid"), book)

The broker first stores a half message, which consumers do not see. Then `book` runs the local transaction, and the
producer sends its outcome to the broker. If the outcome is unknown or does not arrive, the broker later asks any
producer of the group. That producer calls `check`, which must answer from the sender's own database. The producer is
not thread-safe: use it from its event loop's thread only.
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
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.send_requests import pack
from penstock.errors import BadMessage, BadSettings, PenstockError
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
    """The state of a local transaction."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE
    """Not known yet: the broker will check later."""


LocalTransaction: TypeAlias = Callable[[Message], "Awaitable[TransactionState] | TransactionState"]
"""Runs the local transaction and returns its state. It is called after the half message is stored."""
TransactionCheck: TypeAlias = Callable[[ReceivedMessage], "Awaitable[TransactionState] | TransactionState"]
"""Returns the state of the local transaction of a half message."""

_UNANSWERED: Final = frozenset({TransactionState.UNKNOWN})
"""The broker does not reply to END_TRANSACTION with these states, so the request is oneway."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a send in a transaction: the stored half message, and the transaction's state."""

    sent: SendResult
    state: TransactionState
    is_ended: bool
    """Whether the broker has confirmed the state. If not, the broker will check later."""


class TransactionProducer(Producer):
    """A producer that can also send messages in transactions."""

    def __init__(
        self,
        group: str,
        check: TransactionCheck,
        namesrv: Namesrv = None,
        *,
        options: ProducerOptions | None = None,
    ) -> None:
        """`check` is called on the event loop's thread, also for transactions of the group's other producers."""
        super().__init__(group, namesrv, options=options)
        self._check = check
        self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._handle_check

    async def start(self) -> Self:
        """Registers with all brokers, because each may check open transactions of the group."""
        await super().start()
        self._instance.run_every(self._instance.config.route_refresh_s, self._register)
        try:
            await self._register()
        except PenstockError as error:
            log.warning("not registered for transaction checks yet: %s", error)
        return self

    async def _register(self) -> None:
        await self._instance.routes.load_brokers()
        await self._instance.send_heartbeats()

    async def send_in_transaction(
        self, message: Message, local: LocalTransaction, *, timeout_s: float | None = None
    ) -> TransactionResult:
        """Stores a half message, runs `local`, and commits or rolls back the message by the state that `local` returns.

        If flush or replication of the half message did not finish in time, `local` is not called and the message is
        rolled back. If `local` raises, its exception is raised here and the transaction stays open for a later check.
        """
        if message.is_delayed:
            raise BadMessage("a message in a transaction cannot have a delay")
        half = {TRAN_MSG: "true", PGROUP: self.group}
        outgoing = pack(message, self._packing, extra=half, sys_flag=TRANSACTION_PREPARED)
        (sent,) = await self._deliver(outgoing, None, timeout_s)
        if not sent.ok:  # flush or replication did not finish in time
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
            address = (await self._sender.route(sent.queue.topic)).masters[sent.queue.broker_name]
            if state in _UNANSWERED:
                await self._instance.request_oneway(address, RequestCode.END_TRANSACTION, header)
                return False
            await self._instance.request(address, RequestCode.END_TRANSACTION, header)
            return True
        except (PenstockError, KeyError) as error:
            log.warning("the outcome of transaction %s is not at the broker yet: %s", sent.msg_id, error)
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

    async def _handle_check(self, connection: Connection, command: Command) -> None:
        """Handles a broker's check. The answer is an END_TRANSACTION request, because the check has no reply."""
        check = command.read(CheckTransaction)
        message = ReceivedMessage(decode_record(command.body), "")
        try:
            state = await _state_of(self._check(message))
        except Exception:
            log.warning("the check of %r failed; the broker will check again", message, exc_info=True)
            state = TransactionState.UNKNOWN
        header = EndTransaction(
            producer_group=message.properties.get(PGROUP, self.group),
            tran_state_table_offset=check.tran_state_table_offset,
            commit_log_offset=check.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=message.properties.get(UNIQ_KEY) or check.msg_id or "",
            from_transaction_check=True,
            transaction_id=check.transaction_id,
            topic=message.topic,
        )
        self._instance.request_oneway_over(connection, RequestCode.END_TRANSACTION, header)


async def _state_of(result: Awaitable[TransactionState] | TransactionState) -> TransactionState:
    """Returns the state that the program answered. Raises BadSettings if it answered something else, such as None."""
    state = await result if inspect.isawaitable(result) else result
    if not isinstance(state, TransactionState):
        raise BadSettings(f"the state of a transaction must be a TransactionState, not {state!r}; it stays open")
    return state
