"""Queries: by key (12), by id (33), and a look at a queue's units (321)."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class QueryMessage(Request, kw_only=True):
    """12. `unique_key` says that `key` is a client's own id."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_MESSAGE,)

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool = msgspec.field(default=False, name=UNIQUE_KEY_QUERY)


class QueryMessageReply(Reply, kw_only=True):
    """How far the index reaches."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_MESSAGE,)

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessage(Request, kw_only=True):
    """33. `offset` is the physical offset that the client took from the id."""

    codes: ClassVar[Codes] = (RequestCode.VIEW_MESSAGE_BY_ID,)

    offset: Int64
    topic: str | None = None


class QueryConsumeQueue(Request, kw_only=True):
    """321. `index` is the first queue offset wanted."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_CONSUME_QUEUE,)

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
