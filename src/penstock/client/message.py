"""Messages on their way to a broker, and as they come from one.

What a producer is told of a message that it sent.
"""

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
    """What a producer sends; everything but topic and body has a default. Raises BadMessage for what cannot be sent.

    `keys` are what a message can be found by; a text with spaces is several. `tags` is what consumers select by; one
    tag a message is usual. `properties` are anything else; the fields win over entries of their names. Messages with
    one `sharding_key` go to one queue and so stay in order. `delay_level` 1 to 18 has consumers wait: 1s 5s 10s 30s 1m
    2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, unless the broker is set otherwise. `wait=False` asks not to wait for the
    disk where the broker does.
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
        """The properties with those that the fields stand for."""
        keys = self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)
        fields = {TAGS: self.tags, KEYS: keys, SHARDING_KEY: self.sharding_key}
        if self.delay_level > 0:
            fields[DELAY] = str(self.delay_level)
        if not self.wait:
            fields[WAIT] = "false"
        return {**self.properties, **{name: value for name, value in fields.items() if value}}


class ReceivedMessage:
    """A message that a broker has given us; of a retry, under the topic that it was first sent to."""

    def __init__(self, record: Record, broker_name: str, *, limit: int = MAX_SIZE) -> None:
        self.record = record
        """The message as it is stored."""
        self.broker_name = broker_name
        self.topic = record.topic
        if record.topic.startswith(RETRY_PREFIX):
            self.topic = record.properties.get(RETRY_TOPIC, record.topic)
        self.reconsume_times = record.reconsume_times
        """How often it was consumed in vain."""
        self._limit = limit

    def __repr__(self) -> str:
        return f"<message {self.msg_id} of {self.topic}, queue {self.queue_id} at {self.queue_offset}>"

    @cached_property
    def body(self) -> bytes:
        """As it was sent. Raises BadRequest if it is compressed and cannot be inflated, or is too long then."""
        return inflate_body(self.record.body, self.record.sys_flag, self._limit)

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
        """The id that its producer gave it, which a retry keeps; else the broker's."""
        return self.record.properties.get(UNIQ_KEY) or self.record.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id, which says where it lies."""
        return self.record.msg_id

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def queue(self) -> MessageQueue:
        """Where it came from; of a retry, the queue of the retry topic."""
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
        """Of its record, in bytes."""
        return self.record.size


class SendStatus(StrEnum):
    """How safely a message is stored; it is stored in all cases."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Not on disk in time, where the broker waits for that."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Not at a slave in time, where the broker waits for that."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """No slave to wait for."""


STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The codes with which a broker says that a message is stored."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message that was stored."""

    status: SendStatus
    msg_id: str
    """The id that the producer gave it."""
    offset_msg_id: str
    """The broker's id, which says where it lies."""
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    trace_on: bool = False
    """Whether the broker wants the message traced."""

    @property
    def ok(self) -> bool:
        """Whether it is as safe as the broker promises."""
        return self.status is SendStatus.SEND_OK
