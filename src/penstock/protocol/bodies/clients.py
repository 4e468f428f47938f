"""Bodies about clients: heartbeats, subscription checks, connections and the state of consumers.

A number in a docstring is a request code. A heartbeat lists a client's producer and consumer groups and its
subscriptions. Clients send enumerations by name or by ordinal, and may omit sets. Missing parts of a subscription are
derived from its expression. The bodies of the replies to 307 and 309 come from clients; a broker only relays them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import BodyByQueue, MessageQueue
from penstock.protocol.subscription import SubscriptionData


class ConsumeType(StrEnum):
    """How a consumer gets messages. The members are in the order of Java's ordinals."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the clients of a group share the messages. The members are in the order of Java's ordinals."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets starts. The members are in the order of Java's ordinals; 1 to 3 are obsolete."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ProducerData(Body, kw_only=True):
    """A producer group in a heartbeat."""

    group_name: str


class ConsumerData(Body, kw_only=True):
    """A consumer group in a heartbeat."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Body, kw_only=True):
    """Request 34. The last two fields belong to the heartbeat V2 of 5.x."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = None

    @classmethod
    def _normalized(cls, document: Any) -> Any:
        consumers = document.get("consumerDataSet") if isinstance(document, dict) else None
        for consumer in consumers if isinstance(consumers, list) else ():
            if isinstance(consumer, dict):
                for field, names in _ENUMERATIONS.items():
                    if field in consumer:
                        consumer[field] = _name(consumer[field], list(names))
        return document


class CheckClientRequestBody(Body, kw_only=True):
    """Request 46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


_ENUMERATIONS: dict[str, type[StrEnum]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}


def _name(value: Any, names: list[StrEnum]) -> Any:
    """Returns the name for an ordinal. Returns any other value unchanged, for `msgspec.convert` to check."""
    ordinals = {str(ordinal): name.value for ordinal, name in enumerate(names)}
    return ordinals.get(str(value), value) if isinstance(value, int | str) else value


class ClientConnection(Body, kw_only=True):
    """One client in the replies to 203 and 204. `language` is the language's name in the client's frames."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(Body, kw_only=True):
    """Reply to 203: a group's consumers, and its subscriptions by topic."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class ProducerConnection(Body, kw_only=True):
    """Reply to 204: a group's producers."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body, kw_only=True):
    """One producer in the reply to 328."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTableInfo(Body, kw_only=True):
    """Reply to 328: producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class CMResult(StrEnum):
    """The result of consuming a message, in the reply to 309."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """Reply to 309."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0


class ProcessQueueInfo(Body, kw_only=True):
    """A client's prefetched messages of one queue, in the reply to 307."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class ConsumeStatus(Body, kw_only=True):
    """Consumption rates of one topic, in the reply to 307."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(BodyByQueue, kw_only=True):
    """Reply to 307: the state of one consumer."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None
