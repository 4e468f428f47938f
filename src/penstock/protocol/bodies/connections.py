"""Who is connected: 203, 204, 328."""

from __future__ import annotations

import msgspec

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from penstock.protocol.subscription import SubscriptionData


class Connection(Body, kw_only=True):
    """One client. `language` is the name that its frames carry."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(Body, kw_only=True):
    """203: a group's clients, and what the group subscribes to, by topic."""

    connection_set: list[Connection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class ProducerConnection(Body, kw_only=True):
    """204."""

    connection_set: list[Connection] = []


class ProducerInfo(Body, kw_only=True):
    """One producer in 328."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTableInfo(Body, kw_only=True):
    """328: producers by group."""

    data: dict[str, list[ProducerInfo]] = {}
