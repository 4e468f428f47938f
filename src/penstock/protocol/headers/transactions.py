"""Transactions: 37 ends one, 39 asks the producer how it stands."""

from __future__ import annotations

from typing import ClassVar

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Request


class EndTransaction(Request, kw_only=True):
    """37. `commit_or_rollback` holds a sysFlag's transaction bits: 8 commit, 12 rollback, 0 not known."""

    codes: ClassVar[Codes] = (RequestCode.END_TRANSACTION,)

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransaction(Request, kw_only=True):
    """39, broker to client; the half message is the body."""

    codes: ClassVar[Codes] = (RequestCode.CHECK_TRANSACTION_STATE,)

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class ResumeCheck(Request, kw_only=True):
    """323."""

    codes: ClassVar[Codes] = (RequestCode.RESUME_CHECK_HALF_MESSAGE,)

    msg_id: str | None = None
