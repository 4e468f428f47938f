"""Arguments about offsets: of queues, of consumer groups, and the reset and clone of a group's offsets.

The number in a docstring is the request code. Timestamps are in epoch ms.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request


class _Queue(Request, kw_only=True):
    topic: str
    queue_id: Int32


class GetMaxOffset(_Queue, kw_only=True):
    """Request 30."""

    codes: ClassVar[Codes] = (RequestCode.GET_MAX_OFFSET,)

    committed: bool = True


class GetMinOffset(_Queue, kw_only=True):
    """Request 31."""

    codes: ClassVar[Codes] = (RequestCode.GET_MIN_OFFSET,)


class GetEarliestTime(_Queue, kw_only=True):
    """Request 32."""

    codes: ClassVar[Codes] = (RequestCode.GET_EARLIEST_MSG_STORETIME,)


class SearchOffset(_Queue, kw_only=True):
    """Request 29. `boundary_type` is `lower` or `upper`."""

    codes: ClassVar[Codes] = (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,)

    timestamp: Int64
    boundary_type: str | None = None


class QueryConsumerOffset(_Queue, kw_only=True):
    """Request 14."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_CONSUMER_OFFSET,)

    consumer_group: str
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(_Queue, kw_only=True):
    """Request 15. The broker must not store a negative `commit_offset`."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_CONSUMER_OFFSET,)

    consumer_group: str
    commit_offset: Int64


class OffsetReply(Reply, kw_only=True):
    """Reply to 14, 29, 30 and 31: an offset in a queue."""

    codes: ClassVar[Codes] = (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.QUERY_CONSUMER_OFFSET,
    )

    offset: Int64


class EarliestTimeReply(Reply, kw_only=True):
    """Reply to 32: the store time of a queue's oldest message."""

    codes: ClassVar[Codes] = (RequestCode.GET_EARLIEST_MSG_STORETIME,)

    timestamp: Int64


class ResetOffset(Request, kw_only=True):
    """Request 222; also 220, which the broker sends to clients.

    `timestamp` -1 means the end of the queue. Without `is_force`, offsets only decrease. A single queue with `queue_id`
    and `offset` resets to that offset.
    """

    codes: ClassVar[Codes] = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatus(Request, kw_only=True):
    """Request 223; also 221, which the broker sends to a client. `client_addr` is a client id; empty means all."""

    codes: ClassVar[Codes] = (
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    )

    topic: str
    group: str
    client_addr: str | None = None


class QueryConsumeTimeSpan(Request, kw_only=True):
    """Request 303."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_CONSUME_TIME_SPAN,)

    topic: str
    group: str


class CloneGroupOffset(Request, kw_only=True):
    """Request 314. Without a topic, the offsets in all topics are copied."""

    codes: ClassVar[Codes] = (RequestCode.CLONE_GROUP_OFFSET,)

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffset(Request, kw_only=True):
    """Request 308. `filter_groups` lists the groups to leave out, separated by commas."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_CORRECTION_OFFSET,)

    compare_group: str
    topic: str
    filter_groups: str | None = None
