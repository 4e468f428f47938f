"""Checks a Message and encodes it for the log: limits, properties, hosts, and the rerouting of delayed messages.

The functions have no side effects. The put path calls them before it takes the put lock.
"""

from __future__ import annotations

import re

import msgspec

from penstock.errors import BadMessage
from penstock.format.constants import (
    CRC32,
    DELAY,
    KEYS,
    MAX_PROPERTIES_LENGTH,
    REAL_QID,
    REAL_TOPIC,
    RECORD_CRC,
    SCHEDULE_TOPIC,
    TAGS,
    WAIT,
)
from penstock.format.hosts import encode_host
from penstock.format.properties import (
    check_no_zeros,
    check_property,
    encode_properties,
    join_properties,
    split_properties,
)
from penstock.format.record import record_size
from penstock.format.sys_flag import enters_queue, with_hosts
from penstock.format.topics import check_topic
from penstock.store.message import Message, PutStatus

_INT = re.compile(r"-?[0-9]{1,10}")


class Prepared(msgspec.Struct, frozen=True):
    """A checked and encoded message. The log adds the offsets and the store time."""

    topic: str
    topic_bytes: bytes
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    born_host_text: str
    store_host: bytes
    store_host_text: str
    reconsume_times: int
    prepared_transaction_offset: int
    size: int
    queued: bool
    """Whether the message gets a queue offset. Prepared and rolled-back transactional messages do not."""
    delayed: bool
    wait: bool


class PutRefused(Exception):
    """A put is refused. Carries the status and the reason of its PutResult."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def prepare(
    message: Message,
    *,
    store_host: str,
    max_message_size: int,
    max_record_size: int,
    delay_levels: int,
    has_record_crc: bool,
    again: bool = False,
) -> Prepared:
    """Checks and encodes a message.

    `max_message_size` limits the body and `max_record_size` the whole record, in bytes. `delay_levels` is the number of
    levels. With `has_record_crc` the properties end with RECORD_CRC, whose digits the log will set. Raises PutRefused
    with MESSAGE_ILLEGAL or PROPERTIES_SIZE_EXCEEDED.

    `again` says that the store accepted the message before, and stores it under another topic now. Then properties that
    look like a lost sector are accepted; their record gets RECORD_CRC, which proves that it is whole.
    """
    try:
        check_topic(message.topic)
        properties = collect_properties(message)
        for name, value in properties.items():
            check_property(name, value)
        topic, queue_id, delayed = route(message, properties, delay_levels)
        encoded = encode_property_text(message, properties) or encode_properties(properties)
        encoded = _sealed(encoded, has_record_crc, again)
        host = message.store_host or store_host
        born_host, store_host_bytes = encode_host(message.born_host), encode_host(host)
    except BadMessage as error:
        raise PutRefused(PutStatus.MESSAGE_ILLEGAL, str(error)) from None
    check_numbers(message)
    if len(encoded) > MAX_PROPERTIES_LENGTH:
        raise PutRefused(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            f"the properties take {len(encoded)} bytes; {MAX_PROPERTIES_LENGTH} are allowed",
        )
    topic_bytes = topic.encode()
    size = record_size(len(message.body), len(topic_bytes), len(encoded), len(born_host), len(store_host_bytes))
    if len(message.body) > max_message_size or size > max_record_size:
        raise PutRefused(
            PutStatus.MESSAGE_ILLEGAL,
            f"the body has {len(message.body)} bytes and the record {size}; {max_message_size} and {max_record_size} "
            "are allowed (maxMessageSize)",
        )
    return Prepared(
        topic=topic,
        topic_bytes=topic_bytes,
        queue_id=queue_id,
        body=message.body,
        properties=encoded,
        flag=message.flag,
        sys_flag=with_hosts(message.sys_flag, born_host, store_host_bytes),
        born_timestamp=message.born_timestamp,
        born_host=born_host,
        born_host_text=message.born_host,
        store_host=store_host_bytes,
        store_host_text=host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        size=size,
        queued=enters_queue(message.sys_flag),
        delayed=delayed,
        wait=message.wait and properties.get(WAIT, "true") != "false",
    )


def _sealed(encoded: bytes, has_record_crc: bool, again: bool) -> bytes:
    """Returns a property string with RECORD_CRC if it needs one. Raises BadMessage if it looks like a lost sector."""
    try:
        check_no_zeros(encoded)
    except BadMessage:
        if not again:
            raise
        has_record_crc = True
    if not has_record_crc:
        return encoded
    sealed = join_properties(encoded, RECORD_CRC)
    return encoded if again and len(sealed) > MAX_PROPERTIES_LENGTH else sealed


def collect_properties(message: Message) -> dict[str, str]:
    """Returns the message's properties, including keys, tags, delay level and wait flag. Raises BadMessage.

    Leaves out CRC32, as RocketMQ 5 does: only the store may set it.
    """
    properties = dict(message.properties or {})
    properties.pop(CRC32, None)
    if message.keys:
        keys = message.keys
        properties[KEYS] = keys if isinstance(keys, str) else " ".join(keys)
    if message.tags:
        properties[TAGS] = message.tags
    if message.delay_level:
        properties[DELAY] = str(message.delay_level)
    if not message.wait:
        properties[WAIT] = "false"
    if not _INT.fullmatch(properties.get(DELAY, "0")):
        raise BadMessage(f"the property DELAY must be a number, not {properties[DELAY]!r}")
    return properties


def encode_property_text(message: Message, properties: dict[str, str]) -> bytes:
    """Returns `property_text` encoded, without CRC32; empty if the message has none. Raises BadMessage."""
    text = message.property_text
    if text and properties.keys() - {WAIT}:
        raise BadMessage("a message has its properties either as property_text or one by one, not both")
    if CRC32 in text:
        return encode_properties({name: value for name, value in split_properties(text).items() if name != CRC32})
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadMessage("property_text holds text that UTF-8 cannot express") from None


def route(message: Message, properties: dict[str, str], delay_levels: int) -> tuple[str, int, bool]:
    """Returns the topic and queue id to store a message under, and whether it is delayed.

    A delayed message goes to the queue of its delay level in the schedule topic. Its own topic and queue id are added
    to `properties`.
    """
    level = min(int(properties.get(DELAY, "0")), delay_levels)
    if level <= 0 or message.topic == SCHEDULE_TOPIC or not enters_queue(message.sys_flag):
        return message.topic, message.queue_id, False
    properties[DELAY] = str(level)
    properties[REAL_TOPIC], properties[REAL_QID] = message.topic, str(message.queue_id)
    return SCHEDULE_TOPIC, level - 1, True


_RANGES = {
    "queue_id": (0, 2**31 - 1),
    "flag": (-(2**31), 2**31 - 1),
    "sys_flag": (-(2**31), 2**31 - 1),
    "reconsume_times": (-(2**31), 2**31 - 1),
    "born_timestamp": (0, 2**63 - 1),
    "prepared_transaction_offset": (-(2**63), 2**63 - 1),
}


def check_numbers(message: Message) -> None:
    for name, (lowest, highest) in _RANGES.items():
        value = getattr(message, name)
        if not lowest <= value <= highest:
            raise PutRefused(PutStatus.MESSAGE_ILLEGAL, f"{name} {value} is outside {lowest} to {highest}")
