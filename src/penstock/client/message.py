"""The values of the client API: messages to send, received messages, and the results of sends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import BadMessage, CorruptData
from penstock.format import kernels
from penstock.format.constants import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    RETRY_PREFIX,
    RETRY_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
)
from penstock.format.properties import check_property
from penstock.format.record import Record, decode_record
from penstock.format.topics import check_topic
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.compression import MAX_SIZE, inflate_body

SHARDING_KEY: Final = "__SHARDINGKEY"
MAX_DELAY_LEVEL: Final = 18
"""The highest level of RocketMQ's default delays."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. The constructor raises BadMessage if an argument is invalid.

    `body` is bytes; write `text.encode()` for text, `json.dumps(value).encode()` for anything else. `keys` are for
    searching; a string with spaces holds several keys. `tags` are for consumers' filters; one tag per message is usual.
    `properties` are user properties; a field such as `tags` overrides the property that it is stored as. Messages with
    the same `sharding_key` go to the same queue and stay in order. `delay_level` 1 to 18 delays delivery by 1s 5s 10s
    30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, unless the broker is configured otherwise (levels beyond 18, where
    a broker has them, are set by the property DELAY). With `wait=False`, a broker with synchronous flush replies before
    the flush.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str = ""
    delay_level: int = 0
    flag: int = 0
    wait: bool = True

    def __post_init__(self) -> None:
        if type(self.topic) is str:
            _check_topic_once(self.topic)
        else:
            check_topic(self.topic)
        if type(self.body) is not bytes:
            object.__setattr__(self, "body", _bytes_of(self.body))
        are_texts = type(self.tags) is str and type(self.sharding_key) is str
        if self.keys or self.properties or self.delay_level or self.flag or not are_texts:
            self._check_types()
        if not self.is_bare:
            for name, value in self.all_properties().items():
                check_property(name, value)

    def _check_types(self) -> None:
        """Raises BadMessage if an argument other than topic, body and the properties' values has a wrong type."""
        for name in ("tags", "sharding_key"):
            if not isinstance(getattr(self, name), str):
                raise BadMessage(f"`{name}` must be text, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.keys, str) and not all(isinstance(key, str) for key in self.keys):
            raise BadMessage(f"`keys` must be texts; found {self.keys!r}; use str(...)")
        if not isinstance(self.properties, Mapping):
            raise BadMessage(f"`properties` must map names to texts, not be {type(self.properties).__name__}")
        check_delay_level(self.delay_level)
        if type(self.flag) is not int or not -(2**31) <= self.flag < 2**31:
            raise BadMessage(f"`flag` must be an integer of 32 bits, not {self.flag!r}")

    @property
    def is_bare(self) -> bool:
        """Whether no property stores anything of the message."""
        has_texts = self.tags or self.keys or self.properties or self.sharding_key
        return not has_texts and self.wait and not self.delay_level

    @property
    def is_delayed(self) -> bool:
        """Whether the message has a delay, by its level or by the property DELAY."""
        return self.delay_level > 0 or DELAY in self.properties

    def all_properties(self) -> dict[str, str]:
        """Returns `properties`, and the properties that store the other fields."""
        properties = dict(self.properties)
        if self.tags:
            properties[TAGS] = self.tags
        if self.keys and (keys := self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)):
            properties[KEYS] = keys
        if self.sharding_key:
            properties[SHARDING_KEY] = self.sharding_key
        if self.delay_level > 0:
            properties[DELAY] = str(self.delay_level)
        if not self.wait:
            properties[WAIT] = "false"
        return properties


_check_topic_once: Final = lru_cache(256)(check_topic)
"""A program sends many messages of few topics."""


def _bytes_of(body: object) -> bytes:
    """Returns a copy of a body that is a bytearray or a memoryview. Raises BadMessage for any other type."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    advice = "text.encode()" if isinstance(body, str) else "json.dumps(value).encode()"
    raise BadMessage(f"the body of a message must be bytes, not {type(body).__name__}; use {advice}")


def check_delay_level(level: int) -> None:
    """Raises BadMessage if this is not one of RocketMQ's delay levels, nor 0 for none."""
    if type(level) is not int or not 0 <= level <= MAX_DELAY_LEVEL:
        raise BadMessage(f"there is no delay level {level!r}; levels are 0 (none) to {MAX_DELAY_LEVEL}")


class Origin(NamedTuple):
    """Where messages of one page came from, and the limit of a decompressed body, in bytes."""

    broker_name: str
    body_limit: int


class ReceivedMessage:
    """A message from a broker. For a retry, `topic` is the original topic, not the retry topic."""

    __slots__ = (
        "__dict__",  # a program may note something on a message
        "__weakref__",
        "_body",
        "_encoded",
        "_origin",
        "_record",
        "queue_offset",
        "reconsume_times",
        "size",
        "topic",
    )

    topic: str
    queue_offset: int
    reconsume_times: int
    """The number of failed deliveries so far."""
    size: int
    """Size of the stored record, in bytes."""
    _record: Record | None
    _encoded: bytes
    """The record's bytes, as long as `_record` is None."""
    _body: bytes | None
    _origin: Origin

    def __init__(self, record: Record, broker_name: str, *, limit: int = MAX_SIZE) -> None:
        self._record = record
        self._encoded = b""
        self._body = None
        self._origin = Origin(broker_name, limit)
        self.topic = record.topic
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times
        self.size = record.size
        if record.topic.startswith(RETRY_PREFIX):
            self.topic = record.properties.get(RETRY_TOPIC, record.topic)

    def __repr__(self) -> str:
        return f"<message {self.msg_id} of {self.topic}, queue {self.queue_id} at {self.queue_offset}>"

    @property
    def record(self) -> Record:
        """The record as stored by the broker. It is decoded on first access."""
        record = self._record
        if record is None:
            record = self._record = decode_record(self._encoded)
        return record

    @property
    def body(self) -> bytes:
        """The decompressed body. Raises BadRequest if it cannot be decompressed or is larger than the limit."""
        body = self._body
        if body is None:
            body = self._body = self.inflated(self._origin.body_limit)
        return body

    @property
    def text(self) -> str:
        """The body as text. Raises BadMessage if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            raise BadMessage(f"the body of {self!r} is not text in UTF-8; use `body`") from None

    def json(self) -> Any:
        """Returns the value that the body holds as JSON. Raises BadMessage if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise BadMessage(f"the body of {self!r} is not JSON: {error}") from None

    def inflated(self, limit: int) -> bytes:
        """Returns the decompressed body like `body`, within another limit in bytes, and does not keep it."""
        return inflate_body(self.record.body, self.record.sys_flag, limit)

    @property
    def broker_name(self) -> str:
        return self._origin.broker_name

    @property
    def tags(self) -> str:
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self.record.keys

    @property
    def properties(self) -> dict[str, str]:
        return self.record.properties

    @property
    def msg_id(self) -> str:
        """The producer's unique id, which stays the same in a retry. Without it, the broker's id."""
        return self.record.properties.get(UNIQ_KEY) or self.record.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id, made of the broker's address and the physical offset."""
        return self.record.msg_id

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from; for a retry, a queue of the retry topic."""
        return MessageQueue(broker_name=self.broker_name, queue_id=self.queue_id, topic=self.record.topic)

    @property
    def physical_offset(self) -> int:
        return self.record.physical_offset

    @property
    def born_timestamp(self) -> int:
        return self.record.born_timestamp

    @property
    def store_timestamp(self) -> int:
        return self.record.store_timestamp


def decode_page(data: bytes | memoryview, broker_name: str, limit: int) -> list[ReceivedMessage]:
    """Returns the messages of concatenated records, which are decoded no further than a consumer needs. Raises
    CorruptData if one is malformed. `limit` is that of a decompressed body.
    """
    records, at, reason = kernels.split_records(data)
    if reason:
        from penstock.format.kernel_row_types import Reason

        raise CorruptData(f"not a valid record: {Reason(reason).name}", offset=at)
    messages, new, origin = [], ReceivedMessage.__new__, Origin(broker_name, limit)
    for encoded, topic, queue_offset, reconsume_times, body in records:
        message = new(ReceivedMessage)
        message._record = None
        message._encoded = encoded
        message._body = body
        message._origin = origin
        message.topic = topic
        message.queue_offset = queue_offset
        message.reconsume_times = reconsume_times
        message.size = len(encoded)
        messages.append(message)
    if records and records[0][1].startswith(RETRY_PREFIX):
        for message in messages:
            message.topic = message.properties.get(RETRY_TOPIC, message.topic)
    return messages


class SendStatus(StrEnum):
    """The durability of a sent message. The broker has stored the message in every case."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """The broker's synchronous flush did not finish in time."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """The broker's synchronous replication did not finish in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """The broker replicates synchronously, but no slave is available."""


STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The send status for each response code that means "stored"."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: the message's status, ids, queue and queue offset."""

    status: SendStatus
    msg_id: str
    """The producer's unique id."""
    offset_msg_id: str
    """The broker's id, made of the broker's address and the physical offset."""
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    trace_on: bool = False
    """Whether the broker wants the message traced."""

    @property
    def ok(self) -> bool:
        """Whether the status is SEND_OK: flush and replication finished as the broker is configured."""
        return self.status is SendStatus.SEND_OK
