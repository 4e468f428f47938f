"""Arguments of sends, of request-reply messages and of transactions.

The number in a docstring is the request code. The V2 codes (310, 320, 325) carry the same fields as the V1 codes under
one-letter names. `SendMessageV2` therefore has the attributes of `SendMessage`, and the code that stores a message
handles both alike.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request

MAX_IDS: Final = 1_032_192
"""Limit of the message ids in the reply to a batch, in bytes. It leaves 16 KiB of a header for all else."""


def batch_limit(id_length: int) -> int:
    """Returns how many messages a batch may have: their ids, of `id_length` characters, fit into the reply's header."""
    return MAX_IDS // (id_length + len(","))


class _Message(Request, kw_only=True):
    """The fields of every sent message. A negative `queue_id` lets the broker choose a queue."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False


class SendMessage(_Message, kw_only=True):
    """Requests 10 and 324. The field `batch`, not the request code, says that the body is a batch."""

    codes: ClassVar[Codes] = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

    batch: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None


class SendMessageV2(SendMessage, kw_only=True):
    """Requests 310, 320 and 325."""

    codes: ClassVar[Codes] = (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str = msgspec.field(default="", name="i")
    reconsume_times: Int32 = msgspec.field(default=0, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")


class PushReply(_Message, kw_only=True):
    """Request 326, from broker to client: the reply message for a waiting producer. The hosts are texts `ip:port`."""

    codes: ClassVar[Codes] = (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,)

    born_host: str
    store_host: str
    store_timestamp: Int64


class SendMessageReply(Reply, kw_only=True):
    """Reply to a send. A batch has the offset ids of all messages in `msg_id`, joined by commas.

    `queue_offset` is that of the first message.
    """

    codes: ClassVar[Codes] = (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: bool | None = msgspec.field(default=None, name="TRACE_ON")


class EndTransaction(Request, kw_only=True):
    """Request 37. `commit_or_rollback` has the transaction bits of sysFlag: 8 commit, 12 rollback, 0 unknown."""

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
    """Request 39, from broker to client: asks for the state of a transaction. The half message is the body."""

    codes: ClassVar[Codes] = (RequestCode.CHECK_TRANSACTION_STATE,)

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class ResumeCheck(Request, kw_only=True):
    """Request 323: restarts the checks of a half message."""

    codes: ClassVar[Codes] = (RequestCode.RESUME_CHECK_HALF_MESSAGE,)

    msg_id: str | None = None
