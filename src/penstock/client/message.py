"""The values of the client API: messages to send, received messages, and the results of sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

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
from penstock.format.record import Record
from penstock.format.topics import check_topic
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.compression import MAX_SIZE, inflate_body

SHARDING_KEY: Final = "__SHARDINGKEY"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. The constructor raises BadMessage if the topic or a property is invalid.

    `keys` are for searching; a string with spaces holds several keys. `tags` are for consumers' filters; one tag per
    message is usual. `properties` are user properties; a field such as `tags` overrides the property that it is stored
    as. Messages with the same `sharding_key` go to the same queue and stay in order. `delay_level` 1 to 18 delays
    delivery by 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, unless the broker is configured otherwise.
    With `wait=False`, a broker with synchronous flush replies before the flush.
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
        check_topic(self.topic)
        for name, value in self.all_properties().items():
            check_property(name, value)

    def all_properties(self) -> dict[str, str]:
        """Returns `properties`, and the properties that store the other fields."""
        keys = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        fields = {TAGS: self.tags, KEYS: keys, SHARDING_KEY: self.sharding_key}
        if self.delay_level > 0:
            fields[DELAY] = str(self.delay_level)
        if not self.wait:
            fields[WAIT] = "false"
        return {**self.properties, **{name: value for name, value in fields.items() if value}}


class ReceivedMessage:
    """A message from a broker. For a retry, `topic` is the original topic, not the retry topic."""

    def __init__(self, record: Record, broker_name: str, *, limit: int = MAX_SIZE) -> None:
        self.record = record
        """The record as stored by the broker."""
        self.broker_name = broker_name
        self.topic = record.topic
        if record.topic.startswith(RETRY_PREFIX):
            self.topic = record.properties.get(RETRY_TOPIC, record.topic)
        self.reconsume_times = record.reconsume_times
        """The number of failed deliveries so far."""
        self._limit = limit

    def __repr__(self) -> str:
        return f"<message {self.msg_id} of {self.topic}, queue {self.queue_id} at {self.queue_offset}>"

    @cached_property
    def body(self) -> bytes:
        """The decompressed body. Raises BadRequest if it cannot be decompressed or is larger than the limit."""
        return self.inflated(self._limit)

    def inflated(self, limit: int) -> bytes:
        """Returns the decompressed body like `body`, within another limit in bytes, and does not keep it."""
        return inflate_body(self.record.body, self.record.sys_flag, limit)

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
    def queue_offset(self) -> int:
        return self.record.queue_offset

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

    @property
    def size(self) -> int:
        """Size of the stored record, in bytes."""
        return self.record.size


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


@dataclass(frozen=True, slots=True)
class SendResult:
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
