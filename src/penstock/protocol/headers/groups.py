"""Arguments about clients and consumer groups: membership, send-back, connections, and requests to one client.

The number in a docstring is the request code.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Request


class UnregisterClient(Request, kw_only=True):
    """Request 35."""

    codes: ClassVar[Codes] = (RequestCode.UNREGISTER_CLIENT,)

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupRequest(Request, kw_only=True):
    """Requests 38 and 203; also 40, which the broker sends to a client."""

    codes: ClassVar[Codes] = (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
    )

    consumer_group: str


class ProducerGroup(Request, kw_only=True):
    """Request 204."""

    codes: ClassVar[Codes] = (RequestCode.GET_PRODUCER_CONNECTION_LIST,)

    producer_group: str


class SendBack(Request, kw_only=True):
    """Request 36. `offset` is the physical offset of the message to retry."""

    codes: ClassVar[Codes] = (RequestCode.CONSUMER_SEND_MSG_BACK,)

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class GetConsumeStats(Request, kw_only=True):
    """Request 208. A missing or empty topic means all topics. `topic_list` is separated by `;`."""

    codes: ClassVar[Codes] = (RequestCode.GET_CONSUME_STATS,)

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class DeleteGroup(Request, kw_only=True):
    """Request 207. `clean_offset` is the name in 5.x of 4.9's `removeOffset`."""

    codes: ClassVar[Codes] = (RequestCode.DELETE_SUBSCRIPTIONGROUP,)

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class GroupName(Request, kw_only=True):
    """Requests 343 and 352."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_TOPICS_BY_CONSUMER, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)

    group: str


class QuerySubscription(Request, kw_only=True):
    """Request 345."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,)

    group: str
    topic: str


class GetConsumerRunningInfo(Request, kw_only=True):
    """Request 307, which the broker relays to the named client."""

    codes: ClassVar[Codes] = (RequestCode.GET_CONSUMER_RUNNING_INFO,)

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(Request, kw_only=True):
    """Request 309, which the broker relays to a client with the record as the body."""

    codes: ClassVar[Codes] = (RequestCode.CONSUME_MESSAGE_DIRECTLY,)

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
