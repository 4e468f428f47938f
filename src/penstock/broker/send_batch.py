"""A client's batch as messages: each item of the body becomes one, with the batch's topic, queue and times."""

from __future__ import annotations

from penstock.errors import BadMessage
from penstock.format import kernels
from penstock.format.batch import decode_batch_body
from penstock.format.constants import CLUSTER, DELAY, PROPERTY_SEPARATOR, RETRY_PREFIX, TRAN_MSG, WAIT
from penstock.format.properties import encode_properties, join_properties, split_properties
from penstock.protocol.headers.send import SendMessage
from penstock.store.message import Message

_NOT_IN_A_BATCH = (f"{DELAY}\x01".encode(), f"{TRAN_MSG}\x01".encode())


def messages_of(
    header: SendMessage, body: bytes, *, queue_id: int, sys_flag: int, born_host: str, cluster: str, max_size: int
) -> list[Message]:
    """The messages of a batch, in their order. Raises BadMessage."""
    if header.topic.startswith(RETRY_PREFIX):
        raise BadMessage("a batch cannot be sent to a retry topic")
    if len(body) > max_size:
        raise BadMessage(f"a batch of {len(body)} bytes is too long; {max_size} are allowed (maxMessageSize)")
    common = encode_properties({**_common(header), CLUSTER: cluster})
    items = None
    if not any(name in body for name in _NOT_IN_A_BATCH):
        items = kernels.split_batch(body, common)
    if items is None:
        items = _with_care(body, common)
    topic, born_timestamp, reconsume_times = header.topic, header.born_timestamp, header.reconsume_times
    return [
        Message(
            topic,
            content,
            (),
            "",
            None,
            queue_id,
            0,
            flag,
            sys_flag,
            born_timestamp,
            born_host,
            "",
            reconsume_times,
            0,
            True,
            text,
        )
        for flag, content, text in items
    ]


def _with_care(body: bytes, common: bytes) -> list[tuple[int, bytes, str]]:
    """The items of a batch that is perhaps not to be stored, or holds text that is not UTF-8. Raises BadMessage."""
    items = decode_batch_body(body)
    for item in items:
        _check_item(item.properties)
    return [
        (flag, content, join_properties(properties, common).decode("utf-8", "surrogateescape"))
        for flag, content, properties in items
    ]


def _common(header: SendMessage) -> dict[str, str]:
    """What the batch's own properties give to each message."""
    properties = split_properties(header.properties)
    properties.pop(WAIT, None)
    if int_of(properties.pop(DELAY, "0")) > 0:
        raise BadMessage("a batch cannot be delayed")
    return properties


def _check_item(properties: bytes) -> None:
    if not any(name in properties for name in _NOT_IN_A_BATCH):
        return
    found = split_properties(properties.decode("utf-8", "surrogateescape") + PROPERTY_SEPARATOR)
    if int_of(found.get(DELAY, "0")) > 0 or found.get(TRAN_MSG, "").lower() == "true":
        raise BadMessage("a message of a batch may be neither transactional nor delayed")


def int_of(text: str) -> int:
    """The number that a property holds. Raises BadMessage."""
    try:
        return int(text)
    except ValueError:
        raise BadMessage(f"a property must be a number, not {text[:40]!r}") from None
