"""Bodies with queues: tables keyed by queue, units of a consume queue, a subscription, queue locks.

A number in a docstring is a request code. Java writes a table keyed by queue with the object itself as key:
`{{"brokerName":"a","queueId":0,"topic":"T"}:5}`. This is not JSON, but RocketMQ's tools write and expect exactly this
form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.format.msgspec_warm_up import prepared
from penstock.protocol.bodies.base import SHAPE_ERRORS, Body
from penstock.protocol.subscription import SubscriptionData

_QUEUE: Final = re.compile(rb'\{"brokerName":"([^"\\]*)","queueId":(\d{1,9}),"topic":"([^"\\]*)"\}:')
"""Matches a queue as a key, in Java's form. It never matches inside a text, because quotes are escaped there."""
_AS_TEXT: Final = rb'"\1\\u0001\2\\u0001\3":'


class MessageQueue(msgspec.Struct, frozen=True, order=True, kw_only=True, rename="camel"):
    """A queue of a topic at a broker."""

    broker_name: str
    queue_id: Int32
    topic: str


class OffsetMovedEvent(Body, kw_only=True):
    """The body of a message in topic OFFSET_MOVED_EVENT: a consumer was sent from the requested offset to another."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: Int64
    offset_new: Int64


class BodyByQueue(Body, kw_only=True):
    """A body that contains dicts keyed by MessageQueue, at any depth."""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        return cls._from_strict(bytes(data)) or cls._from_loose(data)

    @classmethod
    def _from_strict(cls, data: bytes) -> Self | None:
        """Parses the body fast, after it has turned queue keys into texts; returns None if that fails.

        The result of the change is strict JSON, which parses ten times faster.
        """
        if b"null" in data or b"\\u" in data:
            return None
        try:
            document = msgspec.json.decode(_QUEUE.sub(_AS_TEXT, data))
            return msgspec.convert(_with_queues(document, _queue_from_text), prepared(cls), strict=False)
        except SHAPE_ERRORS:
            return None

    def to_json(self) -> dict[str, Any]:
        return {name: _encodable(value) for name, value in super().to_json().items()}

    @classmethod
    def _normalized(cls, document: Any) -> Any:
        return _with_queues(document, _queue_from_pairs)


def _encodable(value: Any) -> Any:
    if isinstance(value, BodyByQueue):
        return value.to_json()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, Mapping):
        if any(isinstance(key, MessageQueue) for key in value):
            return _table(value)
        return {key: _encodable(item) for key, item in value.items()}
    return value


def _table(table: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    pairs = (msgspec.json.encode(queue) + b":" + msgspec.json.encode(value) for queue, value in table.items())
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def _with_queues(value: Any, key_of: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_with_queues(item, key_of) for item in value]
    if isinstance(value, dict):
        return {key_of(key): _with_queues(item, key_of) for key, item in value.items()}
    return value


def _queue_from_pairs(key: Any) -> Any:
    return msgspec.convert(dict(key), prepared(MessageQueue), strict=False) if isinstance(key, tuple) else key


def _queue_from_text(key: str) -> Any:
    if "\x01" not in key:
        return key
    broker_name, queue_id, topic = key.split("\x01")
    return MessageQueue(broker_name=broker_name, queue_id=int(queue_id), topic=topic)


class ConsumeQueueData(Body, kw_only=True, omit_defaults=True):
    """One unit. `eval` says whether the group's filter accepts the message; `msg` describes a problem, if any."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """Reply to 321: units of a consume queue."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = []
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


class QuerySubscriptionResponseBody(Body, kw_only=True):
    """Reply to 345, a request of 5.x: a group's subscription to a topic."""

    subscription_data: SubscriptionData | None = None
    group: str
    topic: str


class LockBatchRequestBody(Body, kw_only=True):
    """Requests 41 and 42: the queues to lock or unlock."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    """Reply to 41: the queues that the client has locked."""

    locked: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")
