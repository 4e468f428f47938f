"""Topics of a broker: create, change, delete, ask."""

from __future__ import annotations

from typing import ClassVar

from penstock.format.java_ints import Int32
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Request


class CreateTopic(Request, kw_only=True):
    """17. `attributes` is 5.x's `+message.type=FIFO`."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 = 0
    attributes: str | None = None
    force: bool | None = None


class TopicName(Request, kw_only=True):
    """202, 215, 300, 351."""

    codes: ClassVar[Codes] = (
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_TOPIC_CONFIG,
    )

    topic: str
