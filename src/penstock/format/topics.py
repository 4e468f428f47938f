"""Legal topic names: `%`, `|`, letters, digits, `_` and `-`, at most 127 bytes."""

from __future__ import annotations

import re

from penstock.errors import BadMessage
from penstock.format.constants import MAX_TOPIC_LENGTH, MAX_TOPIC_LENGTH_V2

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_LEGAL_BYTES = re.compile(rb"[%|a-zA-Z0-9_-]+")


def is_legal_topic(name: str | bytes) -> bool:
    """Returns whether Penstock may write a record with this topic."""
    if len(name) > MAX_TOPIC_LENGTH:
        return False
    if isinstance(name, bytes):
        return _LEGAL_BYTES.fullmatch(name) is not None
    return _LEGAL.fullmatch(name) is not None


def is_readable_topic(name: str) -> bool:
    """Returns whether RocketMQ 4.9 or 5.x may have written a record with this topic. Queue folders have this name."""
    return len(name) <= MAX_TOPIC_LENGTH_V2 and _LEGAL.fullmatch(name) is not None


def is_readable_queue(topic: str, queue_id: int) -> bool:
    """Whether the topic and queue id of a record can name a queue. Those of a damaged record may be anything."""
    return queue_id >= 0 and is_readable_topic(topic)


def check_topic(name: str) -> None:
    """Raises BadMessage, with the reason, if the name is not legal."""
    if not isinstance(name, str):
        raise BadMessage(f"a topic must be text, not {type(name).__name__}")
    if not name:
        raise BadMessage("a message needs a topic")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_TOPIC_LENGTH:
        raise BadMessage(f"the topic '{name[:40]}…' is too long", expected="at most 127 bytes", found=size)
    if not is_legal_topic(name):
        raise BadMessage(f"the topic {name!r} holds characters other than letters, digits, '%', '|', '_' and '-'")
