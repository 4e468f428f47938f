"""Arguments of pulls, of queries by key and by id, and of requests for the units of a consume queue.

The number in a docstring is the request code. Timestamps are in epoch ms.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
CLASS_FILTER: Final = 8
LITE_PULL: Final = 16


class PullMessage(Request, kw_only=True):
    """Requests 11 and 361. The bits of `sys_flag`, the constants above, say which other fields apply."""

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
    """Reply to 11 and 361. Every reply has the first four fields, with or without messages."""

    codes: ClassVar[Codes] = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    offset_delta: Int64 | None = None


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class QueryMessage(Request, kw_only=True):
    """Request 12. If `unique_key` is true, `key` is a message's unique id (UNIQ_KEY)."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_MESSAGE,)

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool = msgspec.field(default=False, name=UNIQUE_KEY_QUERY)


class QueryMessageReply(Reply, kw_only=True):
    """Reply to 12: the store time and physical offset of the newest indexed message."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_MESSAGE,)

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessage(Request, kw_only=True):
    """Request 33. `offset` is the physical offset from the message id."""

    codes: ClassVar[Codes] = (RequestCode.VIEW_MESSAGE_BY_ID,)

    offset: Int64
    topic: str | None = None


class QueryConsumeQueue(Request, kw_only=True):
    """Request 321. `index` is the first queue offset to show, `count` the number of units."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_CONSUME_QUEUE,)

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
