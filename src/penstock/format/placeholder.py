"""The placeholder: a valid record that a repair writes over bytes of the log which hold none.

Every reader of the log, RocketMQ's too, walks past it. It is of topic PENSTOCK_DAMAGED and of ROLLBACK type, so nobody
puts it into a queue or into the index. Its body begins with the topic and a line break and then says, line by line,
what lay there and where that is kept; zeros fill it up. A range too small for the whole name has the longest prefix of
it that fits, and no body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.format import kernels
from penstock.format.constants import DAMAGED_TOPIC, MIN_RECORD_SIZE
from penstock.format.hosts import IPV4_HOST_SIZE
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK

MIN_PLACEHOLDER_SIZE: Final = MIN_RECORD_SIZE + 1
_TOPIC = DAMAGED_TOPIC.encode()
_SAVED = "saved: "


def placeholder_text(physical_offset: int, size: int, reason: str, when: str, saved: list[str]) -> str:
    """The lines that a placeholder's body says; `saved` are paths in the store."""
    lines = [f"range: {size} bytes at {physical_offset}", f"reason: {reason}", f"repaired: {when}"]
    return "\n".join([*lines, *(f"{_SAVED}{path}" for path in saved), ""])


def saved_paths(record: bytes) -> list[str]:
    """The paths that a placeholder names, as far as it had room for them."""
    lines = record.decode("utf-8", "replace").split("\n")
    return [line.removeprefix(_SAVED) for line in lines if line.startswith(_SAVED) and "\0" not in line]


def write_placeholder(
    out: kernels.WritableBuffer, at: int, physical_offset: int, size: int, timestamp: int, host: bytes, text: str
) -> None:
    """Writes a placeholder of exactly `size` bytes at out[at:], its first 8 bytes last; `host` is an IPv4 one."""
    if size < MIN_PLACEHOLDER_SIZE or len(host) != IPV4_HOST_SIZE:
        raise ValueError(f"no placeholder of {size} bytes can be made")
    topic = _TOPIC[: size - MIN_RECORD_SIZE]
    room = size - MIN_RECORD_SIZE - len(topic)
    body = (_TOPIC + b"\n" + text.encode("utf-8", "replace"))[:room].ljust(room, b"\0")
    kernels.encode_record(
        out,
        at,
        physical_offset,
        0,
        timestamp,
        0,
        0,
        TRANSACTION_ROLLBACK,
        timestamp,
        host,
        host,
        0,
        0,
        body,
        topic,
        b"",
        True,
    )


def is_placeholder(topic: str, size: int) -> bool:
    """Whether a record of ROLLBACK type with this topic and size is one."""
    return topic == DAMAGED_TOPIC or (
        DAMAGED_TOPIC.startswith(topic) and size == MIN_RECORD_SIZE + len(topic) >= MIN_PLACEHOLDER_SIZE
    )


def find_placeholders(rows: kernels.Rows, name: Callable[[int], str]) -> list[tuple[int, int]]:
    """(physical offset, size) of those among the rows of a walk; `name` gives the topic of a topic id."""
    rolled_back = np.flatnonzero(rows["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK)
    found = []
    for number in rolled_back.tolist():
        row = rows[number]
        if is_placeholder(name(int(row["topic_id"])), int(row["size"])):
            found.append((int(row["physical_offset"]), int(row["size"])))
    return found
