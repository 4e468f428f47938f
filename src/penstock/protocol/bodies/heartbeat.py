"""Heartbeats (34): which groups a client produces and consumes for, and what it subscribes to.

Clients write the enumerations as names or as ordinals and leave sets out; subscriptions get what they lack from their
expression. 46 asks about one subscription.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from penstock.format.java_ints import Int32
from penstock.protocol.bodies.base import Body
from penstock.protocol.subscription import SubscriptionData


class ConsumeType(StrEnum):
    """Whether a consumer pulls by itself; in the order of Java's ordinals."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each client gets every message; in the order of Java's ordinals."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without progress starts; in the order of Java's ordinals, 1 to 3 out of use."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ProducerData(Body, kw_only=True):
    """A producer group of the client."""

    group_name: str


class ConsumerData(Body, kw_only=True):
    """A consumer group of the client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Body, kw_only=True):
    """34. The last two fields are 5.x's heartbeat V2."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = None

    @classmethod
    def _adapted(cls, document: Any) -> Any:
        consumers = document.get("consumerDataSet") if isinstance(document, dict) else None
        for consumer in consumers if isinstance(consumers, list) else ():
            if isinstance(consumer, dict):
                for field, names in _ENUMERATIONS.items():
                    if field in consumer:
                        consumer[field] = _name(consumer[field], list(names))
        return document


class CheckClientRequestBody(Body, kw_only=True):
    """46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


_ENUMERATIONS: dict[str, type[StrEnum]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}


def _name(value: Any, names: list[StrEnum]) -> Any:
    """The name for an ordinal; anything else is left for `convert` to judge."""
    ordinals = {str(ordinal): name.value for ordinal, name in enumerate(names)}
    return ordinals.get(str(value), value) if isinstance(value, int | str) else value
