"""From messages to the requests that send them: ids, compression, properties, batches. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.client.message import Message
from penstock.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC
from penstock.clock import now_ms
from penstock.errors import BadMessage
from penstock.format.batch import encode_batch_body
from penstock.format.constants import RETRY_PREFIX, UNIQ_KEY, WAIT
from penstock.format.message_id import make_unique_id
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import COMPRESSED
from penstock.protocol.codes import RequestCode
from penstock.protocol.compression import deflate_body
from penstock.protocol.headers.send import SendMessageV2


class Outgoing(NamedTuple):
    """A request that sends one message, or a batch; its queue is still to be chosen."""

    code: RequestCode
    header: SendMessageV2
    body: bytes
    msg_ids: tuple[str, ...]
    """Of each message."""
    sharding_key: str

    def to_queue(self, queue_id: int) -> SendMessageV2:
        return msgspec.structs.replace(self.header, queue_id=queue_id)


class Packing(NamedTuple):
    """How a producer packs."""

    group: str
    compress_over: int
    max_size: int


def pack(message: Message, packing: Packing, *, extra: dict[str, str] | None = None, sys_flag: int = 0) -> Outgoing:
    """The request for one message; `extra` are properties that its kind needs. Raises BadMessage."""
    body = message.body
    if len(body) > packing.max_size:
        raise BadMessage(f"a body has {len(body)} bytes; {packing.max_size} are allowed here")
    if len(body) >= packing.compress_over:
        body, sys_flag = deflate_body(body), sys_flag | COMPRESSED
    properties = {**message.all_properties(), **(extra or {})}
    msg_id = properties.setdefault(UNIQ_KEY, make_unique_id())
    header = _header(message, packing, properties, sys_flag)
    return Outgoing(RequestCode.SEND_MESSAGE_V2, header, body, (msg_id,), message.sharding_key)


def pack_batch(messages: Sequence[Message], packing: Packing) -> Outgoing:
    """The request for several messages of one topic. Raises BadMessage."""
    if not messages:
        raise BadMessage("a batch needs at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise BadMessage("messages of a retry topic cannot be sent in a batch")
    for message in messages:
        if message.topic != first.topic or message.wait != first.wait:
            raise BadMessage("all messages of a batch must have the same topic and the same `wait`")
        if message.delay_level > 0:
            raise BadMessage("a message with a delay cannot be sent in a batch")
    items, ids = [], []
    for message in messages:
        properties = message.all_properties()
        ids.append(properties.setdefault(UNIQ_KEY, make_unique_id()))
        items.append((message.flag, message.body, encode_properties(properties)))
    body = encode_batch_body(items)
    if len(body) > packing.max_size:
        raise BadMessage(f"a batch has {len(body)} bytes; {packing.max_size} are allowed here, so send it in parts")
    shared = {} if first.wait else {WAIT: "false"}
    header = msgspec.structs.replace(_header(first, packing, shared, 0), batch=True)
    keys = {message.sharding_key for message in messages}
    if len(keys) > 1:
        raise BadMessage("messages of a batch go to one queue, so they need the same sharding key")
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, header, body, tuple(ids), first.sharding_key)


def _header(message: Message, packing: Packing, properties: dict[str, str], sys_flag: int) -> SendMessageV2:
    return SendMessageV2(
        producer_group=packing.group,
        topic=message.topic,
        default_topic=TEMPLATE_TOPIC,
        default_topic_queue_nums=NEW_TOPIC_QUEUES,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=now_ms(),
        flag=message.flag,
        properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
    )
