"""Pulling: codes 11 and 361."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
CLASS_FILTER: Final = 8
LITE_PULL: Final = 16


class PullMessage(Request, kw_only=True):
    """The bits of `sys_flag` say which of the other fields count."""

    codes: ClassVar[Codes] = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None


class PullMessageReply(Reply, kw_only=True):
    """All four are in every answer, found or not."""

    codes: ClassVar[Codes] = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    offset_delta: Int64 | None = None
