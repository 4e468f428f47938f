"""A queue by its full name, and bodies with tables by queue.

Java writes such a table with the queue itself as key, `{{"brokerName":"a","queueId":0,"topic":"T"}:5}`, which is not
JSON but what its tools read and expect; there is no strict form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.bodies.base import Body


class MessageQueue(msgspec.Struct, frozen=True, order=True, kw_only=True, rename="camel"):
    """One queue of one topic at one broker."""

    broker_name: str
    queue_id: Int32
    topic: str


class OffsetMovedEvent(Body, kw_only=True):
    """The body of a record in OFFSET_MOVED_EVENT: a consumer was sent to another offset than it asked for."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: Int64
    offset_new: Int64


class BodyByQueue(Body, kw_only=True):
    """A body that holds, at any depth, dicts keyed by MessageQueue."""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        return cls._from_loose(data)

    def to_json(self) -> dict[str, Any]:
        return {name: _encodable(value) for name, value in super().to_json().items()}

    @classmethod
    def _adapted(cls, document: Any) -> Any:
        return _with_queues(document)


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


def _with_queues(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_queues(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _with_queues(item) for key, item in value.items()}
    return value


def _key(key: Any) -> Any:
    return msgspec.convert(dict(key), MessageQueue, strict=False) if isinstance(key, tuple) else key
