"""Arguments of name server requests: routes, KV configuration, broker registration.

The number in a docstring is the request code.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request


class GetRoute(Request, kw_only=True):
    """Request 105."""

    codes: ClassVar[Codes] = (RequestCode.GET_ROUTEINFO_BY_TOPIC,)

    topic: str
    accept_standard_json_only: bool | None = None


class GetTopicsByCluster(Request, kw_only=True):
    """Request 224."""

    codes: ClassVar[Codes] = (RequestCode.GET_TOPICS_BY_CLUSTER,)

    cluster: str


class DeleteTopicRoute(Request, kw_only=True):
    """Request 216. Without a cluster name, the topic is deleted in all clusters."""

    codes: ClassVar[Codes] = (RequestCode.DELETE_TOPIC_IN_NAMESRV,)

    topic: str
    cluster_name: str | None = None


class PutKv(Request, kw_only=True):
    """Request 100."""

    codes: ClassVar[Codes] = (RequestCode.PUT_KV_CONFIG,)

    namespace: str
    key: str
    value: str


class KvKey(Request, kw_only=True):
    """Requests 101 and 102."""

    codes: ClassVar[Codes] = (RequestCode.GET_KV_CONFIG, RequestCode.DELETE_KV_CONFIG)

    namespace: str
    key: str


class KvReply(Reply, kw_only=True):
    """Reply to 101: the value of a key."""

    codes: ClassVar[Codes] = (RequestCode.GET_KV_CONFIG,)

    value: str | None = None


class KvNamespace(Request, kw_only=True):
    """Request 219."""

    codes: ClassVar[Codes] = (RequestCode.GET_KVLIST_BY_NAMESPACE,)

    namespace: str


class BrokerName(Request, kw_only=True):
    """Requests 205 and 327."""

    codes: ClassVar[Codes] = (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)

    broker_name: str


class WipeReply(Reply, kw_only=True):
    """Reply to 205: the number of topics that lost write permission."""

    codes: ClassVar[Codes] = (RequestCode.WIPE_WRITE_PERM_OF_BROKER,)

    wipe_topic_count: Int32


class AddReply(Reply, kw_only=True):
    """Reply to 327: the number of topics that got write permission."""

    codes: ClassVar[Codes] = (RequestCode.ADD_WRITE_PERM_OF_BROKER,)

    add_topic_count: Int32


class BrokerIdentity(Request, kw_only=True):
    """Requests 104 and 322: the broker that sends the request."""

    codes: ClassVar[Codes] = (RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION)

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBroker(BrokerIdentity, kw_only=True):
    """Request 103. `compressed` means a zlib body. `body_crc32` covers the body as sent; 0 means not computed."""

    codes: ClassVar[Codes] = (RequestCode.REGISTER_BROKER,)

    ha_server_addr: str
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerReply(Reply, kw_only=True):
    """Reply to 103: the HA address and the client address of a slave's master."""

    codes: ClassVar[Codes] = (RequestCode.REGISTER_BROKER,)

    ha_server_addr: str | None = None
    master_addr: str | None = None


class DataVersionReply(Reply, kw_only=True):
    """Reply to 322: whether the name server has another data version than the broker."""

    codes: ClassVar[Codes] = (RequestCode.QUERY_DATA_VERSION,)

    changed: bool
